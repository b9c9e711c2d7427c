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
    """Runs on the receiving cluster, or on another one that is fresh enough."""
    ASYNCHRONOUS = "asynchronous"
    """Goes into the log; answered when the receiving cluster has applied it."""
    SYNCHRONOUS = "synchronous"
    """Tried on one cluster, then run on the others one after another."""
    SYNCHRONOUS_PARALLEL = "synchronous_parallel"
    """Tried on one cluster, then run on all others at the same time."""
    SESSION = "session"
    """Changes only the state of the client's session."""


class WriteConcern(StrEnum):
    """The clusters that must have applied a write before it is answered; the weakest first."""

    ONE = "one"
    """The cluster that received it."""
    MAJORITY = "majority"
    """More than half of the ring's clusters, even if the others are away."""
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
    """A statement that nothing recognises."""


class RefusedError(Exception):
    """A request that HAProc does not run; nothing was changed.

    ``error_class`` is HAProc's own (such as ``HAPROC_UNCLASSIFIED``), ``hint`` is the change that
    would make the request acceptable.
    """

    def __init__(self, error_class: str, message: str, hint: str = "") -> None:
        super().__init__(f"{message} ({hint})" if hint else message)
        self.error_class = error_class
        self.message = message
        self.hint = hint

    def __reduce__(self) -> tuple[type[RefusedError], tuple[str, str, str]]:
        """Return the arguments from which another process makes a copy."""
        return RefusedError, (self.error_class, self.message, self.hint)


@dataclass(frozen=True, slots=True)
class InsertShape:
    """The properties of an ``INSERT INTO t [(columns)] VALUES (literals), …`` for combining it.

    - ``values_at``: the index of the first row's ``(``;
    - ``rows``: the number of rows;
    - ``signature``: the type of each column's literals. Rows of equal signatures don't change each
      other's types inside one VALUES list.

    Two INSERTs can be combined, the second's rows behind the first's, if the text before
    ``values_at``, the settings and ``signature`` are equal.
    """

    values_at: int
    rows: int
    signature: str


@dataclass(frozen=True, slots=True)
class Touched:
    """The tables and views that a statement reads or writes.

    - ``tables``: their full names; ``known``: False if some of them are not known;
    - ``schemas``: the full names of schemas whose tables it lists; an empty name: all schemas;
    - ``expressions``: Spark's classes of its computations, in lower case; None: not known.
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

    ``refusal``: the error of the statement; a rule for ``kind: unknown`` may allow it.
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
    in lower case, completed from the session's catalog and schema, each part in plain text (a part
    with a dot or backquote is in backquotes). ``reads`` are the tables that a DataFrame's plan
    names itself: Spark's reading of a text gives the others.
    """

    sql: str
    kind: Kind
    operation_class: OperationClass
    reads: frozenset[str]
    writes: frozenset[str]
    tables_known: bool
    """False: the written tables (or those named by a plan) are not all known; then a write
    conflicts with every other one. It does not matter for a text that writes nothing."""
    rule: str
    """The rule that decided the class, for people."""
    insert: InsertShape | None = None
    write_concern: WriteConcern | None = None
    """The weakest concern that a rule allows."""
    apply_budget_s: float | None = None
    """The longest budget that a rule allows; None: no rule decides it."""
    cache: bool | None = None
    """A rule's decision on caching a query's answer."""
    bare: frozenset[str] = frozenset()
    """The written tables that a session's temporary view would hide."""
    rules: tuple[Rule, ...] = ()
    """The rules about it, in order. The first one that fits Spark's reading decides; until then
    class, write concern and the like are the defaults. Empty: all is decided."""

    @property
    def touched(self) -> Touched:
        """The touched tables of a statement that reads none, without what Spark's reading adds."""
        expressions = None if self.kind is Kind.UNKNOWN else frozenset[str]()
        return Touched(self.writes, self.tables_known, expressions=expressions)
