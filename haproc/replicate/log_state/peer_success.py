"""Peer success tracking: which operations are known to have succeeded on another cluster.

Also: which clusters have reported an error on an operation.

A cluster stores a cursor beyond an operation only once a record about it is in the log where it did
not simply succeed there: a report of its error, a skip, a word that it cannot be applied. So
whoever has heard all control records up to an end of the log that was asked for *after* the cursor
was read, and none of them is about an operation below that cursor, knows that it succeeded.
"""

from __future__ import annotations

from haproc.replicate.records.contents import Skip
from haproc.replicate.records.operation import FailureReport, Filler, Message
from haproc.replicate.records.votes import Abandon, FailureVote, VoteWithdrawal


class PeerSuccess:
    """See the module."""

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
        """Some cluster had stored this cursor, and all control records since then are heard."""
        self._below = max(self._below, below)

    def succeeded(self, offset: int) -> bool:
        """Whether an operation is known to have succeeded."""
        return offset < self._below and offset not in self._with_control_record

    def failed(self, offset: int, cluster: str) -> int | None:
        """Return the epoch of the newest process of a cluster that reported its error on it."""
        return self._failed.get(offset, {}).get(cluster)

    def has_control_record(self, offset: int) -> bool:
        """Whether an operation is known not to have simply succeeded somewhere."""
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
