"""Short forms of engine calls for tests."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from haproc import protos
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import EngineError
from haproc.engine.interface import Applied, Queries, Settings, TransactionMarker
from haproc.engine.statement import SparkPlan, SqlText, Statement
from haproc.ring.spark import LocalSpark

TIMEOUT_S = 60.0
SLOW = """SELECT id FROM range(0, 200, 1, 100)
    WHERE java_method('java.lang.Thread', 'sleep', 300L) IS NOT NULL"""
"""A query of 100 tasks that takes half a minute on two cores, sleeping, with early rows."""


async def table(session: Queries, query: str | SparkPlan, timeout_s: float = TIMEOUT_S) -> pa.Table:
    """Run a query and return its whole result."""
    parts = []
    statement = SqlText(query) if isinstance(query, str) else query
    stream = await session.query(statement, timeout_s=timeout_s)
    async with contextlib.aclosing(stream):
        async for chunk in stream:
            part = pa.ipc.open_stream(chunk.data).read_all()
            assert part.num_rows == chunk.rows
            parts.append(part)
    return pa.concat_tables(parts)


async def rows(session: Queries, query: str | SparkPlan, timeout_s: float = TIMEOUT_S) -> list[Any]:
    """Run a query and return its rows as tuples."""
    result = await table(session, query, timeout_s)
    return [tuple(row.values()) for row in result.to_pylist()]


async def error(session: Queries, sql: str, timeout_s: float = TIMEOUT_S) -> EngineError:
    """Run a query that must fail and return its error."""
    with pytest.raises(EngineError) as caught:
        await table(session, sql, timeout_s)
    return caught.value


async def apply(
    engine: SparkConnectEngine,
    write: str | Statement,
    version: int | None = None,
    *,
    settings: Settings | None = None,
    lane: int = 0,
    timeout_s: float = TIMEOUT_S,
) -> Applied:
    """Apply a write in a lane, with the marker of this version."""
    return await engine.lane(lane).apply(
        SqlText(write) if isinstance(write, str) else write,
        settings or Settings(),
        None if version is None else TransactionMarker("ring", version),
        timeout_s=timeout_s,
    )


def command(sql: str) -> SparkPlan:
    """Return a statement as PySpark sends it."""
    plan = protos.base.Plan()
    plan.command.sql_command.input.sql.query = sql
    return SparkPlan(plan.SerializeToString())


def arrow_stream(data: pa.Table, rows_per_batch: int | None = None) -> bytes:
    """Return a table as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, data.schema) as writer:
        writer.write_table(data, max_chunksize=rows_per_batch)
    return bytes(sink.getvalue())


def processor_s(spark: LocalSpark) -> float:
    """Return the processor time that a Spark server has taken, in seconds."""
    fields = Path(f"/proc/{spark.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
