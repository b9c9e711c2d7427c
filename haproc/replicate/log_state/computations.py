"""What the log says of other clusters' work: operations that succeeded, and computed rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from haproc.replicate.records.control import Abandon, FailureVote, Skip, VoteWithdrawal
from haproc.replicate.records.operation import FailureReport, Filler, Message
from haproc.replicate.records.rows import ApplicationFailure, Passed, Rows


class PeerSuccess:
    """Finds the operations that have succeeded on another cluster.

    It also knows which cluster has reported an error of an operation.

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
        """Note a control record, in any order; the same record again changes nothing."""
        if isinstance(message, FailureReport | Skip | FailureVote | VoteWithdrawal | Abandon):
            self._with_control_record.add(message.offset)
        if isinstance(message, FailureReport):
            reported = self._failed.setdefault(message.offset, {})
            reported[message.cluster] = max(message.epoch, reported.get(message.cluster, -1))

    def passed(self, below: int) -> None:
        """Note that a cluster has stored a cursor at ``below``.

        All control records up to the log's end at that time must be noted before.
        """
        self._below = max(self._below, below)

    def succeeded(self, offset: int) -> bool:
        """True if the operation at ``offset`` is known to have succeeded on another cluster."""
        return offset < self._below and offset not in self._with_control_record

    def failed(self, offset: int, cluster: str) -> int | None:
        """Return the epoch of the cluster's newest process that reported an error of the operation.

        None if the cluster reported none.
        """
        return self._failed.get(offset, {}).get(cluster)

    def has_control_record(self, offset: int) -> bool:
        """True if a control record says that some cluster did not simply apply the operation."""
        return offset in self._with_control_record

    def forget(self, below: int) -> None:
        """Forget operations below an offset: nothing will ask about them."""
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
    """Where the log has an operation's rows: the offset of the ``rows`` record, and their number.

    With a ``failure`` there are no rows: their query had this error.
    """

    place: int
    count: int
    failure: ApplicationFailure | None


class Computations:
    """Where the log has the rows of operations, as far as it was read; the rows stay in the log."""

    def __init__(self) -> None:
        self._found: dict[int, RowsLocation] = {}
        self._passes: dict[int, dict[int, Passed]] = {}
        """By operation, its ``passed`` records, by their own offsets."""

    def see(self, place: int, rows: Rows) -> bool:
        """Note a ``rows`` record at offset ``place``; False if its operation has an earlier one."""
        if rows.offset in self._found:
            return False
        self._found[rows.offset] = RowsLocation(place, rows.count, rows.failure)
        self._passes.pop(rows.offset, None)
        return True

    def see_passed(self, place: int, passed: Passed) -> None:
        """Note a ``passed`` record at offset ``place``; the same record again changes nothing."""
        if passed.offset not in self._found:
            self._passes.setdefault(passed.offset, {})[place] = passed

    def found(self, offset: int) -> RowsLocation | None:
        """Return where the rows of the operation at ``offset`` are.

        None if the log has none so far.
        """
        return self._found.get(offset)

    def passes(self, offset: int) -> Mapping[str, int]:
        """Return, by cluster, how often it could not compute the rows of the operation."""
        return Counter(passed.by for passed in self._passes.get(offset, {}).values())

    def trouble(self, offset: int) -> tuple[int, str]:
        """Return how often clusters could not compute the operation's rows, and the last error."""
        passes = self._passes.get(offset)
        if passes is None:
            return 0, ""
        last = passes[max(passes)]
        return len(passes), f"{last.by}: {last.failure.error_class}: {last.failure.message}"

    def forget(self, below: int) -> None:
        """Forget operations below an offset: nothing will ask about them."""
        self._found = {at: found for at, found in self._found.items() if at >= below}
        self._passes = {at: passes for at, passes in self._passes.items() if at >= below}


def responsible(ring_order: Sequence[str], origin: str, passes: Mapping[str, int]) -> str:
    """Return the cluster that must compute an operation's rows, by the records in the log.

    It is the origin; if that could not compute them, the next cluster in ring order. Those that
    failed least often come first. A silent cluster is not left out here: if it does not compute
    them, another one takes over. ``passes``: as `Computations.passes` returns it.
    """
    order = [origin, *ring_order]
    if origin in ring_order:
        at = ring_order.index(origin)
        order = [*ring_order[at:], *ring_order[:at]]
    return min(order, key=lambda name: passes.get(name, 0))


def exhausted(trying: Collection[str], passes: Mapping[str, int], attempts_max: int) -> bool:
    """True if each cluster in ``trying`` failed so often that the query itself must be wrong."""
    return all(passes.get(name, 0) >= attempts_max for name in trying)
