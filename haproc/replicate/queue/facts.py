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
    """Facts that are stored with the cursor, besides the queue's progress; see `Progress`.

    Only the methods of this class change them.
    """

    def __init__(self) -> None:
        self.resume(Progress())

    def resume(self, progress: Progress) -> None:
        """Take over the facts of a stored progress."""
        self.diverged = progress.diverged
        self.undecided = progress.undecided
        self.born = progress.born
        self._judging = set(progress.judging)
        self.storage = progress.storage
        self.copying = progress.copying
        self.lineage = progress.lineage
        self._ahead = progress.ahead

    def beside(self, progress: Progress) -> Progress:
        """Return the queue's ``progress`` with these facts added to it."""
        return replace(
            progress,
            diverged=self.diverged,
            undecided=self.undecided,
            born=self.born,
            judging=self.judging[-JUDGING_MAX:],
            storage=self.storage,
            copying=self.copying,
            lineage=self.lineage,
            ahead=self._ahead if progress.low <= self._ahead else -1,
        )

    def belongs_to(self, storage: str) -> None:
        """Set the id of the storage that this cluster's tables are in."""
        self.storage = storage

    def was(self, offset: int) -> str:
        """Return the cluster that applied the operation at ``offset`` to the tables of this one.

        Empty if that was this cluster. It was another one if the tables are a copy of its tables.
        """
        return next((name for name, below in self.lineage if offset < below), "")

    def idle(self, low: int) -> bool:
        """True if nothing is to be copied, and no copied table is ahead of the cursor ``low``."""
        return self.copying is None and self._ahead < low

    def copy(self, request: CopyRequest | None) -> None:
        """Set the requested copy of another cluster; None: no copy is requested any more."""
        self.copying = request

    def mark_diverged(self, divergence: Divergence) -> Divergence:
        """Note that this cluster differs from the others; return all differences as one."""
        self.diverged = divergence.joined(self.diverged)
        return self.diverged

    def mark_verified(self, marker: int) -> None:
        """Forget differences up to ``marker``, where a verification found the tables equal."""
        if self.diverged is not None and self.diverged.offset <= marker:
            self.diverged = None

    def mark_undecided(self, undecided: Undecided) -> Undecided:
        """Note that clusters differ and none is proven wrong; return the newest difference."""
        if self.undecided is None or self.undecided.offset <= undecided.offset:
            self.undecided = undecided
        return self.undecided

    def decide(self, marker: int) -> Undecided | None:
        """Forget an undecided difference up to ``marker``, where a verification decided.

        Return the difference if it is a later one.
        """
        if self.undecided is not None and self.undecided.offset <= marker:
            self.undecided = None
        return self.undecided

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
