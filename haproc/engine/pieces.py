"""Moves a query's rows of any size: at once if a driver can hold them, or by a staging table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from haproc import protos, wire
from haproc.classify.names import STAGING_SCHEMA
from haproc.engine import placeholder
from haproc.engine.placeholder import column_names
from haproc.engine.statement import SparkPlan, SqlText, Statement

# Staging tables. A cluster gathers rows of many parts in one before one statement reads them, and
# stores the result of a query in one before it is read in pieces.
#
# They lie in a schema of HAProc's own, which no client's statement may name. Each cluster makes and
# drops it by itself. They are Parquet, because Parquet takes all types of a query (Delta has no
# intervals, and not every name) and an append is about 0.3 s quicker. A staging table needs no
# transaction markers: one whose gathering was interrupted is never read.


CATALOG = "spark_catalog"
MAKE_SCHEMA = SqlText(f"CREATE SCHEMA IF NOT EXISTS {CATALOG}.{STAGING_SCHEMA}")
DROP_SCHEMA = SqlText(f"DROP SCHEMA IF EXISTS {CATALOG}.{STAGING_SCHEMA} CASCADE")
"""Drops the schema of staging tables with its content, also the files of tables that no catalog
has."""
FILE_ROWS_MAX: Final = 50_000
"""The most rows in one file of a staging table: mostly fewer than are read at a time. Chosen."""
BLOCK_BYTES: Final = 16 << 20
"""The Parquet block size of staging tables; each task has one block in memory. Parquet's own
default is 128 MiB."""
_FILLED: Final = {
    "maxRecordsPerFile": str(FILE_ROWS_MAX),
    "parquet.block.size": str(BLOCK_BYTES),
    # Small files get a dictionary for every column, tested for each value: 2 s of 5 for 128 MiB.
    "parquet.enable.dictionary": "false",
}
"""The writing options of a staging table that a query fills: it is written once and read twice."""
_base = protos.base
_Write = protos.commands.WriteOperation


def staging_name(offset: int, epoch: int, attempt: int) -> str:
    """Return the name of the staging table for one attempt; no other attempt ever has it.

    ``offset``: the operation's; ``epoch``: the claim of the process that computes the rows.
    """
    return f"{CATALOG}.{STAGING_SCHEMA}.r_{offset}_{epoch}_{attempt}"


def fill(table: str, query: Statement, schema: bytes) -> SparkPlan:
    """Return the plan that makes a staging table from all rows of a query with this schema."""
    plan, write = _made(table)
    write.input.CopyFrom(carried(query, schema))
    write.options.update(_FILLED)
    return SparkPlan(plan.SerializeToString())


def begin(table: str, rows: bytes) -> SparkPlan:
    """Return the plan that makes a staging table; ``rows``: its first rows, an Arrow IPC stream."""
    _, write = _made(table)
    return _of_rows(write, rows)


def go_on(table: str, rows: bytes) -> SparkPlan:
    """Return the plan that appends further rows to a staging table."""
    plan = _base.Plan()
    write = plan.command.write_operation
    write.table.table_name = table
    write.mode = _Write.SAVE_MODE_APPEND
    write.table.save_method = _Write.SaveTable.TABLE_SAVE_METHOD_INSERT_INTO
    return _of_rows(write, rows)


def drop(table: str) -> SqlText:
    """Return the statement that drops a staging table."""
    return SqlText(f"DROP TABLE IF EXISTS {table}")


def _made(table: str) -> tuple[Any, Any]:
    plan = _base.Plan()
    write = plan.command.write_operation
    write.source = "parquet"
    write.table.table_name = table
    write.mode = _Write.SAVE_MODE_ERROR_IF_EXISTS
    write.table.save_method = _Write.SaveTable.TABLE_SAVE_METHOD_SAVE_AS_TABLE
    return plan, write


def _of_rows(write: Any, rows: bytes) -> SparkPlan:
    names = placeholder.column_names(len(pa.ipc.read_schema(pa.py_buffer(rows))))
    write = wire.within(write, "input", placeholder.rows_relation(rows, names))
    command = wire.within(protos.commands.Command(), "write_operation", write)
    return SparkPlan(b"".join(wire.within(_base.Plan(), "command", command)))


# Results that are small enough for a driver, of queries that may give any number of rows.
#
# Spark Connect collects a result in the driver as fast as the tasks make it, even if it is read
# slowly. So a large result is requested in parts for which the driver has room. A LIMIT bounds
# rows, not bytes. So the query itself measures the long values of a row:
#
# - `attempt`: the first rows of a query. A row that is too wide has a flag in place of its
#   values.
# - `sizes`, `widths`, `whole`, `cut`, `rows_of`: a staging table that holds all rows, piece by
#   piece.
#
# Sizes are close to those of the rows in Arrow: exact, except for nested values, which are
# estimated from their text.


ANSWER_BYTES_MAX: Final = 64 << 20
"""The most bytes that a driver collects for HAProc at a time; it holds them two or three times.
Chosen: a driver of 1 GiB can do that for several lanes."""
ATTEMPT_ROWS_MAX: Final = 50_000
"""The most first rows that a query may give without a staging table, if rows differ in width; so a
row may take 1.3 kB. Chosen."""
_FIXED: Final = {
    **dict.fromkeys(("null", "boolean", "byte"), 1),
    **dict.fromkeys(("short", "integer", "float", "date", "year_month_interval"), 4),
    **dict.fromkeys(("decimal", "calendar_interval"), 16),
}
_FIXED_OTHERS: Final = 8
_TEXTS: Final = frozenset({"string", "char", "var_char", "binary"})
_NESTED: Final = frozenset({"array", "map", "struct", "variant"})
_OF_TEXT: Final = 3
"""The estimated size of a value in memory, for arrays, maps and structs, in multiples of the size
of its text: `1, ` stands for eight bytes."""
_UNSTAGED: Final = {
    "calendar_interval": "calendar intervals (INTERVAL with months and days)",
    "udt": "types of a program's own",
    "unparsed": "types of a program's own",
    "geometry": "geometries",
    "geography": "geographies",
}
_Type = protos.data_types.DataType


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The query for a result's first rows. In its last column True marks a row that is too wide.

    It gives more than ``rows_max`` rows if and only if the result has more rows.
    """

    plan: SparkPlan
    rows_max: int


@dataclass(frozen=True, slots=True)
class StagingFile:
    """A file of a staging table, and the bytes that all its rows take."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class RowsPiece:
    """Rows of a staging table that are read together: those of whole files, or some of one file.

    ``files`` may be empty. ``begin``, ``end``: the numbers of the first row in the file, and of the
    row after the last one; None: up to the file's end.
    """

    files: tuple[str, ...]
    begin: int = 0
    end: int | None = None


def attempt(query: Statement, schema: bytes, rows_max: int) -> FirstRows:
    """Return the query for at most ``rows_max`` first rows of a result, as ``c1`` to ``cN``."""
    widths = [_width(name, kind) for name, kind in _columns(schema)]
    fixed = sum(width for width in widths if isinstance(width, int))
    measured = [width for width in widths if isinstance(width, str)]
    rows = min(rows_max, ATTEMPT_ROWS_MAX if measured else ANSWER_BYTES_MAX // max(1, fixed))
    rows = max(1, min(rows, ANSWER_BYTES_MAX // (2 * max(1, fixed))))
    room = ANSWER_BYTES_MAX // rows - fixed
    fits = f"{_sum(measured)} <= {room}" if measured else "true"
    plan = protos.base.Plan()
    limit = plan.root.limit
    limit.limit = rows + 1
    project = limit.input.project
    project.input.CopyFrom(carried(query, schema))
    for name in column_names(len(widths)) if measured else ():
        _add(project, f"CASE WHEN {fits} THEN {name} END AS {name}")
    for name in () if measured else column_names(len(widths)):
        _add(project, name)
    _add(project, f"NOT ({fits}) AS wide")
    return FirstRows(SparkPlan(plan.SerializeToString()), rows)


def count(schema: bytes) -> int:
    """Return the number of columns in a serialized schema."""
    return len(_columns(schema))


def carried(query: Statement, schema: bytes) -> Any:
    """Return the query with columns ``c1`` to ``cN``, in types that a staging table can hold.

    A table's fields must have different names, also in a struct, and no file knows collations;
    `haproc.engine.placeholder.restored` gives the exact types back.
    """
    columns = _columns(schema)
    relation = protos.relations.Relation()
    to_df = relation.project.input.to_df
    if isinstance(query, SqlText):
        to_df.input.sql.query = query.sql
    else:
        assert isinstance(query, SparkPlan)
        to_df.input.CopyFrom(wire.parsed(protos.base.Plan, query.plan).root)
    for name, kind in columns:
        to_df.column_names.append(name)
        alias = relation.project.expressions.add().alias
        alias.name.append(name)
        alias.metadata = "{}"  # without a table column's metadata, such as a default
        value = alias.expr
        if (plain := _plain(kind)) != kind:
            value.cast.type.CopyFrom(plain)
            value = value.cast.expr
        value.unresolved_attribute.unparsed_identifier = name
    return relation


def _plain(kind: Any) -> Any:
    """Return a type that files can hold for the same values: plain strings, numbered fields."""
    found = _Type()
    found.CopyFrom(kind)
    match kind.WhichOneof("kind"):
        case "string" | "char" | "var_char":
            found.string.Clear()
            found.string.SetInParent()
        case "array":
            found.array.element_type.CopyFrom(_plain(kind.array.element_type))
        case "map":
            found.map.key_type.CopyFrom(_plain(kind.map.key_type))
            found.map.value_type.CopyFrom(_plain(kind.map.value_type))
        case "struct":
            for number, field in enumerate(found.struct.fields):
                field.name = f"f{number}"
                field.ClearField("metadata")
                field.data_type.CopyFrom(_plain(field.data_type))
    return found


def unstaged(schema: bytes) -> str:
    """Return what a staging table cannot hold of this schema, as a text; empty if it holds all."""
    for _, kind in _columns(schema):
        for each in _within(kind):
            if what := _UNSTAGED.get(each.WhichOneof("kind")):
                return what
            if each.HasField("struct") and not each.struct.fields:
                return "structs without fields"
    return ""


def sizes(table: str, schema: bytes) -> SqlText:
    """Return the query that gives each file of a staging table with the size of its rows."""
    return SqlText(
        "SELECT _metadata.file_name AS name, "
        f"sum({_row(schema)}) AS bytes FROM {table} GROUP BY _metadata.file_name ORDER BY name"
    )


def widths(table: str, schema: bytes, file: str) -> SqlText:
    """Return the query that gives the size of each row in a staging table's file, in order."""
    return SqlText(
        f"SELECT {_row(schema)} AS bytes FROM {table} WHERE _metadata.file_name = '{file}' "
        "ORDER BY _metadata.row_index"
    )


def whole(files: Sequence[StagingFile]) -> Iterator[RowsPiece | StagingFile]:
    """Yield groups of files that a driver can hold together, and each file that is too large.

    A group comes as one piece of rows.
    """
    names: list[str] = []
    taken = 0
    for file in files:
        if names and taken + file.size_bytes > ANSWER_BYTES_MAX:
            yield RowsPiece(tuple(names))
            names, taken = [], 0
        if file.size_bytes > ANSWER_BYTES_MAX:
            yield file
        else:
            names.append(file.name)
            taken += file.size_bytes
    if names or not files:
        yield RowsPiece(tuple(names))


def cut(file: str, widths: Sequence[int]) -> Iterator[RowsPiece]:
    """Yield pieces of a large file that a driver can hold; ``widths``: the bytes of each row."""
    begin = taken = 0
    for at, width in enumerate(widths):
        if at > begin and taken + width > ANSWER_BYTES_MAX:
            yield RowsPiece((file,), begin, at)
            begin, taken = at, 0
        taken += width
    yield RowsPiece((file,), begin, len(widths))


def rows_of(table: str, columns: int, piece: RowsPiece) -> SqlText:
    """Return the query for the rows of a piece; ``table``: the staging table."""
    names = ", ".join(f"'{name}'" for name in piece.files)
    where = f"_metadata.file_name IN ({names})" if names else "false"
    if piece.end is not None:
        index = "_metadata.row_index"
        where += f" AND {index} >= {piece.begin} AND {index} < {piece.end}"
    return SqlText(f"SELECT {', '.join(column_names(columns))} FROM {table} WHERE {where}")


def _columns(schema: bytes) -> list[tuple[str, Any]]:
    fields = wire.parsed(_Type, schema).struct.fields
    names = column_names(len(fields))
    return [(name, field.data_type) for name, field in zip(names, fields, strict=True)]


def _within(kind: Any) -> Iterator[Any]:
    """Yield a type and all types in it."""
    yield kind
    match kind.WhichOneof("kind"):
        case "array":
            yield from _within(kind.array.element_type)
        case "map":
            yield from _within(kind.map.key_type)
            yield from _within(kind.map.value_type)
        case "struct":
            for field in kind.struct.fields:
                yield from _within(field.data_type)


def _width(name: str, kind: Any) -> int | str:
    """Return the bytes that each value of a column takes: a number, or a SQL expression."""
    what = kind.WhichOneof("kind")
    if what in _TEXTS:
        return f"coalesce(octet_length({name}), 0)"
    if what in _NESTED:
        return f"coalesce({_OF_TEXT} * octet_length(CAST({name} AS STRING)), 0)"
    return _FIXED.get(what, _FIXED_OTHERS)


def _row(schema: bytes) -> str:
    found = [_width(name, kind) for name, kind in _columns(schema)]
    fixed = sum(width for width in found if isinstance(width, int))
    return _sum([f"{fixed}L", *(width for width in found if isinstance(width, str))])


def _sum(expressions: Sequence[str]) -> str:
    """Return the SQL for a sum, as a balanced tree: a parser refuses deep nesting."""
    if len(expressions) == 1:
        return f"CAST({expressions[0]} AS BIGINT)"
    half = len(expressions) // 2
    return f"({_sum(expressions[:half])} + {_sum(expressions[half:])})"


def _add(project: Any, expression: str) -> None:
    project.expressions.add().expression_string.expression = expression
