"""Queries on a simulated cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from haproc import protos
from haproc.engine.arrow import stream_of
from haproc.engine.interface import Chunk, Column, Observed, Settings
from haproc.engine.placeholder import column_names
from haproc.engine.statement import SparkPlan, SqlText, Statement
from haproc.engine.tasks import Planned
from tests.simulation.plans import plain_query_in, read, schema_of

if TYPE_CHECKING:
    from tests.simulation.spark import SimSpark

TEXTS = ("id", "x")
"""Columns of these names hold text, all others whole numbers."""


class SimReading:
    """A session for queries; ``check`` returns while its process lives and is not frozen."""

    def __init__(self, spark: SimSpark, check: Callable[[], Awaitable[None]]) -> None:
        self._spark = spark
        self._check = check
        self.epoch = 0
        self.stands = True

    def as_it_is(self) -> SimReading:
        """Return itself: it is never made anew."""
        return self

    async def configure(self, settings: Settings) -> None:
        await self._check()
        await self._spark.travel()

    async def columns(self, sql: str) -> list[Column]:
        names, _ = await self._read(sql)
        return [Column(name, "string" if name in TEXTS else "bigint") for name in names]

    async def schema(self, query: Statement) -> bytes:
        if isinstance(query, SparkPlan) and (rows := _rows_of(query)) is not None:
            await self._check()
            return schema_of(rows.column_names, TEXTS)
        names, _ = await self._read(_sql(query))
        return schema_of(names, TEXTS)

    async def query(
        self,
        statement: Statement,
        *,
        timeout_s: float,
        planned: Planned | None = None,
        observed: Observed | None = None,
    ) -> Result:
        plain = plain_query_in(statement)
        names, rows = await self._read(plain.sql, plain.table)
        if plain.rows_max is not None:
            rows = [(*row, False) for row in rows[: plain.rows_max]]
            names = [*column_names(len(names)), "wide"]
        kinds = [_kind(name, [row[at] for row in rows]) for at, name in enumerate(names)]
        columns = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]
        return Result(pa.table(dict(zip(names, columns, strict=True))))

    async def _read(self, sql: str, table: str = "") -> tuple[list[str], list[Any]]:
        await self._check()
        # The server goes on when its caller dies; nobody hears of it.
        reading = asyncio.ensure_future(self._spark.read(sql, table))
        reading.add_done_callback(lambda task: task.cancelled() or task.exception())
        found = await asyncio.shield(reading)
        await self._check()
        return found

    async def aclose(self) -> None:
        """Nothing to release."""


def _kind(name: str, values: list[Any]) -> pa.DataType:
    if name == "wide":
        return pa.bool_()
    text = name in TEXTS or any(isinstance(value, str) for value in values)
    return pa.string() if text else pa.int64()


def _rows_of(query: SparkPlan) -> pa.Table | None:
    """Return the rows that a query consists of; None if it reads others."""
    root = protos.base.Plan.FromString(query.plan).root
    return read(root.local_relation.data) if root.HasField("local_relation") else None


def _sql(query: Statement) -> str:
    """Return a query's text, also from a plan."""
    if isinstance(query, SparkPlan):
        return str(protos.base.Plan.FromString(query.plan).root.sql.query)
    assert isinstance(query, SqlText)
    return query.sql


class Result:
    """A query's result in one piece."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        yield Chunk(stream_of(self._table), self._table.num_rows)

    async def aclose(self) -> None:
        """Nothing to release."""
