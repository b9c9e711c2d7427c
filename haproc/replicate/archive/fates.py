"""What became of operations on each cluster, as the log tells it. Values in, values out.

An operation was applied by every cluster that is past it, unless a record behind it says otherwise:
a decision, an error in place of its rows or the ring's word reject it everywhere; a report says
that one cluster met an error; an operator has one pass over it. Each of those stands in the log
before the cluster that it concerns stores a cursor beyond the operation. So whoever hears all
control records up to an end of the log that was asked for after the cursors knows every fate below
them.

Few operations need a word. Where too many do, those that stand first are remembered, and nothing is
said of what stands at `known_below` or behind it: hear it again once the first are dealt with.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from haproc.failure import ErrorClass
from haproc.replicate.log_state.claims import Claims
from haproc.replicate.log_state.failure_votes import FailureVotes, given_up_as
from haproc.replicate.records.contents import Skip
from haproc.replicate.records.members import Change, Roster
from haproc.replicate.records.operation import (
    Claim,
    Decision,
    DecisionKind,
    FailureReport,
    Filler,
    Message,
    Operation,
)
from haproc.replicate.records.rows import Rows
from haproc.replicate.records.votes import Abandon, FailureVote, Revoke, VoteWithdrawal

KNOWN_MAX: Final = 100_000
"""Operations of which something is remembered: some tens of megabytes."""


class ArchivedStatus(StrEnum):
    """How an operation ended on a cluster."""

    APPLIED = "applied"
    FAILED = "failed"
    """It met an application error there."""
    REJECTED = "rejected"
    """The ring decided against it; it had no effect anywhere."""
    SKIPPED = "skipped"
    """An operator had it passed over there."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How an operation ended on one cluster; ``error``: its class, or empty."""

    status: ArchivedStatus
    error: str = ""


APPLIED: Final = Ending(ArchivedStatus.APPLIED)


@dataclass(slots=True)
class _Known:
    settled: bool = False
    rejected: str = ""
    rows: int | None = None
    by_cluster: dict[str, Ending] = field(default_factory=dict)


class Fates:
    """See the module. ``begin``: what stands before that is not asked for."""

    def __init__(self, begin: int, claims: Claims, known_max: int = KNOWN_MAX) -> None:
        self._begin = begin
        self._claims = claims
        self._known_max = known_max
        self._known: dict[int, _Known] = {}
        self._failure_votes = FailureVotes()
        self._failure_votes.begin(begin)
        self.known_below: int | None = None
        """Where too many were heard of: those from there on are forgotten."""

    def hear(self, at: int, message: Message | Filler) -> None:
        """Take in a record at its place; all of them, in order, or all but the operations."""
        match message:
            case Claim():
                self._claims.see(at, message.cluster)
            case Roster():
                leaves = message.cluster if message.change is Change.LEAVE else ""
                self._failure_votes.members_changed(at, leaves)
            case FailureVote() | VoteWithdrawal() | Abandon() | Revoke():
                if self._failure_votes.record(at, message, self._claims):
                    assert isinstance(message, Abandon)
                    self._give_up(message.offset, given_up_as(message))
            case Decision() if not self._void(at, message.by, message.epoch):
                rejected = message.verdict is DecisionKind.REJECT
                told = message.failure.error_class if message.failure else ErrorClass.REJECTED
                self._settle(message.offset, told if rejected else "")
            case Rows() if not self._void(at, message.by, message.epoch):
                self._computed(message)
            case FailureReport() if not self._void(at, message.cluster, message.epoch):
                ending = Ending(ArchivedStatus.FAILED, message.failure.error_class)
                self._end(message.offset, message.cluster, ending)
            case Skip() if not self._void(at, message.cluster, message.epoch):
                self._end(message.offset, message.cluster, Ending(ArchivedStatus.SKIPPED))
            case Operation() | _:
                pass

    def _void(self, at: int, cluster: str, epoch: int) -> bool:
        return self._claims.void(at, cluster, epoch)

    def _settle(self, offset: int, rejected: str) -> None:
        known = self._of(offset)
        if known is not None and not known.settled:
            known.settled, known.rejected = True, rejected

    def _give_up(self, offset: int, rejected: str) -> None:
        """The ring has given up what its origin, or who took over for it, may have let run."""
        known = self._of(offset)
        if known is not None:
            known.settled, known.rejected = True, rejected

    def _computed(self, rows: Rows) -> None:
        known = self._of(rows.offset)
        if known is None or known.rows is not None:
            return
        known.rows = rows.count
        if rows.failure is not None:
            self._settle(rows.offset, rows.failure.error_class)

    def _end(self, offset: int, cluster: str, ending: Ending) -> None:
        known = self._of(offset)
        if known is not None:
            known.by_cluster[cluster] = ending

    def _of(self, offset: int) -> _Known | None:
        if offset < self._begin or (self.known_below is not None and offset >= self.known_below):
            return None
        known = self._known.get(offset)
        if known is None:
            known = self._known[offset] = _Known()
            if len(self._known) > self._known_max:
                self._keep_the_first()
                return self._known.get(offset)
        return known

    def _keep_the_first(self) -> None:
        below = sorted(self._known)[self._known_max // 2]
        self._known = {at: known for at, known in self._known.items() if at < below}
        self.known_below = below

    def forget(self, below: int) -> None:
        """Forget what is dealt with."""
        self._begin = max(self._begin, below)
        self._failure_votes.forget(below)
        if self._known:
            self._known = {at: known for at, known in self._known.items() if at >= below}

    def endings(self, offset: int, clusters: Collection[str]) -> dict[str, Ending] | None:
        """Return how an operation ended on each cluster; None: it was applied by all."""
        known = self._known.get(offset)
        if known is None or not (known.rejected or known.by_cluster):
            return None
        if known.rejected:
            return dict.fromkeys(clusters, Ending(ArchivedStatus.REJECTED, known.rejected))
        return {name: known.by_cluster.get(name, APPLIED) for name in clusters}

    def rows(self, offset: int) -> int | None:
        """Return how many rows an operation's query gave, if it was computed."""
        known = self._known.get(offset)
        return None if known is None else known.rows
