"""The plans that lanes send, as text for SQLite, and Spark's schemas of its tables.

Staging tables are tables of SQLite like all others, except for their names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from haproc import protos
from haproc.classify.names import STAGING_SCHEMA
from haproc.engine.arrow import stream_of
from haproc.engine.pieces import CATALOG, DROP_SCHEMA, MAKE_SCHEMA
from haproc.engine.statement import SparkPlan, SqlText, Statement
from tests.simulation.merging import sqlite_text

STAGING = "staging_"
"""The prefix of staging tables' names in SQLite."""
_CREATES = protos.commands.WriteOperation.SaveTable.TABLE_SAVE_METHOD_SAVE_AS_TABLE
_INSERTS = protos.commands.WriteOperation.SaveTable.TABLE_SAVE_METHOD_INSERT_INTO
DROP_STAGING, NOTHING = "DROP STAGING", "NOTHING"
QUIET = (DROP_STAGING, NOTHING)
"""Statements that are not reported."""
_FIXED = {DROP_SCHEMA.sql: DROP_STAGING, MAKE_SCHEMA.sql: NOTHING}


def text_of(plan: Any) -> str:
    """Return a plan as a statement for SQLite."""
    match plan.WhichOneof("op_type"), plan.root.WhichOneof("rel_type"):
        case "root", "sql":
            sql = plan.root.sql.query
            return _FIXED.get(sql) or sqlite_text(staged(sql))
        case "root", "with_relations":
            statement = plan.root.with_relations
            (reference,) = statement.references
            rows = _source(reference.subquery_alias.input)
            sql = statement.root.sql.query.replace("\n", " ")
            return str(sql.replace(f"FROM {reference.subquery_alias.alias}", f"FROM {rows}"))
    if plan.command.HasField("write_operation"):
        write = plan.command.write_operation
        name, rows = staged(write.table.table_name), _source(write.input)
        if write.table.save_method == _CREATES:
            return f"CREATE TABLE {name} AS SELECT * FROM {rows}"
        return f"INSERT INTO {name} SELECT * FROM {rows}"
    write = plan.command.write_operation_v2
    if not write.input.HasField("local_relation"):
        return f"INSERT INTO {write.table_name} SELECT * FROM {_source(write.input)}"
    table = read(write.input.local_relation.data)
    names = ", ".join(table.column_names)
    return f"INSERT INTO {write.table_name} ({names}) VALUES {_values(table)}"


@dataclass(frozen=True, slots=True)
class PlainQuery:
    """A request to a session: a query, for its first rows or for a staging table of them."""

    sql: str
    rows_max: int | None = None
    table: str = ""


def plain_query_in(statement: Statement) -> PlainQuery:
    """Return the request in a statement, as text for SQLite."""
    if isinstance(statement, SqlText):
        return PlainQuery(
            "SELECT 1" if statement.sql in _FIXED else _of_files(staged(statement.sql))
        )
    assert isinstance(statement, SparkPlan)
    plan = protos.base.Plan.FromString(statement.plan)
    if plan.command.HasField("write_operation"):
        write = plan.command.write_operation
        return PlainQuery(_carried(write.input), table=staged(write.table.table_name))
    if plan.root.HasField("limit"):
        query = _carried(plan.root.limit.input.project.input)
        return PlainQuery(query, rows_max=plan.root.limit.limit)
    return PlainQuery(plan.root.sql.query)


def _carried(relation: Any) -> str:
    return str(relation.project.input.to_df.input.sql.query)


def _of_files(sql: str) -> str:
    """Return a text in which each two rows of a table are a file."""
    for spark, sqlite in (
        ("_metadata.file_name", "('f' || ((rowid - 1) / 2))"),
        ("_metadata.row_index", "((rowid - 1) % 2)"),
        ("octet_length", "length"),
    ):
        sql = sql.replace(spark, sqlite)
    return re.sub(r"\b(\d+)L\b", r"\1", sql)


def appending(table: str, text: str) -> bytes:
    """Return the plan that appends one row with this text, as PySpark's ``insertInto`` does."""
    plan = protos.base.Plan()
    write = plan.command.write_operation
    write.input.local_relation.data = stream_of(pa.table({"id": [text]}))
    write.table.table_name = table
    write.table.save_method = _INSERTS
    write.mode = protos.commands.WriteOperation.SAVE_MODE_APPEND
    return bytes(plan.SerializeToString())


def staged(text: str) -> str:
    """Return a text with the names that staging tables have here."""
    return text.replace(f"{CATALOG}.{STAGING_SCHEMA}.", STAGING)


def read(stream: bytes) -> pa.Table:
    """Return the rows of an Arrow IPC stream."""
    with pa.ipc.open_stream(stream) as reader:
        return reader.read_all()


def _source(relation: Any) -> str:
    """Return the source of rows: a staging table, or the rows themselves."""
    match relation.WhichOneof("rel_type"):
        case "project":
            return _source(relation.project.input)
        case "to_df":
            return _source(relation.to_df.input)
        case "read":
            return staged(relation.read.named_table.unparsed_identifier)
    table = read(relation.local_relation.data)
    count = table.num_columns
    if not table.num_rows:
        return f"(SELECT {', '.join(f'NULL AS c{n + 1}' for n in range(count))} WHERE FALSE)"
    columns = ", ".join(f"column{n + 1} AS c{n + 1}" for n in range(count))
    return f"(SELECT {columns} FROM (VALUES {_values(table)}))"


def _values(table: pa.Table) -> str:
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return ", ".join(f"({', '.join(map(_literal, row))})" for row in rows)


def _literal(value: object) -> str:
    return "NULL" if value is None else repr(value)


def schema_of(names: list[str], texts: tuple[str, ...]) -> bytes:
    """Return the schema of columns; those named in ``texts`` hold text."""
    schema = protos.data_types.DataType()
    for name in names:
        field = schema.struct.fields.add(name=name, nullable=True)
        kind = field.data_type.string if name in texts else field.data_type.long
        kind.SetInParent()
    return bytes(schema.SerializeToString())
