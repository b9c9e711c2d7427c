"""The known facts about a statement before it runs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from haproc.classify.rules import Rule

BUDGET_MAX_S: Final = 30 * 86_400.0
"""The longest time budget that a write may have."""


class OperationClass(StrEnum):
    """The way of a request through the ring (the classes of Kinetica's HA design)."""

    QUERY = "query"
    """Runs on the receiving cluster, or where it is fresh enough."""
    ASYNCHRONOUS = "asynchronous"
    """Executed at once on the receiving cluster, and put on every other cluster's queue."""
    SYNCHRONOUS = "synchronous"
    """Tried on one cluster, then taken to the others one after another."""
    SYNCHRONOUS_PARALLEL = "synchronous_parallel"
    """Tried on one cluster, then taken to all others at the same time."""
    SESSION = "session"
    """Changes only the state of the client's session."""


class WriteConcern(StrEnum):
    """The clusters that must have applied a write before it is answered; the weakest first."""

    ONE = "one"
    """The one that received it."""
    MAJORITY = "majority"
    """More than half of the ring's clusters, whether or not the others are there."""
    ALL = "all"
    """Every cluster of the in-sync set."""

    def at_least(self, other: WriteConcern | None) -> WriteConcern:
        """Return the stronger one of the two."""
        ranks = list(WriteConcern)
        return self if other is None or ranks.index(other) < ranks.index(self) else other


class Kind(StrEnum):
    """The kind of a statement: its command."""

    SELECT = "select"
    VALUES = "values"
    SHOW = "show"
    DESCRIBE = "describe"
    EXPLAIN = "explain"
    INSERT = "insert"
    INSERT_OVERWRITE = "insert_overwrite"
    UPDATE = "update"
    DELETE = "delete"
    MERGE = "merge"
    TRUNCATE = "truncate"
    OPTIMIZE = "optimize"
    VACUUM = "vacuum"
    ANALYZE = "analyze"
    CREATE_TABLE = "create_table"
    CREATE_TABLE_AS = "create_table_as"
    ALTER_TABLE = "alter_table"
    DROP_TABLE = "drop_table"
    CREATE_VIEW = "create_view"
    ALTER_VIEW = "alter_view"
    DROP_VIEW = "drop_view"
    CREATE_NAMESPACE = "create_namespace"
    ALTER_NAMESPACE = "alter_namespace"
    DROP_NAMESPACE = "drop_namespace"
    CREATE_FUNCTION = "create_function"
    DROP_FUNCTION = "drop_function"
    COMMENT = "comment"
    RESTORE = "restore"
    OTHER_DDL = "other_ddl"
    """Further administration that is allowed by default (MSCK REPAIR, REFRESH …)."""
    SET = "set"
    RESET = "reset"
    USE = "use"
    TEMPORARY_VIEW = "temporary_view"
    """Creates or drops a temporary view or function, or declares or sets a variable."""
    CACHE = "cache"
    ROWS = "rows"
    """Rows that came through the rows door; appended to one table."""
    UNKNOWN = "unknown"
    """Nothing recognises it."""


class RefusedError(Exception):
    """HAProc will not run a request; nothing was changed.

    ``error_class`` is HAProc's own (such as ``HAPROC_UNCLASSIFIED``), ``hint`` is the change that
    would make the request acceptable.
    """

    def __init__(self, error_class: str, message: str, hint: str = "") -> None:
        super().__init__(f"{message} ({hint})" if hint else message)
        self.error_class = error_class
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[type[RefusedError], tuple[str, str, str]]:
        """Exceptions are copied between processes by what made them."""
        return RefusedError, (self.error_class, self.message, self.hint)


@dataclass(frozen=True, slots=True)
class InsertShape:
    """The part of an ``INSERT INTO t [(columns)] VALUES (literals), …`` that others must share to
    be combined with it.

    ``values_at`` is the character at which the first row's ``(`` stands; ``rows`` counts rows.
    Two such statements may become one, the second's rows put behind the first's, if the text
    before ``values_at``, the settings and ``signature`` are equal: the signature names for each
    column the type of its literals, such that rows of equal signatures don't change each other's
    type inside one VALUES list.
    """

    values_at: int
    rows: int
    signature: str


@dataclass(frozen=True, slots=True)
class Touched:
    """The tables and views that a statement reads or writes; ``known``: none is missing.

    ``schemas``: those of whose tables it shows the catalog's entries; full names, as of tables; an
    empty one stands for all. ``expressions``: Spark's classes of what it computes, in lower case;
    None: they are not known.
    """

    tables: frozenset[str] = frozenset()
    known: bool = True
    schemas: frozenset[str] = frozenset()
    expressions: frozenset[str] | None = frozenset()

    def __or__(self, other: Touched) -> Touched:
        """Return the names that two statements touch together."""
        one, two = self.expressions, other.expressions
        return Touched(
            self.tables | other.tables,
            self.known and other.known,
            self.schemas | other.schemas,
            None if one is None or two is None else one | two,
        )


@dataclass(frozen=True, slots=True)
class Recognised:
    """The kind and content of a statement, before rules decide its class: see `Classified`.

    ``refusal``: why it is not run by default; a rule for ``kind: unknown`` may allow it.
    """

    kind: Kind
    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    tables_known: bool = True
    insert: InsertShape | None = None
    refusal: RefusedError | None = None
    bare: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Classified:
    """A classified statement.

    ``sql`` is one statement without its closing semicolon. Table names are ``catalog.schema.table``
    in lower case, completed from the session's catalog and schema, each part in plain text (a dot
    or backquote inside a part is kept backquoted). ``reads`` are the tables that a DataFrame's plan
    names itself: Spark's reading of a text gives the others.
    """

    sql: str
    kind: Kind
    operation_class: OperationClass
    reads: frozenset[str]
    writes: frozenset[str]
    tables_known: bool
    """False: what is written (or named by a plan) could not be determined; a write conflicts with
    every other then. Of a text that writes nothing it means nothing."""
    rule: str
    """The rule that decided the class, for people."""
    insert: InsertShape | None = None
    write_concern: WriteConcern | None = None
    """The least that a rule asks for."""
    apply_budget_s: float | None = None
    """The most that a rule allows; None: no rule decides it."""
    cache: bool | None = None
    """A rule's decision on keeping a query's answer."""
    bare: frozenset[str] = frozenset()
    """Those of the written tables whose names a session's temporary view would take."""
    rules: tuple[Rule, ...] = ()
    """The rules about it, in order. The first one that fits what Spark reads decides; until then
    class, write concern and the like are the defaults. Empty: all is decided."""

    @property
    def touched(self) -> Touched:
        """The touched tables if it reads none; unknown for a statement that is not recognised."""
        expressions = None if self.kind is Kind.UNKNOWN else frozenset[str]()
        return Touched(self.writes, self.tables_known, expressions=expressions)
