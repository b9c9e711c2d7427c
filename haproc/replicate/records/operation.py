"""The records of the log: operations, and the control records about them.

An *operation* is a complete write. Its parameters are bound, and it contains the session settings
that change its meaning. It means the same on every cluster and at any time. The *control* records
are about the outcomes of operations, and about the processes that apply them:

- ``decision``: the fate of a synchronous operation; the first one in the log counts.
- ``outcome``: an application error of an operation on a cluster. It is appended before any
  operation that depends on this one starts, so it survives the process.
- ``claim``: an incarnation of a HAProc takes over its cluster; an older one that reads it stops.
- ``unable``, ``able``, ``abandon``, ``revoke``: see `replicate.log_state.failure_votes`.
- ``rows``, ``part``, ``passed``: see `replicate.records.rows`.
- ``skip``, ``verify``, ``checksums``, ``members``, ``fence``, ``copy``: see
  `replicate.records.control`.

The rule for changes of records is in `dmq.log`. tests/golden/records has the bytes of each kind.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Final, TypeAlias, TypeVar, assert_never

from dmq import FILLER, Record
from dmq.log import Kinds
from haproc.classify.model import InsertShape, Kind, OperationClass
from haproc.engine.interface import Settings
from haproc.engine.statement import ArrowRows, RowsInLog, SparkPlan, SqlText
from haproc.replicate.records.control import (
    Abandon,
    Check,
    Checksums,
    Copy,
    FailureVote,
    FateMessage,
    Fence,
    Revoke,
    Roster,
    Skip,
    Verify,
    VoteWithdrawal,
)
from haproc.replicate.records.rows import (
    ApplicationFailure,
    Computed,
    ComputedPlan,
    Part,
    Passed,
    QueryWrite,
    Rows,
    SpooledRows,
    Write,
)

SYNCHRONOUS: Final = frozenset({OperationClass.SYNCHRONOUS, OperationClass.SYNCHRONOUS_PARALLEL})

OPERATION: Final = "operation"
FENCE: Final = "fence"
"""Only OPERATION and FENCE records may redefine names, so readers handle them in the log's
order."""

_SIDE_BY_SIDE: Final = frozenset(
    {
        Kind.INSERT,
        Kind.INSERT_OVERWRITE,
        Kind.UPDATE,
        Kind.DELETE,
        Kind.MERGE,
        Kind.TRUNCATE,
        Kind.OPTIMIZE,
        Kind.VACUUM,
        Kind.ANALYZE,
        Kind.ROWS,
    }
)
"""Kinds of statements that touch only the tables that they name."""
_ALIKE_MAX: Final = 4096
"""The most different values (settings, sets of tables, shapes) that are kept for reuse. Chosen:
about a MiB."""
_T = TypeVar("_T")


@lru_cache(_ALIKE_MAX)
def _alike(value: _T) -> _T:
    """Return the first of equal values, so that the others take no memory.

    Tens of thousands of operations stay in memory, and many have equal settings and tables.
    """
    return value


@dataclass(frozen=True, slots=True)
class Operation:
    """One write, the same for every cluster.

    ``origin``: the cluster that received it. ``fingerprint``: a digest of the request.
    ``created_ms``: Unix time by the clock of the origin's HAProc.
    """

    id: str
    operation_class: OperationClass
    kind: Kind
    origin: str
    fingerprint: str
    write: Write
    settings: Settings = field(default_factory=Settings)
    user: str = "anonymous"
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    tables_known: bool = True
    insert: InsertShape | None = None
    created_ms: int = 0
    since: int = 0
    """Below this offset the log has no earlier copy of the request."""
    window: int = 0
    """So many offsets before this one are searched for an earlier copy of the request."""
    analyzed_to: int | None = None
    """Its tables, views and functions were looked up on a cluster that had applied everything below
    this offset; None: nothing was looked up."""
    rests_on: frozenset[str] = frozenset()
    """The tables, views and functions that were looked up; ``*``: perhaps others, too."""
    apply_budget_s: float | None = None
    """The longest time for it, or its query, on a cluster; then the ring revokes it. None: no
    limit."""
    redefines: frozenset[str] | None = frozenset()
    """The names of tables, views and functions that it may redefine; None: any name."""
    named: bool = False
    """True for DDL that touches only the tables that it names, see `log_state.definitions`."""

    def __post_init__(self) -> None:
        for name in ("settings", "reads", "writes", "insert"):
            object.__setattr__(self, name, _alike(getattr(self, name)))
        for name in ("origin", "user"):
            object.__setattr__(self, name, sys.intern(getattr(self, name)))

    @property
    def key(self) -> tuple[str, str]:
        """User and request id, by which a repeated request is recognised."""
        return self.user, self.id

    @property
    def synchronous(self) -> bool:
        """True if it is tried on its origin first, and the other clusters wait for a decision."""
        return self.operation_class in SYNCHRONOUS

    @property
    def exclusive(self) -> bool:
        """True if no other operation may run at the same time.

        It is synchronous, or may touch more tables than it names.
        """
        plain = self.tables_known and self.kind in _SIDE_BY_SIDE and not self.synchronous
        return not (plain or self.beside)

    @property
    def beside(self) -> bool:
        """True for a CREATE TABLE AS that runs beside other operations: it may take hours."""
        return self.named and self.kind is Kind.CREATE_TABLE_AS

    @property
    def unmarked(self) -> bool:
        """True if it has no transaction marker: only changed objects show that it was applied."""
        return self.exclusive or self.beside

    @property
    def computed(self) -> bool:
        """True if its rows are computed when its turn has come, and come in another record."""
        return isinstance(self.write, QueryWrite | ComputedPlan | SpooledRows)

    @property
    def size_bytes(self) -> int:
        """Its approximate size in memory, and in a combined statement."""
        match self.write:
            case SqlText(sql) | QueryWrite(sql):
                return len(sql)
            case RowsInLog():
                return self.write.size_bytes
            case ArrowRows(_, rows):
                return len(rows)
            case SparkPlan(plan):
                return len(plan)
            case ComputedPlan(query, template):
                return len(query) + len(template)
            case SpooledRows(_, schema):
                return len(schema)
            case _:
                assert_never(self.write)


class DecisionKind(StrEnum):
    """What all clusters do with a synchronous operation: apply it, or pass over it."""

    COMMIT = "commit"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Decision:
    """Decides about the synchronous operation at ``offset``; ``failure``: why it is rejected.

    ``by``: the writer's cluster; ``epoch``: the offset of the writer's claim, see
    `replicate.log_state.members`.
    """

    offset: int
    operation_id: str
    verdict: DecisionKind
    by: str
    epoch: int
    failure: ApplicationFailure | None = None


@dataclass(frozen=True, slots=True)
class FailureReport:
    """``cluster`` had an application error when it applied the operation at ``offset``.

    ``epoch``: the offset of the writer's claim.
    """

    offset: int
    cluster: str
    epoch: int
    failure: ApplicationFailure


@dataclass(frozen=True, slots=True)
class Claim:
    """From this record on, only this incarnation may apply operations to the cluster."""

    cluster: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Filler:
    """What is read in place of an entry without a message, such as a part of a large record.

    It is never appended.
    """


Message: TypeAlias = (
    Operation
    | Decision
    | FailureReport
    | Claim
    | Check
    | Roster
    | Computed
    | FateMessage
    | Fence
    | Copy
)


KINDS: Final[Kinds[Message]] = Kinds(
    {
        OPERATION: Operation,
        "decision": Decision,
        "outcome": FailureReport,
        "claim": Claim,
        "rows": Rows,
        "part": Part,
        "passed": Passed,
        "unable": FailureVote,
        "able": VoteWithdrawal,
        "abandon": Abandon,
        "revoke": Revoke,
        FENCE: Fence,
        "skip": Skip,
        "verify": Verify,
        "checksums": Checksums,
        "members": Roster,
        "copy": Copy,
    }
)


def to_record(message: Message) -> Record:
    """Return a message in the form in which the log stores it."""
    return KINDS.record(message)


def from_record(record: Record) -> Message | Filler:
    """Return the message that a record of the log contains.

    Raises LogCorruptError if this version of HAProc does not know such a record.
    """
    return Filler() if record.kind == FILLER else KINDS.message(record)
