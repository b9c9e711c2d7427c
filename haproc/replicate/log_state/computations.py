"""Other clusters' results according to the log: operations that succeeded, and computed rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from haproc.replicate.records.control import Abandon, FailureVote, Skip, VoteWithdrawal
from haproc.replicate.records.operation import FailureReport, Filler, Message
from haproc.replicate.records.rows import ApplicationFailure, Passed, Rows


class PeerSuccess:
    """Peer success tracking: the operations that are known to have succeeded on another cluster.

    Also: the clusters that have reported an error on an operation.

    If an operation does not simply succeed on a cluster, a control record about it is in the log
    before the cluster stores a cursor beyond it: an error report, a skip, a failure vote. So a
    HAProc reads the cursor first, then looks up the log's end, and reads all control records up to
    that end. If it finds none about an operation below the cursor, the operation succeeded there.
    """

    def __init__(self) -> None:
        self._below = 0
        self._with_control_record: set[int] = set()
        self._failed: dict[int, dict[str, int]] = {}

    def record(self, message: Message | Filler) -> None:
        """Note a control record. The order does not matter, and repetitions change nothing."""
        if isinstance(message, FailureReport | Skip | FailureVote | VoteWithdrawal | Abandon):
            self._with_control_record.add(message.offset)
        if isinstance(message, FailureReport):
            reported = self._failed.setdefault(message.offset, {})
            reported[message.cluster] = max(message.epoch, reported.get(message.cluster, -1))

    def passed(self, below: int) -> None:
        """Note a cursor that a cluster has stored. All control records since then must be read."""
        self._below = max(self._below, below)

    def succeeded(self, offset: int) -> bool:
        """True if an operation is known to have succeeded."""
        return offset < self._below and offset not in self._with_control_record

    def failed(self, offset: int, cluster: str) -> int | None:
        """Return the epoch of the cluster's newest process that reported an error, if any did."""
        return self._failed.get(offset, {}).get(cluster)

    def has_control_record(self, offset: int) -> bool:
        """True if a control record shows that some cluster did not simply apply the operation."""
        return offset in self._with_control_record

    def forget(self, below: int) -> None:
        """Forget operations below an offset: they are not asked about any more."""
        if len(self._with_control_record) > 1:
            self._with_control_record = {
                offset for offset in self._with_control_record if offset >= below
            }
            self._failed = {
                offset: each for offset, each in self._failed.items() if offset >= below
            }


# The log's facts about operations' rows, and the cluster that must compute them. Values in, values
# out.


@dataclass(frozen=True, slots=True)
class RowsLocation:
    """The place of an operation's rows: the offset of their record, and their number.

    With a ``failure`` the operation has no rows: this error is the result of its query.
    """

    place: int
    count: int
    failure: ApplicationFailure | None


class Computations:
    """The operations' rows, as far as the log was read. The rows themselves stay in the log."""

    def __init__(self) -> None:
        self._found: dict[int, RowsLocation] = {}
        self._passes: dict[int, dict[int, Passed]] = {}
        """By operation, its ``passed`` records by their own offsets."""

    def see(self, place: int, rows: Rows) -> bool:
        """Note a ``rows`` record at offset ``place``; False if it is not its operation's first."""
        if rows.offset in self._found:
            return False
        self._found[rows.offset] = RowsLocation(place, rows.count, rows.failure)
        self._passes.pop(rows.offset, None)
        return True

    def see_passed(self, place: int, passed: Passed) -> None:
        """Note a ``passed`` record at offset ``place``; the same again changes nothing."""
        if passed.offset not in self._found:
            self._passes.setdefault(passed.offset, {})[place] = passed

    def found(self, offset: int) -> RowsLocation | None:
        """Return the location of the rows of the operation at this offset, if the log has them."""
        return self._found.get(offset)

    def passes(self, offset: int) -> Mapping[str, int]:
        """Return by cluster how many times it could not compute the rows of this operation."""
        return Counter(passed.by for passed in self._passes.get(offset, {}).values())

    def trouble(self, offset: int) -> tuple[int, str]:
        """Return the number of failures of this operation's query, and the last error as text."""
        passes = self._passes.get(offset)
        if passes is None:
            return 0, ""
        last = passes[max(passes)]
        return len(passes), f"{last.by}: {last.failure.error_class}: {last.failure.message}"

    def forget(self, below: int) -> None:
        """Forget operations below an offset: they are not asked about any more."""
        self._found = {at: found for at, found in self._found.items() if at >= below}
        self._passes = {at: passes for at, passes in self._passes.items() if at >= below}


def responsible(ring_order: Sequence[str], origin: str, passes: Mapping[str, int]) -> str:
    """Return the cluster that must compute an operation's rows, by the log.

    It is the origin; if that could not compute them, the next cluster in ring order. Those that
    failed least often come first. A silent cluster is not skipped here: another one takes over.
    """
    order = [origin, *ring_order]
    if origin in ring_order:
        at = ring_order.index(origin)
        order = [*ring_order[at:], *ring_order[:at]]
    return min(order, key=lambda name: passes.get(name, 0))


def exhausted(trying: Collection[str], passes: Mapping[str, int], attempts_max: int) -> bool:
    """True if each cluster that can try has tried so often that the query itself is at fault."""
    return all(passes.get(name, 0) >= attempts_max for name in trying)
