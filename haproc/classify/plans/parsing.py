"""Plans as messages: parsed within limits, what is read from them, errors to refuse them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any

import pyarrow as pa

from haproc import protos, wire
from haproc.classify.model import Kind, RefusedError
from haproc.classify.names import parts_of
from haproc.failure import ErrorClass

# The known facts about a plan, as types.


class Does(StrEnum):
    """What running a plan does; this decides the plan's class."""

    QUERIES = "queries"
    """It only reads."""
    RUNS_SQL = "runs_sql"
    """It is a SQL text, so the text decides what it does."""
    CHANGES_SESSION = "changes_session"
    """It changes only the client's session, and can be repeated in another Spark session."""
    HOLDS = "holds"
    """It makes or drops an object that only this server's session has: a checkpoint, a model."""
    WRITES = "writes"
    """It changes the ring's tables or catalog."""


class Mode(StrEnum):
    """How a plan writes its rows into its target."""

    SAVE_ERROR = "save_error"
    """``saveAsTable``: create the table; an error if it exists."""
    SAVE_IGNORE = "save_ignore"
    """``saveAsTable``: create the table; do nothing if it exists."""
    SAVE_APPEND = "save_append"
    """``saveAsTable``: append to the table; create it if it does not exist."""
    SAVE_OVERWRITE = "save_overwrite"
    """``saveAsTable``: replace the table's content; create it if it does not exist."""
    INSERT = "insert"
    """``insertInto``: append; columns are matched by position."""
    INSERT_OVERWRITE = "insert_overwrite"
    """``insertInto``: replace the table's rows or partitions; columns are matched by position."""
    CREATE = "create"
    REPLACE = "replace"
    CREATE_OR_REPLACE = "create_or_replace"
    APPEND = "append"
    """``writeTo``: append; columns are matched by name."""
    OVERWRITE = "overwrite"
    """``writeTo``: replace the rows for which a condition holds."""
    OVERWRITE_PARTITIONS = "overwrite_partitions"


@dataclass(frozen=True, slots=True)
class SqlPart:
    """A SQL text in a plan, and its arguments as protocol buffers.

    ``positional`` and ``named`` hold messages ``Expression`` or ``Expression.Literal``.
    """

    text: str
    positional: tuple[Any, ...] = ()
    named: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class PlanReading:
    """What a plan reads and does; names are as in the plan, and not completed yet.

    - ``target``: the object that is written, or the object of the session that is changed;
    - ``sqls``: the SQL texts that are relations (each must be a query);
    - ``names``: the tables and views that are read;
    - ``paths``: the files that are read or written;
    - ``blobs``: the hashes of the session's cached artifacts that it uses;
    - ``handles``: the ids of objects that only one server's session has.
    """

    does: Does
    kind: Kind
    target: tuple[str, ...] = ()
    mode: Mode | None = None
    kind_if_there: Kind | None = None
    """The kind if the target exists already; None if that makes no difference."""
    evolves: bool = False
    """True if the write may change the columns of its target."""
    sql: SqlPart | None = None
    """The SQL text, if the plan is one (RUNS_SQL)."""
    sqls: tuple[SqlPart, ...] = ()
    names: frozenset[tuple[str, ...]] = frozenset()
    paths: frozenset[str] = frozenset()
    blobs: frozenset[str] = frozenset()
    handles: frozenset[str] = frozenset()
    user_code: bool = False
    """True if it contains the user's own functions, table functions or the like."""
    expressions: tuple[str, ...] = ()
    """The SQL texts that are single expressions; empty if nothing in them could matter."""
    functions: frozenset[str] = frozenset()
    """The names of the functions that a write calls, in lower case; for a query they may be
    missing."""
    names_known: bool = True
    """False if it reads tables that are not in ``names``."""
    relations: frozenset[str] = frozenset()
    """The kinds of relations in it, by their names in the protocol."""
    options: frozenset[str] = frozenset()
    """The options with which tables and files are read, in lower case."""


@dataclass(slots=True)
class PlanFindings:
    """Collects what the parts of one plan read and do."""

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
        """Return all that was collected, as the reading of a plan."""
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


# Members of the protocol's messages, as the tables of this package list them.


def members(text: str) -> frozenset[str]:
    """Return the words in a text; each is the name of a field in a choice of Spark Connect's."""
    return frozenset(text.split())


@cache
def may_hold(descriptor: Any, *names: str) -> bool:
    """True if a message of this type is of a type in ``names``, or may contain one at any depth."""
    seen, stack = set(), [descriptor]
    while stack:
        kind = stack.pop()
        if kind.full_name in names:
            return True
        if kind.full_name not in seen:
            seen.add(kind.full_name)
            stack += [each.message_type for each in kind.fields if each.message_type]
    return False


# The reasons for which a plan is not run, with the remedy.


def refused_unknown(what: str) -> RefusedError:
    """Return the error for a plan with a part that HAProc does not know."""
    return RefusedError(
        ErrorClass.PLAN_UNKNOWN,
        f"the plan holds {what}, which HAProc does not know: its effect is unknown",
        "use a PySpark of the version that HAProc was made for, or write it as SQL",
    )


def refused_stream(what: str) -> RefusedError:
    """Return the error for a plan or command about streams."""
    return RefusedError(
        ErrorClass.STREAMING,
        f"{what}: a stream runs on one cluster's server, beside the order of writes",
        "read the source in a program of your own and write each batch with df.write, which every "
        "cluster applies",
    )


def refused_nesting(what: str) -> RefusedError:
    """Return the error for a part that does more than read, at a place where it must only read."""
    return RefusedError(
        ErrorClass.NESTED_WRITE,
        f"{what} stands inside another plan, where only what reads may stand",
        "run it by itself first, and go on from its result",
    )


def refused_files(what: str) -> RefusedError:
    """Return the error for a write to files."""
    return RefusedError(
        ErrorClass.PATH,
        f"{what}: files belong to no table of the ring, so HAProc could not find out "
        "whether a write was applied",
        "write to a table by its name: df.write.saveAsTable(…), df.writeTo(…), insertInto(…)",
    )


def refused_source(name: str, use: str) -> RefusedError:
    """Return the error for a data source that is not one of files."""
    return RefusedError(
        ErrorClass.SOURCE,
        f"HAProc doesn't know what {use} {name[:80]!r} reads or writes",
        "read it in your program and give its rows to spark.createDataFrame; tables are of delta, "
        "or another format of files",
    )


def refused_jvm_code(what: str) -> RefusedError:
    """Return the error for user's code that runs in the JVM."""
    return RefusedError(
        ErrorClass.JVM_CODE,
        f"{what} runs code in Spark's own process that HAProc cannot look into",
        "write the function in Python or SQL",
    )


def refused_name(text: str, use: str) -> RefusedError:
    """Return the error for a text that is no name; ``use``: what the name is used for."""
    return RefusedError(
        ErrorClass.TABLE_NAME,
        f"{text[:100]!r}, which {use}, is not a name",
        "write [catalog.][schema.]name, and parts with other signs in them in `backquotes`",
    )


def refused_hiding(function: str) -> RefusedError:
    """Return the error for a function that runs code which its arguments name."""
    return RefusedError(
        ErrorClass.UNCLASSIFIED,
        f"{function}() runs arbitrary code",
        "write a function in Python or SQL",
    )


def name_in(text: str, use: str) -> tuple[str, ...]:
    """Return the parts of a table's name; RefusedError (with ``use``) if the text is no name."""
    parts = parts_of(text)
    if parts is None:
        raise refused_name(text, use)
    return parts


# From bytes to protocol buffers, with bounds, and without unknown parts.
#
# Spark follows a plan by recursion, as a statement (`haproc.classify.bounds`), so its nesting is
# bounded here, for queries, too. A newer client may send fields that the messages of this version
# do not have. HAProc would ignore them, and perhaps Spark would not: so a message with such fields
# is refused.


DEPTH_MAX = 400
"""The most levels of nested messages: 198 steps of a DataFrame or calls of functions, with two
levels each."""
OPENED_BYTES_MAX = 128 << 20
"""The most bytes of a decompressed plan: as many as any message may have."""

_Compressed = protos.base.Plan.CompressedOperation


def parse(kind: Any, data: bytes) -> Any:
    """Return the message of class ``kind`` in ``data``; RefusedError if a part of it is unknown."""
    message = _parsed(kind, data)
    message.DiscardUnknownFields()
    if message.ByteSize() != len(data):
        _check_known(kind, data, message)
    return message


def opened(plan: Any) -> Any:
    """Return a plan; decompressed if it is compressed. Raises RefusedError."""
    if plan.WhichOneof("op_type") != "compressed_operation":
        return plan
    packed = plan.compressed_operation
    if packed.compression_codec != protos.base.COMPRESSION_CODEC_ZSTD:
        raise refused_unknown(f"a compression of kind {packed.compression_codec}")
    data = _decompressed(packed.data)
    whole = protos.base.Plan()
    if packed.op_type == _Compressed.OP_TYPE_RELATION:
        whole.root.CopyFrom(parse(protos.relations.Relation, data))
    elif packed.op_type == _Compressed.OP_TYPE_COMMAND:
        whole.command.CopyFrom(parse(protos.commands.Command, data))
    else:
        raise refused_unknown(f"a compressed plan of kind {packed.op_type}")
    return whole


def _parsed(kind: Any, data: bytes) -> Any:
    try:
        return wire.parsed(kind, data, DEPTH_MAX)
    except wire.TooDeepError as error:
        raise _too_deep() from error
    except wire.MalformedError as error:
        raise _malformed() from error


def _check_known(kind: Any, data: bytes, known: Any) -> None:
    """Raise RefusedError if ``data`` has fields that this version does not know.

    ``known``: the message without such fields. Sizes may differ by another encoding of its fields.
    """
    if _parsed(kind, data).ByteSize() != known.ByteSize():
        raise refused_unknown("a field of a newer version of Spark Connect")


def _decompressed(data: bytes) -> bytes:
    try:
        with pa.CompressedInputStream(pa.py_buffer(data), "zstd") as stream:
            opened = bytes(stream.read(OPENED_BYTES_MAX + 1))
    except OSError as error:
        raise _malformed() from error
    if len(opened) > OPENED_BYTES_MAX:
        raise RefusedError(
            ErrorClass.STATEMENT_TOO_COMPLEX,
            f"the plan is more than {OPENED_BYTES_MAX} bytes long once it is decompressed",
            "give large rows to spark.createDataFrame in several calls, or write it in parts",
        )
    return opened


def _too_deep() -> RefusedError:
    return RefusedError(
        ErrorClass.STATEMENT_TOO_COMPLEX,
        f"the plan is nested more than {DEPTH_MAX} messages deep: steps of a DataFrame (two each) "
        "and expressions inside each other",
        "use one select(…) or withColumns({…}) in place of many withColumn(…), or write "
        "a part of it to a table",
    )


def _malformed() -> RefusedError:
    return RefusedError(
        ErrorClass.BAD_REQUEST, "the message is no protocol buffer of its kind", "see the client"
    )
