"""Queries on a simulated cluster, and the text of their rows as SQLite reads it.

Real are the rows' literals, made by `haproc.pin.materialise`; of Spark's SQL around them SQLite
knows all but the types' names, ``5L``, and ``FROM VALUES (…) AS q(c1, …)``.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from haproc.engine.interface import Chunk, Column, Settings
from haproc.engine.statement import SqlText, Statement

if TYPE_CHECKING:
    from tests.simulation.spark import SimSpark

_ROWS = re.compile(r"FROM VALUES (\(.*\)) AS q\((.*?)\)", re.DOTALL)
_LONG = re.compile(r"(?<=[( ])(-?\d+)L(?=[,)])")
TEXTS = ("id", "x")
"""Columns of these names hold text, all others whole numbers."""


def plain(sql: str) -> str:
    """Return a statement with rows in it as SQLite reads it."""

    def values(match: re.Match[str]) -> str:
        names = match[2].split(", ")
        columns = ", ".join(f"column{at} AS {name}" for at, name in enumerate(names, 1))
        rows = _LONG.sub(r"\1", match[1])
        return f"FROM (SELECT {columns} FROM (VALUES {rows}))"

    return _ROWS.sub(values, sql).replace(" AS STRING)", " AS TEXT)")


class SimReading:
    """A session for queries; ``check`` returns while its process lives and is not frozen."""

    def __init__(self, spark: SimSpark, check: Callable[[], Awaitable[None]]) -> None:
        self._spark = spark
        self._check = check
        self.epoch = 0

    async def configure(self, settings: Settings) -> None:
        await self._check()
        await self._spark.travel()

    async def columns(self, sql: str) -> list[Column]:
        names, _ = await self._read(sql)
        return [Column(name, "string" if name in TEXTS else "bigint") for name in names]

    async def query(self, statement: Statement, *, timeout_s: float) -> Result:
        assert isinstance(statement, SqlText)
        names, rows = await self._read(statement.sql)
        types = [pa.string() if name in TEXTS else pa.int64() for name in names]
        columns = [pa.array([row[at] for row in rows], type_) for at, type_ in enumerate(types)]
        return Result(pa.table(dict(zip(names, columns, strict=True))))

    async def _read(self, sql: str) -> tuple[list[str], list[Any]]:
        await self._check()
        # The server goes on when its caller dies; nobody hears of it.
        reading = asyncio.ensure_future(self._spark.read(sql))
        reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        found = await asyncio.shield(reading)
        await self._check()
        return found

    async def aclose(self) -> None:
        await self._check()


class Result:
    """A query's result in one piece."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._table.schema) as writer:
            writer.write_table(self._table)
        yield Chunk(sink.getvalue().to_pybytes(), self._table.num_rows)

    async def aclose(self) -> None:
        """Nothing to release."""
