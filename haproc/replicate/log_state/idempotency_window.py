"""The request ids seen before, their range in the log, and the operations that count."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from enum import Enum, auto
from typing import Final, TypeAlias

from dmq import LogError
from haproc.replicate.log_state.definitions import Definitions
from haproc.replicate.records.operation import Operation

# Where the log ended some time ago: below that no copy of a request stands that was sent later.
#
# A request states the time since it was first sent, by its sender's own clock. This HAProc watches
# the log's end once a second, and remembers that as far back as the window of request ids reaches.
# What it did not see itself, because it was started later, it takes from the times at which the
# records were made, by the clocks of the HAProcs that made them.
#
# `MARGIN_S` is given to every request, also to one that is sent for the first time: it may have
# lain in this process's sockets while that was frozen. After thawing, the newest end known from
# five seconds ago is the one from before the freeze.


MARGIN_S: Final = 5.0
"""The most by which a request may be older than stated, and the HAProcs' clocks may differ. Chosen:
more than a network's delays, and at 5,000 writes a second less than half of the window."""
_STEP_MS: Final = 100


class Past:
    """The ends of the log as far back as ``records`` offsets; times are of one monotonic clock."""

    def __init__(self, records: int) -> None:
        self._records = records
        self._seen_s: list[float] = []
        self._ends: list[int] = []
        self._made_ms: list[int] = []
        self._made_at: list[int] = []
        self._forgotten = False
        self._noted_to = 0

    def observe(self, now_s: float, end: int) -> None:
        """The log had this end, or a later one."""
        if self._ends and end <= self._ends[-1]:
            return
        self._seen_s.append(now_s)
        self._ends.append(end)
        if len(self._ends) > 2 and self._ends[len(self._ends) // 2] < end - self._records:
            half = len(self._ends) // 2
            del self._seen_s[:half], self._ends[:half]
            self._forgotten = True

    def note(self, offset: int, created_ms: int) -> None:
        """Note the time at which a record was made. Offsets must rise from call to call."""
        self._noted_to = offset + 1
        if self._made_ms and created_ms < self._made_ms[-1] + _STEP_MS:
            return
        self._made_ms.append(created_ms)
        self._made_at.append(offset)
        half = len(self._made_at) // 2
        if half and self._made_at[half] < offset - self._records:
            del self._made_ms[:half], self._made_at[:half]

    def since(self, age_s: float, arrived_s: float, arrived_ms: int) -> int:
        """Return an offset below which no copy of a request stands.

        It arrived at ``arrived_s``, which was ``arrived_ms`` in Unix time, and was first sent
        ``age_s`` before. 0 if nothing is known of that time.
        """
        at = bisect_right(self._seen_s, arrived_s - age_s - MARGIN_S) - 1
        if at >= 0:
            return self._ends[at]
        if self._forgotten or not self._ends:
            return 0
        if age_s == 0:
            return self._ends[0]  # before that this process was not there to be sent anything
        return min(self._made_since(arrived_ms - 1000 * (age_s + MARGIN_S)), self._ends[0])

    def _made_since(self, moment_ms: float) -> int:
        """Return the first offset that may hold a record made after this moment."""
        at = bisect_right(self._made_ms, moment_ms - _STEP_MS)
        if at == 0:
            return 0
        return self._made_at[at] if at < len(self._made_at) else self._noted_to


# Which request ids were seen before: two records with one id, and the first counts.
#
# The answer must be the same on every cluster and after every restart, so it depends on the log
# alone. A record repeats another if the same id of the same user stands at most ``window`` offsets
# before it, be that one a repetition itself or not. After a restart the window is rebuilt from the
# log. A stale record (`replicate.log_state.definitions`) is never shown to the window: it is as if
# it were not there.
#
# What stands farther back is forgotten. So that a late copy is not taken for new, a record contains
# ``since``: an offset below which no copy of its request can stand (see `Past`). If that is not
# within the window, the record is *expired*: it is passed over, whether or not there was an earlier
# copy. Of two copies at most one is therefore applied: the second one is either within reach of the
# first, or expired, because its ``since`` lies at or below the first.
#
# ``window`` comes with the record, so all readers agree on it, whatever their own limits; one that
# remembers less than a record asks for cannot judge it, and stops there. So does one that could
# not read as far back as a record asks for, because the log begins later.


class WindowTooSmallError(LogError):
    """A record asks for more memory of request ids than this HAProc has."""


class Sighting(Enum):
    """The kind of a record by its request id."""

    NEW = auto()
    REPEATED = auto()
    EXPIRED = auto()


_Key: TypeAlias = tuple[str, str]
"""A user and an id of theirs."""


class IdempotencyWindow:
    """Request ids of the last ``records`` offsets."""

    def __init__(self, records: int) -> None:
        self._records = records
        self._known_from = 0
        self._newest: dict[_Key, int] = {}
        self._order: deque[tuple[int, _Key]] = deque()
        self._unsure: dict[_Key, int] = {}
        self._sure_from = 0

    @property
    def known_from(self) -> int:
        """The ids of all records from here on are known, and whether they count.

        As far as the window reaches.
        """
        return max(self._known_from, self._sure_from)

    def knows_from(self, offset: int) -> None:
        """The ids of all records from there on were, or will be, noted."""
        self._known_from = offset

    def see(self, offset: int, key: _Key, since: int, window: int) -> Sighting:
        """Note the key at ``offset``, user and id, and return the kind of the record.

        ``since`` and ``window`` are the record's own. Offsets must rise from call to call.
        """
        if window > self._records:
            raise WindowTooSmallError(
                f"the record at offset {offset} was written with limits.window_records = {window}, "
                f"and this HAProc has {self._records}: give it at least as many, and start it again"
            )
        while self._order and self._order[0][0] < offset - self._records:
            old_offset, old = self._order.popleft()
            if self._newest.get(old) == old_offset:
                del self._newest[old]
        earlier, unsure = self._newest.get(key, -1), self._unsure.get(key, -1)
        self._newest[key] = offset
        self._order.append((offset, key))
        if earlier >= max(0, offset - window):
            return Sighting.REPEATED
        if unsure >= max(0, offset - window):
            raise WindowTooSmallError(
                f"whether the record at offset {offset} repeats the one at {unsure} cannot be "
                "known: the log began too late, when this HAProc was started, to tell whether that "
                "one counts"
            )
        if since < offset - window:
            return Sighting.EXPIRED
        if since < self._known_from:
            raise WindowTooSmallError(
                f"whether the record at offset {offset} repeats an earlier one cannot be known: "
                f"request ids from offset {since} on are needed, and the log began at "
                f"{self._known_from} when this HAProc was started"
            )
        return Sighting.NEW

    def unsure(self, offset: int, key: _Key) -> None:
        """Note a record of which it cannot be known whether it is stale."""
        self._unsure[key] = offset
        self._sure_from = offset + 1

    def begins(self, offset: int) -> int:
        """Return from where on the ids must be known to judge what stands at ``offset``."""
        return max(0, offset - self._records)


class RecordJudgement(Enum):
    """The judgement of an operation at its place in the log."""

    NEW = auto()
    STALE = auto()
    REPEATED = auto()
    EXPIRED = auto()


_OF_SIGHTING = {
    Sighting.NEW: RecordJudgement.NEW,
    Sighting.REPEATED: RecordJudgement.REPEATED,
    Sighting.EXPIRED: RecordJudgement.EXPIRED,
}


class Judge:
    """Decides if an operation of the log is applied, by its definitions and by its request id.

    A stale one never enters the window, so the two rules belong together, in this order. The result
    is the same on every cluster, and for every later reader of that part of the log.

    It receives every operation, with rising offsets.
    """

    def __init__(self, window: IdempotencyWindow, definitions: Definitions) -> None:
        self._window = window
        self._definitions = definitions

    def judge(
        self, offset: int, op: Operation, passed_window: int | None = None
    ) -> RecordJudgement:
        """Take in an operation; raises WindowTooSmallError where it cannot be known.

        ``passed_window``: another process with so wide a window has passed it already, so it
        matters for reports only.
        """
        if self._stale(offset, op, passed=passed_window is not None):
            return RecordJudgement.STALE
        window = op.window if passed_window is None else min(op.window, passed_window)
        return _OF_SIGHTING[self._window.see(offset, op.key, op.since, window)]

    def _stale(self, offset: int, op: Operation, *, passed: bool) -> bool:
        definitions = self._definitions
        stale = definitions.stale(offset, op)
        definitions.note(offset, op)
        if stale is not None:
            return stale
        if not passed:
            raise WindowTooSmallError(
                f"whether what the record at offset {offset} rests on changed before it cannot be "
                f"known: what was defined from offset {op.analyzed_to} on is needed, and the log "
                f"began at {definitions.known_from} when this HAProc was started"
            )
        self._window.unsure(offset, op.key)
        return True
