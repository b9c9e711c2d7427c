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
- ``join``, ``leave``, ``members``: see `replicate.records.members`.
- ``fence``: see `replicate.records.contents`.

**Versions.** A reader passes over headers that it does not know: so a new header is for what may
be ignored. What changes how a record must be treated is a new version of its kind, ``kind.2``:
older readers do not know it, stop in front of it, and go on from there once they are upgraded. All
versions ever written are read; the bytes of each are kept in tests/golden.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final, TypeAlias, assert_never

from dmq import FILLER, Json, LogCorruptError, Record
from haproc.classify.model import InsertShape, Kind, OperationClass
from haproc.engine.interface import Settings
from haproc.engine.statement import ArrowRows, SparkPlan, SqlText
from haproc.replicate.records import contents, rows, votes
from haproc.replicate.records import members as roster
from haproc.replicate.records.contents import (
    KINDS,
    Check,
    Checksums,
    Fence,
    Skip,
    Verify,
    check_message,
    check_record,
    fence_message,
    fence_record,
)
from haproc.replicate.records.fields import names, number, pairs, text
from haproc.replicate.records.members import Roster
from haproc.replicate.records.rows import (
    ApplicationFailure,
    Computed,
    ComputedPlan,
    Confs,
    Part,
    Passed,
    QueryWrite,
    Rows,
    SessionRef,
    SpooledRows,
    Write,
    computed_message,
    computed_record,
    failure_headers,
    failure_if_any,
    failure_in,
)
from haproc.replicate.records.votes import Abandon, FailureVote, FateMessage, Revoke, VoteWithdrawal

SYNCHRONOUS: Final = frozenset({OperationClass.SYNCHRONOUS, OperationClass.SYNCHRONOUS_PARALLEL})

OPERATION: Final = "operation"
"""The kind of records that hold one."""

_PLAN: Final = "plan"
_COMPUTED: Final = "computed"
_SPOOLED: Final = "spooled"

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
    writes_known: bool = False
    """``writes`` is all that it writes, though more may be read than is known. Only where it is
    made: its record says what it redefines."""
    insert: InsertShape | None = None
    evolves: bool | None = field(default=None, compare=False)
    """Whether it may change its table's columns by itself, where its plan was read. Only where it
    is made, like ``writes_known``."""
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
    Operation | Decision | FailureReport | Claim | Check | Roster | Computed | FateMessage | Fence
)


def _operation_record(op: Operation) -> Record:
    headers: dict[str, Json] = {
        "class": op.operation_class.value,
        "kind": op.kind.value,
        "origin": op.origin,
        "fingerprint": op.fingerprint,
        "user": op.user,
        "settings": [
            op.settings.catalog,
            op.settings.schema,
            op.settings.time_zone,
            op.settings.ansi,
            [list(pair) for pair in op.settings.confs],
        ],
        "reads": [*sorted(op.reads)],
        "writes": [*sorted(op.writes)],
        "tables_known": op.tables_known,
        "created_ms": op.created_ms,
    }
    if op.named:
        headers["named"] = True
    if op.insert is not None:
        headers["insert"] = [op.insert.values_at, op.insert.rows, op.insert.signature]
    if op.apply_budget_s is not None:
        headers["apply_budget_s"] = op.apply_budget_s
    headers["since"] = [op.since, op.window]
    headers["rests_on"] = None
    if op.analyzed_to is not None:
        headers["rests_on"] = [op.analyzed_to, [*sorted(op.rests_on)]]
    headers["redefines"] = None if op.redefines is None else [*sorted(op.redefines)]
    query_confs = Confs()
    match op.write:
        case SqlText(sql):
            payload = sql.encode()
        case QueryWrite(sql, query_at, of_session, of, query_confs):
            headers["query"] = [query_at, of_session]
            headers["session"] = _session(of)
            payload = sql.encode()
        case ArrowRows(table, payload):
            headers["rows_table"] = table
        case SparkPlan(payload):
            headers["form"] = _PLAN
        case ComputedPlan(query, template, of, query_confs):
            headers["form"] = _COMPUTED
            headers["query_bytes"] = len(query)
            headers["session"] = _session(of)
            payload = query + template
        case SpooledRows(table, payload):
            headers["form"] = _SPOOLED
            headers["rows_table"] = table
        case _:
            assert_never(op.write)
    if query_confs:
        headers["query_confs"] = [list(pair) for pair in query_confs]
    return Record(OPERATION, op.id, headers, payload)


# Operations stay in memory by the tens of thousands, and much of them is alike.
_settings = lru_cache(_ALIKE_MAX, typed=True)(Settings)
_shape = lru_cache(_ALIKE_MAX, typed=True)(InsertShape)
_tables = lru_cache(_ALIKE_MAX, typed=True)(frozenset[str])


def _rests_on(value: Any) -> tuple[int | None, frozenset[str]]:
    if value is None:
        return None, frozenset()
    analyzed_to, looked_up = value
    return number(analyzed_to), names(looked_up)


def _budget(value: Any) -> float | None:
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return value
    raise TypeError(f"{value!r} is no time")


def _operation(record: Record) -> Operation:
    h: Mapping[str, Any] = record.headers
    catalog, schema, time_zone, ansi, confs = h["settings"]
    insert = h.get("insert")
    since, window = h["since"]
    analyzed_to, rests_on = _rests_on(h["rests_on"])
    redefines = h["redefines"]
    return Operation(
        id=record.key,
        operation_class=OperationClass(h["class"]),
        kind=Kind(h["kind"]),
        origin=sys.intern(h["origin"]),
        fingerprint=h["fingerprint"],
        write=_write(record),
        settings=_settings(catalog, schema, time_zone, ansi, tuple((k, v) for k, v in confs)),
        user=sys.intern(h["user"]),
        reads=_tables(tuple(h["reads"])),
        writes=_tables(tuple(h["writes"])),
        tables_known=h["tables_known"],
        insert=None if insert is None else _shape(*insert),
        created_ms=h["created_ms"],
        since=since,
        window=window,
        analyzed_to=analyzed_to,
        rests_on=rests_on,
        apply_budget_s=_budget(h.get("apply_budget_s")),
        redefines=None if redefines is None else names(redefines),
        named=h.get("named", False) is True,
    )


def _write(record: Record) -> Write:
    h: Mapping[str, Any] = record.headers
    if "form" in h:
        return _formed(h["form"], record)
    if (table := h.get("rows_table")) is not None:
        return ArrowRows(table, record.payload)
    sql = record.payload.decode()
    if (query := h.get("query")) is not None:
        query_at, of_session = query
        ref = _session_ref(h.get("session"))
        confs = pairs(h.get("query_confs", ()))
        return QueryWrite(sql, query_at, of_session, ref, confs)
    return SqlText(sql)


def _formed(form: str, record: Record) -> Write:
    if form == _PLAN:
        return SparkPlan(record.payload)
    if form == _COMPUTED:
        at, h = number(record.headers["query_bytes"], "size"), record.headers
        ref = _session_ref(h["session"])
        confs = pairs(h.get("query_confs", ()))
        return ComputedPlan(record.payload[:at], record.payload[at:], ref, confs)
    if form == _SPOOLED:
        return SpooledRows(text(record.headers["rows_table"]), record.payload)
    raise LogCorruptError(
        f"an operation of form {form!r} is not known to this version of HAProc: upgrade it"
    )


def _session(of: SessionRef | None) -> Json:
    return None if of is None else [of.user, of.session_id, of.entries, of.begun]


def _session_ref(value: Any) -> SessionRef | None:
    if value is None:
        return None
    user, session_id, entries, begun = value
    return SessionRef(text(user), text(session_id), number(entries, "count"), text(begun))


def to_record(message: Message) -> Record:
    """Return the log record of a message."""
    match message:
        case Operation():
            return _operation_record(message)
        case Decision():
            return Record(
                "decision",
                message.operation_id,
                {
                    "offset": message.offset,
                    "verdict": message.verdict.value,
                    "by": message.by,
                    "epoch": message.epoch,
                    **failure_headers(message.failure),
                },
            )
        case FailureReport():
            return Record(
                "outcome",
                "",
                {
                    "offset": message.offset,
                    "cluster": message.cluster,
                    "epoch": message.epoch,
                    **failure_headers(message.failure),
                },
            )
        case Claim():
            return Record(
                "claim", "", {"cluster": message.cluster, "incarnation": message.incarnation}
            )
        case Skip() | Verify() | Checksums():
            return check_record(message)
        case Roster():
            return roster.roster_record(message)
        case Rows() | Part() | Passed():
            return computed_record(message)
        case FailureVote() | VoteWithdrawal() | Abandon() | Revoke():
            return votes.fate_record(message)
        case Fence():
            return fence_record(message)


def from_record(record: Record) -> Message | Filler:
    """Return the message of a log record; LogCorruptError if it is none of ours."""
    if record.kind == FILLER:
        return Filler()
    h: Mapping[str, Any] = record.headers
    try:
        match record.kind:
            case "operation":
                return _operation(record)
            case "decision":
                failure = failure_if_any(h)
                verdict = DecisionKind(h["verdict"])
                return Decision(h["offset"], record.key, verdict, h["by"], h["epoch"], failure)
            case "outcome":
                return FailureReport(h["offset"], h["cluster"], h["epoch"], failure_in(h))
            case "claim":
                return Claim(h["cluster"], h["incarnation"])
            case kind if kind in KINDS:
                return check_message(record)
            case kind if kind in roster.KINDS:
                return roster.roster_message(record)
            case kind if kind in rows.KINDS:
                return computed_message(record)
            case kind if kind in votes.KINDS:
                return votes.fate_message(record)
            case contents.FENCE:
                return fence_message(record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise LogCorruptError(f"a {record.kind} record cannot be read: {error!r}") from error
    raise LogCorruptError(
        f"record kind {record.kind!r} is not known to this version of HAProc: upgrade it"
    )
