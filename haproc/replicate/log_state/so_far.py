"""All facts from the records read so far, with the first decision on each synchronous operation."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from haproc.replicate.log_state.computations import Computations, PeerSuccess
from haproc.replicate.log_state.definitions import Definitions, Written
from haproc.replicate.log_state.failure_votes import FailureVotes
from haproc.replicate.log_state.idempotency_window import Past
from haproc.replicate.log_state.members import Claims, StoredCursors
from haproc.replicate.records.operation import DecisionKind
from haproc.replicate.records.rows import ApplicationFailure

# The first decision on each synchronous operation, and the tasks that await it.


class Decisions:
    """The first decision in the log on each synchronous operation; tasks can wait for one."""

    def __init__(self) -> None:
        self._first: dict[int, DecisionKind] = {}
        self._failures: dict[int, ApplicationFailure] = {}
        self._waiting: dict[int, asyncio.Event] = {}

    def see(
        self, offset: int, verdict: DecisionKind, failure: ApplicationFailure | None = None
    ) -> bool:
        """Note a decision on the operation at ``offset``; False if it is not the first one."""
        if offset in self._first:
            return False
        self._first[offset] = verdict
        if failure is not None:
            self._failures[offset] = failure
        if event := self._waiting.pop(offset, None):
            event.set()
        return True

    def get(self, offset: int) -> DecisionKind | None:
        """Return the decision on the operation; None if none was read so far."""
        return self._first.get(offset)

    def failure(self, offset: int) -> ApplicationFailure | None:
        """Return the error for which the operation was rejected; None if the decision has none."""
        return self._failures.get(offset)

    def forget(self, below: int) -> None:
        """Forget operations below an offset: nothing will ask about them."""
        if self._first and next(iter(self._first)) < below:
            self._first = {o: verdict for o, verdict in self._first.items() if o >= below}
            self._failures = {o: failure for o, failure in self._failures.items() if o >= below}

    async def wait(self, offset: int) -> DecisionKind:
        """Wait for the decision on the operation at ``offset``, and return it."""
        while offset not in self._first:
            await self._waiting.setdefault(offset, asyncio.Event()).wait()
        return self._first[offset]


@dataclass(frozen=True, slots=True, eq=False)
class LogState:
    """All facts from the records read so far, except the operations in the queue.

    The reader of the log notes the records; the parts of the replica look the facts up.
    """

    decisions: Decisions
    """The decisions on synchronous operations."""
    computations: Computations
    """Where the log has the rows of operations."""
    failure_votes: FailureVotes
    """The votes on operations that cannot be applied, or were revoked."""
    claims: Claims
    """The claims on each cluster, which tell whose records are valid."""
    definitions: Definitions
    """The tables, views and functions that were redefined lately."""
    past: Past
    """Where the log ended at earlier times."""
    peer_success: PeerSuccess
    """The operations that have succeeded on another cluster."""
    written: Written
    """The offset of each table's newest write."""
    cursors: StoredCursors
    """Tells which stored cursors of the other clusters are valid."""

    @classmethod
    def nothing(cls, window_records: int) -> LogState:
        """Return the facts before any record was read: none."""
        definitions, past = Definitions(window_records), Past(window_records)
        claims = Claims()
        return cls(
            Decisions(),
            Computations(),
            FailureVotes(),
            claims,
            definitions,
            past,
            PeerSuccess(),
            Written(),
            StoredCursors(claims),
        )

    def forget(self, below: int) -> None:
        """Forget the facts about operations below an offset: nothing will ask about them."""
        for each in (self.decisions, self.computations, self.failure_votes, self.peer_success):
            each.forget(below)
