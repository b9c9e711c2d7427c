"""The records that HAProcs put into the log: operations and what controls them.

An *operation* is a write that stands alone: parameters bound, nothing in it that could mean
something else on another cluster or at another time, and the session settings that change its
meaning. *Control* records say what became of operations and who applies them:

- ``decision``: the fate of a synchronous operation; the first one in the log counts.
- ``outcome``: an application error that a cluster met when it applied an operation. Recorded
  before anything that depends on the operation starts, so it survives the process.
- ``claim``: an incarnation of a HAProc takes over its cluster; an older one that reads it stops.
- ``unable``, ``able``, ``abandon``, ``revoke``: see `replicate.log_state.failure_votes`.
- ``skip``, ``verify``, ``checksums``: see `replicate.records.contents`.
- ``rows``, ``part``, ``passed``: see `replicate.records.rows`.
- ``members``: see `replicate.records.members`.
- ``fence``: see `replicate.records.contents`.
- ``copy``: see `replicate.records.copy`.

`dmq.log` has the rule for changes. The bytes of each kind are kept in tests/golden/records.
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
"""The kinds of records whose place counts."""

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
"""Kinds that touch nothing but the tables they name."""
_ALIKE_MAX: Final = 4096
"""Settings, sets of tables and shapes kept to be used again. Chosen: a MiB or so."""
_T = TypeVar("_T")


@lru_cache(_ALIKE_MAX)
def _alike(value: _T) -> _T:
    """Return the first of equal values.

    Operations stay in memory by the tens of thousands, and much of them is alike.
    """
    return value


@dataclass(frozen=True, slots=True)
class Operation:
    """One write, the same for every cluster. ``created_ms`` is Unix time by its origin's clock."""

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
    """No copy of the request stands below this offset."""
    window: int = 0
    """How many offsets back a repetition is looked for."""
    analyzed_to: int | None = None
    """What it rests on was looked up on a cluster that had applied everything below; None: nothing
    was looked up."""
    rests_on: frozenset[str] = frozenset()
    """The tables, views and functions that were looked up; ``*`` stands for any."""
    apply_budget_s: float | None = None
    """How long it, or its query, may run on a cluster before the ring takes it back."""
    redefines: frozenset[str] | None = frozenset()
    """What it may define anew; None: anything."""
    named: bool = False
    """It is DDL that touches nothing but the tables it names, see `replicate.log_state.named`."""

    def __post_init__(self) -> None:
        for name in ("settings", "reads", "writes", "insert"):
            object.__setattr__(self, name, _alike(getattr(self, name)))
        for name in ("origin", "user"):
            object.__setattr__(self, name, sys.intern(getattr(self, name)))

    @property
    def key(self) -> tuple[str, str]:
        """What its request is known by: user and id."""
        return self.user, self.id

    @property
    def synchronous(self) -> bool:
        """Whether every cluster stops in front of it until its fate is decided."""
        return self.operation_class in SYNCHRONOUS

    @property
    def exclusive(self) -> bool:
        """Whether it runs with nothing beside it: its tables don't say all that it touches."""
        plain = self.tables_known and self.kind in _SIDE_BY_SIDE and not self.synchronous
        return not (plain or self.beside)

    @property
    def beside(self) -> bool:
        """Whether it runs beside others though it is DDL: a computation that may take hours."""
        return self.named and self.kind is Kind.CREATE_TABLE_AS

    @property
    def unmarked(self) -> bool:
        """Whether only a look at what stood there before tells that it was applied."""
        return self.exclusive or self.beside

    @property
    def computed(self) -> bool:
        """Whether it waits for its rows, which another record has."""
        return isinstance(self.write, QueryWrite | ComputedPlan | SpooledRows)

    @property
    def size_bytes(self) -> int:
        """What it weighs in a batch and in memory."""
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
    """The fate of a synchronous operation."""

    COMMIT = "commit"
    REJECT = "reject"


@dataclass(frozen=True, slots=True)
class Decision:
    """``offset`` and ``operation_id`` name the operation; ``failure`` says why it is rejected.

    ``epoch`` is the offset of its writer's claim, see `replicate.log_state.members`.
    """

    offset: int
    operation_id: str
    verdict: DecisionKind
    by: str
    epoch: int
    failure: ApplicationFailure | None = None


@dataclass(frozen=True, slots=True)
class FailureReport:
    """A cluster met an application error when it applied the operation at ``offset``.

    ``epoch`` is the offset of its writer's claim.
    """

    offset: int
    cluster: str
    epoch: int
    failure: ApplicationFailure


@dataclass(frozen=True, slots=True)
class Claim:
    """From here on only this incarnation applies operations to the cluster."""

    cluster: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Filler:
    """A place in the log that means nothing, such as a part of a large record; never written."""


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
    """Return the log record of a message."""
    return KINDS.record(message)


def from_record(record: Record) -> Message | Filler:
    """Return the message of a log record; LogCorruptError if it is none of ours."""
    return Filler() if record.kind == FILLER else KINDS.message(record)
