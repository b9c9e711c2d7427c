"""Staging tables: where a cluster gathers rows of many parts before one statement reads them, and
puts what a query gives before it is read in pieces.

They lie in a schema of HAProc's own, which no statement of a client's may name, and which is made
and dropped on each cluster by itself. Parquet, because it takes whatever types a query gives (Delta
knows no intervals, and not every name) and an append is about 0.3 s quicker; what it lacks for
being a table of the ring's, a mark in each commit, is of no use here: a table that was not gathered
in one go is never read.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from haproc import protos
from haproc.classify.names import STAGING_SCHEMA
from haproc.engine import packed
from haproc.engine.pieces import carried
from haproc.engine.statement import SparkPlan, SqlText, Statement

CATALOG = "spark_catalog"
MAKE_SCHEMA = SqlText(f"CREATE SCHEMA IF NOT EXISTS {CATALOG}.{STAGING_SCHEMA}")
DROP_SCHEMA = SqlText(f"DROP SCHEMA IF EXISTS {CATALOG}.{STAGING_SCHEMA} CASCADE")
"""With all that is in it, also files of tables that no catalog knows."""
FILE_ROWS_MAX: Final = 50_000
"""Of a table that a query fills: mostly less than is read at a time. Chosen."""
BLOCK_BYTES: Final = 16 << 20
"""Each task has one in memory; Parquet's own default is 128 MiB."""
_FILLED: Final = {
    "maxRecordsPerFile": str(FILE_ROWS_MAX),
    "parquet.block.size": str(BLOCK_BYTES),
    # In files of so few rows every column gets one, tried for each value: 2 s of 5 for 128 MiB.
    "parquet.enable.dictionary": "false",
}
"""How a query's rows are written: once, to be read twice."""
_base = protos.base
_Write = protos.commands.WriteOperation


def staging_name(offset: int, epoch: int, attempt: int) -> str:
    """Return the name of an attempt's table; no other attempt ever has it.

    ``offset``: the operation's; ``epoch``: the claim of the process that gathers.
    """
    return f"{CATALOG}.{STAGING_SCHEMA}.r_{offset}_{epoch}_{attempt}"


def fill(table: str, query: Statement, schema: bytes) -> SparkPlan:
    """Return the plan that makes a staging table of all that a query of this schema gives."""
    plan, write = _made(table)
    write.input.CopyFrom(carried(query, schema))
    write.options.update(_FILLED)
    return SparkPlan(plan.SerializeToString())


def begin(table: str, rows: bytes) -> SparkPlan:
    """Return the plan that makes a staging table of the first rows, an Arrow IPC stream."""
    plan, write = _made(table)
    _of_rows(write, rows)
    return SparkPlan(plan.SerializeToString())


def go_on(table: str, rows: bytes) -> SparkPlan:
    """Return the plan that appends further rows."""
    plan = _base.Plan()
    write = plan.command.write_operation
    write.table.table_name = table
    _of_rows(write, rows)
    write.mode = _Write.SAVE_MODE_APPEND
    write.table.save_method = _Write.SaveTable.TABLE_SAVE_METHOD_INSERT_INTO
    return SparkPlan(plan.SerializeToString())


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


def _of_rows(write: Any, rows: bytes) -> None:
    names = packed.column_names(len(pa.ipc.read_schema(pa.py_buffer(rows))))
    packed.make(write.input, rows, names)
