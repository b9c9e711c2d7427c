"""Tests of queries that share a Spark: turns at the cores, and a driver busy with planning."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from haproc.engine.confs import pool_of
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.interface import ResultStream, Session, Settings
from haproc.engine.remote import _ACTIVE
from haproc.engine.statement import SqlText
from haproc.engine.tasks import Phase
from tests.integration.engine_calls import rows

pytestmark = pytest.mark.spark

LONG = "SELECT sum(hash(id) % 7) AS s FROM range(0, 40000000, 1, 80)"
"""Its tasks take half a minute; the small query needs two cores for two short stages."""
SMALL = "SELECT count(*) FROM range(0, 10, 1, 2)"


async def ended_before(small: Session, long: Sequence[Session]) -> int:
    """Return how many long queries end before a small one that started after them."""
    running = [asyncio.create_task(rows(session, LONG)) for session in long]
    try:
        await asyncio.sleep(1)
        await rows(small, SMALL)
        return sum(each.done() for each in running)
    finally:
        for session in long:
            await session.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_query_does_not_wait_for_long_queries_of_another_user(
    engine: SparkConnectEngine,
) -> None:
    long = [engine.session(f"long/{n}", pool=pool_of("ada")) for n in range(3)]
    small = engine.session("small", pool=pool_of("bob"))
    for session in (*long, small):
        await session.configure(Settings())
        await rows(session, SMALL)
    assert await ended_before(small, long) == 0


@pytest.mark.thorough
async def test_write_does_not_wait_for_a_long_create_table_as(
    engine: SparkConnectEngine, schema: str
) -> None:
    async def write(lane: int, sql: str) -> None:
        await engine.lane(lane).apply(SqlText(sql), Settings(), None, timeout_s=120)

    await write(0, f"CREATE TABLE {schema}.small (id INT) USING delta")
    await write(1, f"INSERT INTO {schema}.small VALUES (0)")
    long = asyncio.create_task(write(0, f"CREATE TABLE {schema}.long USING delta AS {LONG}"))
    await asyncio.sleep(1)
    for number in range(3):
        await write(1, f"INSERT INTO {schema}.small VALUES ({number})")
    assert not long.done()
    await engine.lane(0).fence()
    await asyncio.gather(long, return_exceptions=True)


def hard_to_plan(depth: int) -> str:
    """Return a query of few rows whose plan doubles with each step."""
    steps = (
        f"t{n} AS (SELECT x + 1 AS x FROM t{n - 1} WHERE x > {n} UNION ALL "
        f"SELECT x FROM t{n - 1} WHERE x <> {n})"
        for n in range(1, depth)
    )
    parts = ("t0 AS (SELECT id AS x FROM range(0, 9, 1, 2) WHERE id = 5)", *steps)
    return f"WITH {', '.join(parts)} SELECT count(*) FROM t{depth - 1}"


async def _first_of(stream: ResultStream) -> None:
    await anext(aiter(stream))


async def test_driver_reports_the_end_of_a_cancelled_query_after_its_planning(
    engine: SparkConnectEngine,
) -> None:
    session, done = engine.session("given up"), asyncio.Event()

    def note_phase(phase: Phase) -> None:
        assert phase in (Phase.PLANNED, Phase.ENDED)  # its tasks may be reported before
        if phase is Phase.ENDED:
            done.set()

    await session.configure(Settings())
    await rows(session, SMALL)
    stream = await session.query(SqlText(hard_to_plan(8)), timeout_s=60, planned=note_phase)
    reading = asyncio.create_task(_first_of(stream))
    await asyncio.sleep(0.5)
    reading.cancel()
    await asyncio.wait({reading})
    await stream.aclose()
    running = await session._remote._operations(_ACTIVE)
    assert running and not done.is_set()  # an interrupt does not end its planning
    await asyncio.wait_for(done.wait(), 120)
    assert not running & await session._remote._operations(_ACTIVE)
