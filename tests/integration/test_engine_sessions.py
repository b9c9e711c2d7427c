"""Tests of the engine's sessions on a real Spark: settings, and restoring after a loss."""

from __future__ import annotations

import asyncio

import pytest

from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import ErrorKind
from haproc.engine.interface import Fresh, Settings
from haproc.engine.statement import SqlText
from tests.integration.engine_calls import error, rows

pytestmark = pytest.mark.spark


async def test_session_settings_are_in_force_and_read_back(
    engine: SparkConnectEngine, schema: str
) -> None:
    session = engine.session("configured")
    await session.configure(Settings(schema=schema, time_zone="Asia/Tokyo", ansi=False))
    read = await session.settings()
    assert (read.catalog, read.schema) == ("spark_catalog", schema)
    assert (read.time_zone, read.ansi) == ("Asia/Tokyo", False)
    assert await rows(session, "SELECT 1 / 0, current_timezone()") == [(None, "Asia/Tokyo")]
    await session.configure(Settings())
    assert (await error(session, "SELECT 1 / 0")).error_class == "DIVIDE_BY_ZERO"


async def test_session_statement_that_changes_settings_is_overruled_by_the_next_configure(
    engine: SparkConnectEngine, schema: str
) -> None:
    session = engine.session("overruled")
    await session.configure(Settings())
    await rows(session, f"USE {schema}")
    await rows(session, "SET TIME ZONE 'Asia/Tokyo'")
    assert (await session.settings()).schema == schema
    await session.configure(Settings())
    read = await session.settings()
    assert (read.schema, read.time_zone) == ("default", "UTC")


async def test_session_lost_with_a_temporary_view_is_restored_once_and_unnoticed(
    engine: SparkConnectEngine,
) -> None:
    made = 0

    async def restore(fresh: Fresh) -> None:
        nonlocal made
        made += 1
        await fresh.configure(Settings(time_zone="Asia/Tokyo"))
        await fresh.run_change(SqlText("CREATE TEMPORARY VIEW v AS SELECT 1"), timeout_s=60)

    session = engine.session("views", restore)
    assert await rows(session, "SELECT *, current_timezone() FROM v") == [(1, "Asia/Tokyo")]
    await _drop_on_the_server(engine, "views")
    found = await asyncio.gather(*(rows(session, "SELECT * FROM v") for _ in range(3)))
    assert found == [[(1,)]] * 3
    assert made == 2


async def test_statement_of_a_session_as_it_is_fails_at_once_until_the_session_is_restored(
    engine: SparkConnectEngine,
) -> None:
    made, may_go_on = asyncio.Event(), asyncio.Event()

    async def restore(fresh: Fresh) -> None:
        await fresh.run_change(SqlText("CREATE TEMPORARY VIEW v AS SELECT 1"), timeout_s=60)
        made.set()
        await may_go_on.wait()

    session = engine.session("as_it_is", restore)

    async def lost() -> None:
        failure = await asyncio.wait_for(error(session.as_it_is(), "SELECT * FROM v"), 30)
        assert failure.kind is ErrorKind.AVAILABILITY

    assert not session.stands
    await lost()
    making = asyncio.ensure_future(session.ready())
    await made.wait()
    await lost()
    may_go_on.set()
    await making
    assert await rows(session.as_it_is(), "SELECT * FROM v") == [(1,)]
    may_go_on.clear()
    await _drop_on_the_server(engine, "as_it_is")
    epoch = session.epoch
    await lost()
    assert session.epoch == epoch and not session.stands
    may_go_on.set()
    assert await rows(session, "SELECT * FROM v") == [(1,)]
    assert session.epoch > epoch and session.stands


async def test_session_that_was_outdated_is_created_again(
    engine: SparkConnectEngine,
) -> None:
    async def restore(fresh: Fresh) -> None:
        await fresh.configure(Settings())

    session = engine.session("outdated", restore)
    await rows(session, "CREATE TEMPORARY VIEW v AS SELECT 1")
    session.outdate()
    assert (await error(session, "SELECT * FROM v")).error_class == "TABLE_OR_VIEW_NOT_FOUND"


async def test_session_whose_restoring_failed_is_restored_by_the_next_statement(
    engine: SparkConnectEngine,
) -> None:
    steps = ["CREATE TEMPORARY VIEW v AS SELECT 1", "CREATE TEMPORARY VIEW w AS SELECT * FROM no"]

    async def restore(fresh: Fresh) -> None:
        for step in steps:
            await fresh.run_change(SqlText(step), timeout_s=60)

    session = engine.session("failing", restore)
    for _ in range(2):
        failure = await error(session, "SELECT * FROM v")
        assert failure.error_class == "TABLE_OR_VIEW_NOT_FOUND"
    steps.pop()
    assert await rows(session, "SELECT * FROM v") == [(1,)]


async def test_session_lost_with_settings_only_is_restored_unnoticed(
    engine: SparkConnectEngine,
) -> None:
    session = engine.session("quiet")
    await session.configure(Settings(time_zone="Asia/Tokyo"))
    await _drop_on_the_server(engine, "quiet")
    zones = await asyncio.gather(*(rows(session, "SELECT current_timezone()") for _ in range(3)))
    assert zones == [[("Asia/Tokyo",)]] * 3


async def _drop_on_the_server(engine: SparkConnectEngine, key: str) -> None:
    await engine.session(key)._remote.release()
