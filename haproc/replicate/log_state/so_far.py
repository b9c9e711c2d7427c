"""All that the log has said so far, beside the operations in the queue."""

from __future__ import annotations

from dataclasses import dataclass

from haproc.replicate.log_state.claims import Claims
from haproc.replicate.log_state.computations import Computations
from haproc.replicate.log_state.cursors import StoredCursors
from haproc.replicate.log_state.decisions import Decisions
from haproc.replicate.log_state.definitions import Definitions
from haproc.replicate.log_state.failure_votes import FailureVotes
from haproc.replicate.log_state.past import Past
from haproc.replicate.log_state.peer_success import PeerSuccess
from haproc.replicate.log_state.written import Written


@dataclass(frozen=True, slots=True, eq=False)
class LogState:
    """See the module. The reader records what the log says; the parts of the replica ask for it."""

    decisions: Decisions
    """What became of synchronous operations."""
    computations: Computations
    """Operations' rows."""
    failure_votes: FailureVotes
    """Operations that clusters cannot apply."""
    claims: Claims
    """Which incarnation speaks for which cluster."""
    definitions: Definitions
    """What was defined anew."""
    past: Past
    """Where the log ended, and when."""
    peer_success: PeerSuccess
    """Operations that other clusters have passed."""
    written: Written
    """Which tables are written."""
    cursors: StoredCursors
    """What others' cursors say."""

    @classmethod
    def nothing(cls, window_records: int) -> LogState:
        """Return what is known before anything was read."""
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
        """Forget what concerns operations that nobody asks about any more."""
        for each in (self.decisions, self.computations, self.failure_votes, self.peer_success):
            each.forget(below)
