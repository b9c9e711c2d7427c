"""The log read once more, from a place in the past on: what counts, and what became of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from dmq import Entry, KeyValueStore
from haproc.failure import ErrorClass
from haproc.replicate.log_state.definitions import Definitions, records_needed
from haproc.replicate.log_state.failure_votes import FailureVotes, given_up_as
from haproc.replicate.log_state.idempotency_window import (
    IdempotencyWindow,
    Judge,
    RecordJudgement,
    WindowTooSmallError,
)
from haproc.replicate.log_state.members import Claims
from haproc.replicate.records.control import (
    Abandon,
    Change,
    FailureVote,
    Fence,
    Revoke,
    Roster,
    Skip,
    VoteWithdrawal,
)
from haproc.replicate.records.operation import (
    FENCE,
    OPERATION,
    Claim,
    Decision,
    DecisionKind,
    FailureReport,
    Filler,
    Message,
    Operation,
    from_record,
)
from haproc.replicate.records.rows import Rows

_KEY: Final = "archive/position"


class ArchivePosition:
    """How far the archive is, as the ring knows it: all below is in a table of the ring.

    Kept in the key-value store, so that it outlives the archive's program and every HAProc. Of
    two that store it at a time the lower one may stay: then the log keeps more than it had to.

    Its methods raise LogError."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store

    async def read(self) -> int:
        """Return the offset below which all is archived; 0 if nothing is."""
        kept = await self._store.get(_KEY)
        return 0 if kept is None else int(kept.value)

    async def move(self, below: int) -> None:
        """Note that all below an offset is archived; it never goes back."""
        if below > await self.read():
            await self._store.put(_KEY, str(below).encode())


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
    """What became of operations on each cluster, as the log tells it. Values in, values out.

    An operation was applied by every cluster that is past it, unless a record behind it says
    otherwise: a decision, an error in place of its rows or the ring's word reject it everywhere;
    a report says that one cluster met an error; an operator has one pass over it. Each of those
    stands in the log before the cluster that it concerns stores a cursor beyond the operation.
    So whoever hears all control records up to an end of the log that was asked for after the
    cursors knows every fate below them.

    Few operations need a word. Where too many do, those that stand first are remembered, and
    nothing is said of what stands at `known_below` or behind it: hear it again once the first
    are dealt with.

    ``begin``: what stands before that is not asked for."""

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


def known_from(position: int, window_records: int) -> int:
    """Return where reading has to begin to judge what stands at a place."""
    return max(0, position - records_needed(window_records))


class Account:
    """The log read once more, from a place in the past on: what counts, and how it ended.

    Two positions: control records are heard ahead, up to an end of the log, then operations are
    judged up to where every cluster is. Values in, values out; `haproc.replicate.archive.pages`
    reads.

    ``begin``: from where on it is told what counts.

    ``read_from``: the first record that it is shown; ``claims``: what is known of those before.
    """

    def __init__(
        self, begin: int, read_from: int, window_records: int, claims: Iterable[tuple[str, int]]
    ) -> None:
        self.begin = begin
        self.position = read_from
        self.heard_to = read_from
        self.last_told = begin - 1
        """The newest operation that was told."""
        self._definitions = Definitions(window_records)
        self._definitions.begin(read_from)
        self._judge = Judge(IdempotencyWindow(window_records), self._definitions)
        self._window_records = window_records
        self.fates = Fates(begin, Claims(claims))

    def hear(self, entries: Iterable[Entry]) -> None:
        """Take in the control records among what stands there; those heard before are passed."""
        for entry in entries:
            if entry.offset < self.heard_to:
                continue
            if entry.record.kind != OPERATION:
                self.fates.hear(entry.offset, from_record(entry.record))
            self.heard_to = entry.offset + 1

    def take(self, entry: Entry) -> Operation | None:
        """Take in what stands at ``position`` or next behind it; return an operation that counts.

        None for all else: control records, copies of a request, and what every cluster passes over.
        """
        self.position = entry.offset + 1
        if entry.record.kind not in (OPERATION, FENCE):
            return None
        op = from_record(entry.record)
        if isinstance(op, Fence):
            self._definitions.note(entry.offset, op)
            return None
        assert isinstance(op, Operation)
        try:
            judgement = self._judge.judge(entry.offset, op, self._window_records)
        except WindowTooSmallError:
            judgement = (
                RecordJudgement.NEW
            )  # the log began too late to tell: rather told than left out
        return op if judgement is RecordJudgement.NEW and entry.offset >= self.begin else None

    def told(self, offset: int) -> None:
        """An operation was told, and is not told again."""
        self.last_told = offset

    def go_on_from(self, offset: int) -> None:
        """What stands below this place is dealt with; `take` is shown next what stands there."""
        self.begin, self.position = max(self.begin, offset), offset
        self.fates.forget(self.begin)

    def stands_at(self, offset: int) -> bool:
        """True if reading can go on at ``offset``: all is read to there, none told from there."""
        return self.last_told < offset <= self.position
