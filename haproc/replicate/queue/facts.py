"""What is kept about operations and requests, and what is stored with the cursor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from haproc.classify.model import Kind, OperationClass
from haproc.engine.arrow import rows_in
from haproc.engine.statement import ArrowRows, SparkPlan, SqlText
from haproc.membership.state import Divergence, Undecided
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.progress import JUDGING_MAX, CopyRequest, Progress
from haproc.replicate.records.rows import ComputedPlan, QueryWrite, SessionRef, Write

# The fate of an operation that was to be revoked.


class Fate(StrEnum):
    """The result of a request to revoke an operation.

    Also to revoke a statement: clients cannot know if their statement has become an operation.
    """

    CANCELED = "canceled"
    """The statement was stopped before anything of it was in the log."""
    ENDED = "ended"
    """The statement had ended already: its state shows the outcome."""

    REVOKED = "revoked"
    """The operation has no effect on any cluster, now or later."""
    COMMITTED = "committed"
    """Too late: a cluster has committed the operation, so all clusters apply it."""
    REJECTED = "rejected"
    """The operation was rejected for another reason, or had an application error."""
    UNDECIDED = "undecided"
    """No cluster is known to have applied the operation, but not all have answered: it goes on."""


@dataclass(frozen=True, slots=True)
class Revoked:
    """The answer to a request to revoke. ``offset``: of the operation; ``text``: a message."""

    offset: int | None
    fate: Fate
    text: str = ""


class Notes:
    """Facts stored with the cursor beside the queue's own progress; `Progress` describes each."""

    def __init__(self) -> None:
        self.resume(Progress())

    def resume(self, progress: Progress) -> None:
        """Begin from a stored progress."""
        self._diverged = progress.diverged
        self._undecided = progress.undecided
        self._born = progress.born
        self._judging = set(progress.judging)
        self._storage = progress.storage
        self._copying = progress.copying
        self._lineage = progress.lineage
        self._ahead = progress.ahead

    def beside(self, progress: Progress) -> Progress:
        """Return the queue's ``progress`` with these facts added to it."""
        return replace(
            progress,
            diverged=self._diverged,
            undecided=self._undecided,
            born=self._born,
            judging=self.judging[-JUDGING_MAX:],
            storage=self._storage,
            copying=self._copying,
            lineage=self._lineage,
            ahead=self._ahead if progress.low <= self._ahead else -1,
        )

    @property
    def born(self) -> int:
        """The claim of the first process that began without a cursor."""
        return self._born

    @property
    def storage(self) -> str:
        """The id of the cluster's storage, to which these facts belong."""
        return self._storage

    def belongs_to(self, storage: str) -> None:
        """Set the id of the storage."""
        self._storage = storage

    @property
    def lineage(self) -> tuple[tuple[str, int], ...]:
        """The clusters from which these tables were copied before."""
        return self._lineage

    def was(self, offset: int) -> str:
        """Return the cluster that applied the operation to these tables; empty: this one."""
        return next((name for name, below in self._lineage if offset < below), "")

    def idle(self, low: int) -> bool:
        """True if nothing is to be copied, and no table is ahead of a cursor."""
        return self._copying is None and self._ahead < low

    @property
    def copying(self) -> CopyRequest | None:
        """The requested copy of another cluster's tables, if there is one."""
        return self._copying

    def copy(self, request: CopyRequest | None) -> None:
        """Set the requested copy; None: there is none any more."""
        self._copying = request

    @property
    def diverged(self) -> Divergence | None:
        """This cluster's difference from the others."""
        return self._diverged

    def mark_diverged(self, divergence: Divergence) -> Divergence:
        """Note that this cluster differs from the others; return the whole difference."""
        self._diverged = divergence.joined(self._diverged)
        return self._diverged

    def mark_verified(self, marker: int) -> None:
        """Forget a difference found at or before a verification with equal tables."""
        if self._diverged is not None and self._diverged.offset <= marker:
            self._diverged = None

    @property
    def undecided(self) -> Undecided | None:
        """A difference between clusters without a proof of which one is wrong."""
        return self._undecided

    def mark_undecided(self, undecided: Undecided) -> Undecided:
        """Note that clusters differ; return the newest such difference."""
        if self._undecided is None or self._undecided.offset <= undecided.offset:
            self._undecided = undecided
        return self._undecided

    def decide(self, marker: int) -> Undecided | None:
        """Forget a difference at or before a verification that decided; return any later one."""
        if self._undecided is not None and self._undecided.offset <= marker:
            self._undecided = None
        return self._undecided

    @property
    def judging(self) -> tuple[int, ...]:
        """The offsets of the operations whose outcomes are to be compared with other clusters'."""
        return tuple(sorted(self._judging))

    def judge(self, offset: int) -> None:
        """Note that an operation's outcome is to be compared with the other clusters'."""
        self._judging.add(offset)

    def judged(self, offset: int) -> None:
        """Note that an operation's outcome has been compared with the other clusters'."""
        self._judging.discard(offset)


class Form(StrEnum):
    """The form of a write in the log."""

    TEXT = "text"
    ROWS = "rows"
    PLAN = "plan"
    COMPUTED = "computed rows"
    """One cluster computes the rows; another record contains them."""


def _form(write: Write) -> Form:
    match write:
        case SqlText():
            return Form.TEXT
        case SparkPlan():
            return Form.PLAN
        case QueryWrite() | ComputedPlan():
            return Form.COMPUTED
        case _:
            return Form.ROWS


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about an operation that are kept while its request may be repeated.

    The fields are those of `Operation`, unless stated otherwise. Texts and rows are not kept: for a
    window of requests these would be gigabytes, and the log has them.
    """

    id: str
    user: str
    fingerprint: str
    operation_class: OperationClass
    origin: str
    unmarked: bool
    created_ms: int
    rows: int | None
    """The number of rows that the operation writes; None if its record does not state it."""
    of_session: bool
    """True if the operation's query depends on its client's session."""
    session: SessionRef | None
    """That session at the time of the query, if it can be built again."""
    kind: Kind
    writes: frozenset[str]
    form: Form

    @classmethod
    def of(cls, op: Operation) -> Facts:
        """Return the kept facts about an operation."""
        write, rows = op.write, op.insert.rows if op.insert is not None else None
        of_session, session = False, None
        match write:
            case ArrowRows() if write.rows:
                rows = rows_in(write.rows)
            case QueryWrite() | ComputedPlan() if write.session is not None:
                of_session, session = True, write.session
            case QueryWrite():
                of_session = write.of_session
        return cls(
            op.id,
            op.user,
            op.fingerprint,
            op.operation_class,
            op.origin,
            op.unmarked,
            op.created_ms,
            rows,
            of_session,
            session,
            op.kind,
            op.writes,
            _form(write),
        )

    @property
    def key(self) -> tuple[str, str]:
        """The key of the operation's request: user and request id."""
        return self.user, self.id
