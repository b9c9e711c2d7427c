"""Knows the request ids of earlier records, and decides which operations of the log are applied."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from enum import Enum, auto
from typing import Final, TypeAlias

from dmq import LogError
from haproc.replicate.log_state.definitions import Definitions
from haproc.replicate.records.operation import Operation

# The earlier ends of the log: a request that was sent later has no copy below such an end.
#
# A request states the time since it was first sent, by its sender's own clock. This HAProc asks for
# the log's end once a second, and remembers the ends as far back as the idempotency window reaches.
# For the time before its own start it uses the times at which the records were made, by the clocks
# of the HAProcs that made them.
#
# `MARGIN_S` is added to the age of every request, also of a first attempt: the request may have
# waited in this process's sockets while the process was frozen. After that, the newest end known
# from five seconds ago is the end from before the freeze.


MARGIN_S: Final = 5.0
"""How much older than stated a request may be, and how much the HAProcs' clocks may differ. Chosen:
more than a network's delays, and at 5,000 writes a second less than half of the window."""
_STEP_MS: Final = 100


class Past:
    """Where the log ended at earlier times, as far back as ``records`` offsets.

    Times are of one monotonic clock.
    """

    def __init__(self, records: int) -> None:
        self._records = records
        self._seen_s: list[float] = []
        self._ends: list[int] = []
        self._made_ms: list[int] = []
        self._made_at: list[int] = []
        self._forgotten = False
        self._noted_to = 0

    def observe(self, now_s: float, end: int) -> None:
        """Note that the log ended at ``end``, or later, at the time ``now_s``."""
        if self._ends and end <= self._ends[-1]:
            return
        self._seen_s.append(now_s)
        self._ends.append(end)
        if len(self._ends) > 2 and self._ends[len(self._ends) // 2] < end - self._records:
            half = len(self._ends) // 2
            del self._seen_s[:half], self._ends[:half]
            self._forgotten = True

    def note(self, offset: int, created_ms: int) -> None:
        """Note the Unix time at which an operation was made.

        Offsets must rise from call to call.
        """
        self._noted_to = offset + 1
        if self._made_ms and created_ms < self._made_ms[-1] + _STEP_MS:
            return
        self._made_ms.append(created_ms)
        self._made_at.append(offset)
        half = len(self._made_at) // 2
        if half and self._made_at[half] < offset - self._records:
            del self._made_ms[:half], self._made_at[:half]

    def since(self, age_s: float, arrived_s: float, arrived_ms: int) -> int:
        """Return an offset below which the log has no earlier copy of a request.

        The request arrived at ``arrived_s`` (in Unix time ``arrived_ms``), and was first sent
        ``age_s`` before. 0 if nothing is known about that time.
        """
        at = bisect_right(self._seen_s, arrived_s - age_s - MARGIN_S) - 1
        if at >= 0:
            return self._ends[at]
        if self._forgotten or not self._ends:
            return 0
        if age_s == 0:
            return self._ends[0]  # the request was sent to this process, so after its start
        return min(self._made_since(arrived_ms - 1000 * (age_s + MARGIN_S)), self._ends[0])

    def _made_since(self, moment_ms: float) -> int:
        """Return the first offset that may hold an operation made after this Unix time."""
        at = bisect_right(self._made_ms, moment_ms - _STEP_MS)
        if at == 0:
            return 0
        return self._made_at[at] if at < len(self._made_at) else self._noted_to


# The idempotency window: of two records with the same request id, the first one counts.
#
# The result must be the same on every cluster and after every restart, so it depends on the log
# alone. A record repeats another one if that has the same id and user and is at most ``window``
# offsets before it. The earlier one may be a repetition itself. After a restart the window is
# rebuilt from the log. Stale records (`replicate.log_state.definitions`) never enter the window.
#
# Older records are forgotten. A late copy must not count as new. So a record contains ``since``, an
# offset below which there is no copy of its request (see `Past`). If ``since`` is not within the
# window, the record is *expired*: it is passed over, with or without an earlier copy. So of two
# copies at most one is applied: the second one either finds the first one in the window, or is
# expired, because its ``since`` is at or below the first one.
#
# ``window`` is stored in the record, so all readers use the same one, whatever their own limits. A
# reader that remembers fewer ids than a record needs cannot judge the record, and stops there. So
# does a reader that could not read far enough back, because the log begins later.


class WindowTooSmallError(LogError):
    """An operation cannot be judged: this HAProc knows fewer request ids than that needs."""


class RecordJudgement(Enum):
    """Whether an operation in the log is applied: only a NEW one is."""

    NEW = auto()
    STALE = auto()
    REPEATED = auto()
    EXPIRED = auto()


_Key: TypeAlias = tuple[str, str]
"""A user and a request id of this user."""


class IdempotencyWindow:
    """The request ids in the last ``records`` offsets of the log, to find repeated requests."""

    def __init__(self, records: int) -> None:
        self._records = records
        self._known_from = 0
        self._newest: dict[_Key, int] = {}
        self._order: deque[tuple[int, _Key]] = deque()
        self._unsure: dict[_Key, int] = {}
        self._sure_from = 0

    @property
    def known_from(self) -> int:
        """The offset from which on all request ids are known, and which operations are applied."""
        return max(self._known_from, self._sure_from)

    def knows_from(self, offset: int) -> None:
        """Set the offset from which on all request ids are noted here, now or later."""
        self._known_from = offset

    def see(self, offset: int, key: _Key, since: int, window: int) -> RecordJudgement:
        """Note an operation's ``key``; return whether it is new, repeated or expired by it.

        ``since`` and ``window``: the operation's. Offsets must rise from call to call. Raises
        WindowTooSmallError.
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
            return RecordJudgement.REPEATED
        if unsure >= max(0, offset - window):
            raise WindowTooSmallError(
                f"whether the record at offset {offset} repeats the one at {unsure} cannot be "
                "known: the log began too late, when this HAProc was started, to tell whether that "
                "one counts"
            )
        if since < offset - window:
            return RecordJudgement.EXPIRED
        if since < self._known_from:
            raise WindowTooSmallError(
                f"whether the record at offset {offset} repeats an earlier one cannot be known: "
                f"request ids from offset {since} on are needed, and the log began at "
                f"{self._known_from} when this HAProc was started"
            )
        return RecordJudgement.NEW

    def unsure(self, offset: int, key: _Key) -> None:
        """Note an operation of which this HAProc cannot know whether it is stale."""
        self._unsure[key] = offset
        self._sure_from = offset + 1

    def begins(self, offset: int) -> int:
        """Return the offset from which on ids must be known to judge the record at ``offset``."""
        return max(0, offset - self._records)


class Judge:
    """Decides whether an operation in the log is applied, by definitions and by its request id.

    The definitions come first, because a stale operation never enters the window. The result is the
    same on every cluster, and for every later reader of that part of the log.

    Every operation must be judged, with rising offsets.
    """

    def __init__(self, window: IdempotencyWindow, definitions: Definitions) -> None:
        self._window = window
        self._definitions = definitions

    def judge(
        self, offset: int, op: Operation, passed_window: int | None = None
    ) -> RecordJudgement:
        """Note an operation and judge it; raises WindowTooSmallError if too little is known.

        ``passed_window``: an earlier process with a window of this size has judged the operation
        already; the result matters for answers to clients only.
        """
        if self._stale(offset, op, passed=passed_window is not None):
            return RecordJudgement.STALE
        window = op.window if passed_window is None else min(op.window, passed_window)
        return self._window.see(offset, op.key, op.since, window)

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
