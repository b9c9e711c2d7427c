"""Tests of the engine when its server is killed, frozen, or started again."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator

import pytest

from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Settings
from haproc.ring.spark import LocalSpark
from tests.integration.conftest import address_of
from tests.integration.engine_calls import SLOW, apply, error, rows

pytestmark = [pytest.mark.spark, pytest.mark.fault]
AVAILABILITY = ErrorKind.AVAILABILITY
AT_ONCE_S = 8.0
"""A bound for a busy machine, far below all deadlines of the engine; the aim is a second."""


@pytest.fixture
async def running(mortal_spark: LocalSpark) -> AsyncIterator[LocalSpark]:
    """The module's server, running again after the previous test."""
    mortal_spark.signal(signal.SIGCONT)
    await mortal_spark.start(warm=False)
    yield mortal_spark
    mortal_spark.signal(signal.SIGCONT)


@pytest.fixture
async def engine(running: LocalSpark) -> AsyncIterator[SparkConnectEngine]:
    """An engine of the server that may die."""
    made = SparkConnectEngine(address_of(running), ring="ring", cluster="a")
    yield made
    await made.aclose()


@pytest.mark.thorough
async def test_killed_server_is_noticed_at_once_and_has_markers_and_settings_after_its_restart(
    engine: SparkConnectEngine, running: LocalSpark
) -> None:
    await apply(engine, "CREATE OR REPLACE TABLE t (zone STRING, id BIGINT) USING delta", 1)
    settings = Settings(time_zone="Asia/Tokyo")
    sql = "INSERT INTO t SELECT current_timezone(), {}"
    await apply(engine, sql.format(7), 7, settings=settings)
    session = engine.session("reader")
    await session.configure(settings)

    under_way = [
        asyncio.create_task(error(engine.session("killed"), SLOW)),
        asyncio.create_task(_refused(engine, f"INSERT INTO t SELECT 'x', id FROM ({SLOW})", 8)),
    ]
    await asyncio.wait(under_way, timeout=1)
    began = time.monotonic()
    assert running.kill()
    failed = await asyncio.gather(*under_way)
    assert {(each.kind, each.error_class) for each in failed} == {(AVAILABILITY, "UNAVAILABLE")}
    assert time.monotonic() - began < AT_ONCE_S
    assert (await error(session, "SELECT 1")).kind is AVAILABILITY
    assert await running.wait_gone()
    await running.start(warm=False)
    await _until_it_answers(engine)

    assert await engine.offsets_applied(["t"], "ring") == {"t": 7}
    await apply(engine, sql.format(7), 7, settings=settings)
    await apply(engine, sql.format(8), 8, settings=settings)
    assert await rows(session, "SELECT zone, id, current_timezone() FROM t ORDER BY id") == [
        ("Asia/Tokyo", 7, "Asia/Tokyo"),
        ("Asia/Tokyo", 8, "Asia/Tokyo"),
    ]
    assert await engine.offsets_applied(["t"], "ring") == {"t": 8}


async def _refused(engine: SparkConnectEngine, sql: str, version: int) -> EngineError:
    with pytest.raises(EngineError) as caught:
        await apply(engine, sql, version, settings=Settings(time_zone="Asia/Tokyo"))
    return caught.value


@pytest.mark.thorough
async def test_frozen_server_is_an_availability_error_at_the_deadline(
    engine: SparkConnectEngine, running: LocalSpark
) -> None:
    await engine.probe(timeout_s=60)
    await apply(engine, "SELECT 1", 1)
    assert running.signal(signal.SIGSTOP)
    for call in (
        engine.probe(timeout_s=1),
        apply(engine, "SELECT 1", 2, timeout_s=1),
        rows(engine.session("frozen"), "SELECT 1", timeout_s=1),
    ):
        began = time.monotonic()
        with pytest.raises(EngineError) as caught:
            await call
        assert caught.value.kind is AVAILABILITY
        assert time.monotonic() - began < 1 + AT_ONCE_S
    assert running.signal(signal.SIGCONT)
    await engine.probe(timeout_s=60)
    await apply(engine, "SELECT 1", 3)


async def _until_it_answers(engine: SparkConnectEngine) -> None:
    """Wait until the engine has noticed the lost connection and has a new one."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await engine.probe(timeout_s=30)
            except EngineError as error:
                assert error.kind is AVAILABILITY
            await asyncio.sleep(0.1)
