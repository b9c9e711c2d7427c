"""The known facts about a plan, as types."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from haproc.classify.model import Kind


class Does(StrEnum):
    """The effect of running a plan; decides its way."""

    QUERIES = "queries"
    """Its relations only read."""
    RUNS_SQL = "runs_sql"
    """It is a SQL text: the text decides the effect."""
    CHANGES_SESSION = "changes_session"
    """It changes the state of the client's session alone, and can be done again in another."""
    HOLDS = "holds"
    """It makes or drops what only this server's session holds: a checkpoint, a model."""
    WRITES = "writes"
    """It changes the ring's tables or catalog."""


class Mode(StrEnum):
    """The way in which a plan writes its rows into its target."""

    SAVE_ERROR = "save_error"
    """``saveAsTable``: makes the table; an error if it is there."""
    SAVE_IGNORE = "save_ignore"
    """``saveAsTable``: makes the table; nothing if it is there."""
    SAVE_APPEND = "save_append"
    """``saveAsTable``: appends; makes the table if it isn't there."""
    SAVE_OVERWRITE = "save_overwrite"
    """``saveAsTable``: replaces what the table holds; makes it if it isn't there."""
    INSERT = "insert"
    """``insertInto``: appends by position."""
    INSERT_OVERWRITE = "insert_overwrite"
    """``insertInto``: by position, over the table's rows or partitions."""
    CREATE = "create"
    REPLACE = "replace"
    CREATE_OR_REPLACE = "create_or_replace"
    APPEND = "append"
    """``writeTo``: appends by name."""
    OVERWRITE = "overwrite"
    """``writeTo``: over the rows for which a condition holds."""
    OVERWRITE_PARTITIONS = "overwrite_partitions"


@dataclass(frozen=True, slots=True)
class SqlPart:
    """A SQL text in a plan, and the protocol buffers that are its arguments.

    ``positional`` and ``named`` hold messages ``Expression`` or ``Expression.Literal``.
    """

    text: str
    positional: tuple[Any, ...] = ()
    named: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class PlanReading:
    """The facts that a plan contains; names are as it gives them, not yet completed.

    ``target`` is what is written, or the name of what changes in the session. ``names`` are the
    tables and views that are read, ``sqls`` the SQL texts that stand as relations (each has to be
    a query by itself), ``paths`` the files. ``blobs`` are the hashes of the session's cached
    artifacts, ``handles`` what only the session of one server has.
    """

    does: Does
    kind: Kind
    target: tuple[str, ...] = ()
    mode: Mode | None = None
    kind_if_there: Kind | None = None
    """The kind, where it is another one if the target exists already."""
    evolves: bool = False
    """True if the write may change its target's columns."""
    sql: SqlPart | None = None
    """The text of RUNS_SQL."""
    sqls: tuple[SqlPart, ...] = ()
    names: frozenset[tuple[str, ...]] = frozenset()
    paths: frozenset[str] = frozenset()
    blobs: frozenset[str] = frozenset()
    handles: frozenset[str] = frozenset()
    user_code: bool = False
    """True if it contains the user's own functions, table functions or the like."""
    expressions: tuple[str, ...] = ()
    """SQL texts that stand for single expressions; empty where nothing in them could matter."""
    functions: frozenset[str] = frozenset()
    """Names of the functions that it calls, in lower case; only of writes."""
    names_known: bool = True
    """False: it reads unknown tables."""
    relations: frozenset[str] = frozenset()
    """The kinds of relations in it, as the protocol calls them."""
    options: frozenset[str] = frozenset()
    """The options, in lower case, under which tables and files are read."""


@dataclass(slots=True)
class PlanFindings:
    """Collects the facts of one plan's parts."""

    sqls: list[SqlPart] = field(default_factory=list)
    names: set[tuple[str, ...]] = field(default_factory=set)
    paths: set[str] = field(default_factory=set)
    blobs: set[str] = field(default_factory=set)
    handles: set[str] = field(default_factory=set)
    user_code: bool = False
    expressions: list[str] = field(default_factory=list)
    functions: set[str] = field(default_factory=set)
    names_known: bool = True
    relations: set[str] = field(default_factory=set)
    options: set[str] = field(default_factory=set)
    extensions: int = 0
    columns: int = 0

    def reading(self, does: Does, kind: Kind, **more: Any) -> PlanReading:
        """Return all that was found as the reading of a plan."""
        return PlanReading(
            does,
            kind,
            sqls=tuple(self.sqls),
            names=frozenset(self.names),
            paths=frozenset(self.paths),
            blobs=frozenset(self.blobs),
            handles=frozenset(self.handles),
            user_code=self.user_code,
            expressions=tuple(self.expressions),
            functions=frozenset(self.functions),
            names_known=self.names_known,
            relations=frozenset(self.relations),
            options=frozenset(self.options),
            **more,
        )
