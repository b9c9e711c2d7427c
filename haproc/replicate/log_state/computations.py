"""The work of other clusters according to the log: operations that succeeded, and computed rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from haproc.replicate.records.control import Abandon, FailureVote, Skip, VoteWithdrawal
from haproc.replicate.records.operation import FailureReport, Filler, Message
from haproc.replicate.records.rows import ApplicationFailure, Passed, Rows


class PeerSuccess:
    """Peer success tracking: which operations are known to have succeeded on another cluster.

    Also: which clusters have reported an error on an operation.

    A cluster stores a cursor beyond an operation only once a record about it is in the log where it
    did not simply succeed there: a report of its error, a skip, a word that it cannot be applied.
    So a HAProc that has read all control records up to an end of the log that was looked up *after*
    the cursor was read, and found none about an operation below that cursor, knows that the
    operation succeeded.
    """

    def __init__(self) -> None:
        self._below = 0
        self._with_control_record: set[int] = set()
        self._failed: dict[int, dict[str, int]] = {}

    def record(self, message: Message | Filler) -> None:
        """Record a control record. The order does not matter, nor do repetitions."""
        if isinstance(message, FailureReport | Skip | FailureVote | VoteWithdrawal | Abandon):
            self._with_control_record.add(message.offset)
        if isinstance(message, FailureReport):
            reported = self._failed.setdefault(message.offset, {})
            reported[message.cluster] = max(message.epoch, reported.get(message.cluster, -1))

    def passed(self, below: int) -> None:
        """A cluster had stored this cursor, and all control records since then are read."""
        self._below = max(self._below, below)

    def succeeded(self, offset: int) -> bool:
        """True if an operation is known to have succeeded."""
        return offset < self._below and offset not in self._with_control_record

    def failed(self, offset: int, cluster: str) -> int | None:
        """Return the epoch of the newest process of a cluster that reported its error on it."""
        return self._failed.get(offset, {}).get(cluster)

    def has_control_record(self, offset: int) -> bool:
        """True if an operation is known not to have simply succeeded somewhere."""
        return offset in self._with_control_record

    def forget(self, below: int) -> None:
        """Forget what nobody asks about any more."""
        if len(self._with_control_record) > 1:
            self._with_control_record = {
                offset for offset in self._with_control_record if offset >= below
            }
            self._failed = {
                offset: each for offset, each in self._failed.items() if offset >= below
            }


# The log's facts about operations' rows, and the cluster that is to compute them. Values in, values
# out.


@dataclass(frozen=True, slots=True)
class RowsLocation:
    """The place of an operation's rows in the log, and their number; or that there will be none."""

    place: int
    count: int
    failure: ApplicationFailure | None


@dataclass(slots=True)
class Passes:
    """The ``passed`` records of an operation, by offset: each cluster that could not compute."""

    by_place: dict[int, Passed] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        """Return the number of times that each cluster passed."""
        counts: dict[str, int] = {}
        for passed in self.by_place.values():
            counts[passed.by] = counts.get(passed.by, 0) + 1
        return counts


class Computations:
    """Operations' rows according to the log, as far as it was read. Texts stay in the log."""

    def __init__(self) -> None:
        self._found: dict[int, RowsLocation] = {}
        self._passes: dict[int, Passes] = {}

    def see(self, place: int, rows: Rows) -> bool:
        """Note a rows record at its place; False if it is not the first on its operation."""
        if rows.offset in self._found:
            return False
        self._found[rows.offset] = RowsLocation(place, rows.count, rows.failure)
        self._passes.pop(rows.offset, None)
        return True

    def see_passed(self, place: int, passed: Passed) -> None:
        """Note that a cluster passed; hearing of it again changes nothing."""
        if passed.offset not in self._found:
            self._passes.setdefault(passed.offset, Passes()).by_place[place] = passed

    def found(self, offset: int) -> RowsLocation | None:
        """Return the place of the rows of the operation at this offset, if they are there."""
        return self._found.get(offset)

    def passes(self, offset: int) -> Mapping[str, int]:
        """Return the number of times that each cluster passed on the operation at this offset."""
        passes = self._passes.get(offset)
        return passes.counts() if passes is not None else {}

    def trouble(self, offset: int) -> tuple[int, str]:
        """Return the number of failures of the query at this offset, and the last error."""
        passes = self._passes.get(offset)
        if passes is None:
            return 0, ""
        last = passes.by_place[max(passes.by_place)]
        error = f"{last.by}: {last.failure.error_class}: {last.failure.message}"
        return len(passes.by_place), error

    def forget(self, below: int) -> None:
        """Forget what concerns operations that nobody asks about any more."""
        self._found = {at: found for at, found in self._found.items() if at >= below}
        self._passes = {at: passes for at, passes in self._passes.items() if at >= below}


def responsible(ring_order: Sequence[str], origin: str, passes: Mapping[str, int]) -> str:
    """Return the cluster that is to compute an operation's rows, as the log has it.

    The origin; if it passed, the next one in ring order; those that passed least often first. A
    silent cluster is not skipped here: the cluster that waits for it takes over.
    """
    order = [origin, *ring_order]
    if origin in ring_order:
        at = ring_order.index(origin)
        order = [*ring_order[at:], *ring_order[:at]]
    return min(order, key=lambda name: passes.get(name, 0))


def exhausted(trying: Collection[str], passes: Mapping[str, int], attempts_max: int) -> bool:
    """True if each cluster that can try has tried so often that the query itself is at fault."""
    return all(passes.get(name, 0) >= attempts_max for name in trying)
