"""Finds from the log alone which operations were applied, with what outcome on each cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from dmq import Entry, KeyValueStore
from haproc.failure import ErrorClass
from haproc.replicate.log_state.definitions import Definitions, records_needed
from haproc.replicate.log_state.failure_votes import FailureVotes, abandoned_class
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
    """Stores the offset below which all operations are in the archive, a table of the ring.

    It is in the key-value store, so it outlives the archive's program and every HAProc. If two
    store it at the same time, the lower one may stay: then the log keeps more than it has to.

    The methods raise LogError.
    """

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store

    async def read_archived_offset(self) -> int:
        """Return the offset below which all is archived; 0 if nothing is."""
        kept = await self._store.get(_KEY)
        return 0 if kept is None else int(kept.value)

    async def move(self, below: int) -> None:
        """Store that all below an offset is archived; nothing changes if a higher one is stored."""
        if below > await self.read_archived_offset():
            await self._store.put(_KEY, str(below).encode())


KNOWN_MAX: Final = 100_000
"""The most operations of which outcomes are remembered: some tens of megabytes."""


class ArchivedStatus(StrEnum):
    """The outcome of an operation on a cluster, as the archive shows it."""

    APPLIED = "applied"
    FAILED = "failed"
    """It had an application error on this cluster."""
    REJECTED = "rejected"
    """The ring decided that no cluster applies it, or revoked it."""
    SKIPPED = "skipped"
    """An operator had this cluster skip it."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The outcome of an operation on one cluster; ``error``: the error's class; empty: none."""

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
    """Finds the outcomes of operations on each cluster from the log. Values in, values out.

    An operation was applied by every cluster with a cursor beyond it, unless a later record shows
    another outcome. A decision, an error in place of its rows, or an ``abandon`` rejects it on all
    clusters. A report shows an error on one cluster, a skip shows that one cluster skipped it. Each
    of these records is in the log before the cluster stores a cursor beyond the operation. So read
    the cursors first, then ask for the log's end, and pass all control records up to it to `note`:
    then every outcome below the cursors is known.

    Few operations have such records. If too many have, only the first ones are remembered, and
    nothing is known from `known_below` on: read these records again later.

    ``begin``: nobody asks about operations below this offset.
    """

    def __init__(self, begin: int, claims: Claims, known_max: int = KNOWN_MAX) -> None:
        self._begin = begin
        self._claims = claims
        self._known_max = known_max
        self._known: dict[int, _Known] = {}
        self._failure_votes = FailureVotes()
        self._failure_votes.begin(begin)
        self.known_below: int | None = None
        """The offset from which on outcomes are forgotten, because there were too many; None: none
        are."""

    def note(self, at: int, message: Message | Filler) -> None:
        """Use the record at offset ``at``.

        All control records must be given, in the log's order.
        """
        match message:
            case Claim():
                self._claims.see(at, message.cluster)
            case Roster():
                leaves = message.cluster if message.change is Change.LEAVE else ""
                self._failure_votes.members_changed(at, leaves)
            case FailureVote() | VoteWithdrawal() | Abandon() | Revoke():
                if self._failure_votes.record(at, message, self._claims):
                    assert isinstance(message, Abandon)
                    self._abandon(message.offset, abandoned_class(message))
            case Decision() if not self._void(at, message.by, message.epoch):
                rejected = message.verdict is DecisionKind.REJECT
                error_class = (
                    message.failure.error_class if message.failure else ErrorClass.REJECTED
                )
                self._settle(message.offset, error_class if rejected else "")
            case Rows() if not self._void(at, message.by, message.epoch):
                self._computed(message)
            case FailureReport() if not self._void(at, message.cluster, message.epoch):
                ending = Ending(ArchivedStatus.FAILED, message.failure.error_class)
                self._end(message.offset, message.cluster, ending)
            case Skip() if not self._void(at, message.cluster, message.epoch):
                self._end(message.offset, message.cluster, Ending(ArchivedStatus.SKIPPED))

    def _void(self, at: int, cluster: str, epoch: int) -> bool:
        return self._claims.void(at, cluster, epoch)

    def _settle(self, offset: int, rejected: str) -> None:
        known = self._of(offset)
        if known is not None and not known.settled:
            known.settled, known.rejected = True, rejected

    def _abandon(self, offset: int, rejected: str) -> None:
        """Set an operation to rejected by an ``abandon``, even after a decision that let it run."""
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
        """Forget operations below an offset: nothing will ask about them."""
        self._begin = max(self._begin, below)
        self._failure_votes.forget(below)
        if self._known:
            self._known = {at: known for at, known in self._known.items() if at >= below}

    def endings(self, offset: int, clusters: Collection[str]) -> dict[str, Ending] | None:
        """Return the operation's outcome on each of the clusters; None: all have applied it."""
        known = self._known.get(offset)
        if known is None or not (known.rejected or known.by_cluster):
            return None
        if known.rejected:
            return dict.fromkeys(clusters, Ending(ArchivedStatus.REJECTED, known.rejected))
        return {name: known.by_cluster.get(name, APPLIED) for name in clusters}

    def rows(self, offset: int) -> int | None:
        """Return how many rows the operation's query gave.

        None if the log has no ``rows`` record.
        """
        known = self._known.get(offset)
        return None if known is None else known.rows


def known_from(position: int, window_records: int) -> int:
    """Return the offset from which on the log must be read to judge records at ``position``."""
    return max(0, position - records_needed(window_records))


class Account:
    """Judges the operations of the log again, and finds their outcomes. Values in, values out.

    It has two positions. Control records are noted ahead (`note`), up to the log's end. Operations
    are judged later (`take`), up to the lowest cursor. `haproc.replicate.archive.pages` reads the
    log for it.

    ``begin``: the offset from which on `take` returns operations. ``read_from``: the offset of the
    first record that it is given. ``claims``: each cluster's newest claim below ``read_from``.
    """

    def __init__(
        self, begin: int, read_from: int, window_records: int, claims: Iterable[tuple[str, int]]
    ) -> None:
        self.begin = begin
        self.position = read_from
        self.noted_to = read_from
        self.last_shown = begin - 1
        """The offset of the newest operation that a page shows."""
        self._definitions = Definitions(window_records)
        self._definitions.begin(read_from)
        self._judge = Judge(IdempotencyWindow(window_records), self._definitions)
        self._window_records = window_records
        self.fates = Fates(begin, Claims(claims))

    def note(self, entries: Iterable[Entry]) -> None:
        """Use the control records among these entries; entries below `noted_to` are ignored."""
        for entry in entries:
            if entry.offset < self.noted_to:
                continue
            if entry.record.kind != OPERATION:
                self.fates.note(entry.offset, from_record(entry.record))
            self.noted_to = entry.offset + 1

    def take(self, entry: Entry) -> Operation | None:
        """Judge the next entry of the log; return its operation if clusters apply it.

        None for control records, repetitions, and operations that every cluster passes over.
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
            )  # too little of the log is left to know: show it rather than lose it
        return op if judgement is RecordJudgement.NEW and entry.offset >= self.begin else None

    def shown(self, offset: int) -> None:
        """Note that a page shows the operation at this offset."""
        self.last_shown = offset

    def go_on_from(self, offset: int) -> None:
        """Forget everything below an offset.

        The next entry that `take` gets is the one at this offset.
        """
        self.begin, self.position = max(self.begin, offset), offset
        self.fates.forget(self.begin)

    def stands_at(self, offset: int) -> bool:
        """True if the next page can begin at this offset without reading earlier records again.

        All before it is judged, and no operation from it on is on a page.
        """
        return self.last_shown < offset <= self.position
