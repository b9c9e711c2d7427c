"""Tests of the engine on a real Spark: queries, errors, sessions, settings, lanes."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import decimal
import resource
import time

import pytest

from haproc.config.model import LANES_MAX
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import REFUSED, EngineError, ErrorKind
from haproc.engine.interface import Column, EngineAddress, ResultStream, Settings
from haproc.engine.remote import _ACTIVE, RemoteSession
from haproc.engine.statement import SqlText
from haproc.membership.drift import Findings, as_reported, compare, to_look_up
from haproc.ring.settings import EXTENSIONS
from haproc.ring.spark import LocalSpark
from tests.integration.conftest import address_of
from tests.integration.engine_calls import SLOW, apply, error, processor_s, rows, table

pytestmark = pytest.mark.spark
APPLICATION, AVAILABILITY = ErrorKind.APPLICATION, ErrorKind.AVAILABILITY


async def test_query_values_of_many_types_are_read_back_equal(engine: SparkConnectEngine) -> None:
    sql = """SELECT CAST(1 AS TINYINT), CAST(2 AS SMALLINT), 3, 4L, CAST(0.5 AS FLOAT), 0.25D,
        CAST('12.30' AS DECIMAL(10,2)), 'it''s ☃', X'00FF', true, DATE'2024-02-29',
        TIMESTAMP_NTZ'2024-02-29 12:00:00.123456', array(1, NULL), map('k', 1),
        named_struct('a', 1, 'b', 'x'), NULL"""
    assert await rows(engine.session("types"), sql) == [
        (
            *(1, 2, 3, 4, 0.5, 0.25, decimal.Decimal("12.30"), "it's ☃", b"\x00\xff", True),
            dt.date(2024, 2, 29),
            dt.datetime(2024, 2, 29, 12, 0, 0, 123456),
            [1, None],
            [("k", 1)],
            {"a": 1, "b": "x"},
            None,
        )
    ]


async def test_query_without_rows_gives_one_chunk_with_the_schema(
    engine: SparkConnectEngine,
) -> None:
    stream = await engine.session("empty").query(SqlText("SELECT 1 AS a WHERE false"), timeout_s=30)
    chunks = [chunk async for chunk in stream]
    assert [chunk.rows for chunk in chunks] == [0]
    result = await table(engine.session("empty"), "SELECT 1 AS a WHERE false")
    assert result.schema.names == ["a"]


@pytest.mark.parametrize(
    ("sql", "error_class", "sqlstate"),
    [
        ("SELECT * FROM no_such_table", "TABLE_OR_VIEW_NOT_FOUND", "42P01"),
        ("SELECT no_such_column FROM range(1)", "UNRESOLVED_COLUMN.WITH_SUGGESTION", "42703"),
        ("SELEC 1", "PARSE_SYNTAX_ERROR", "42601"),
        ("SELECT 1 / 0", "DIVIDE_BY_ZERO", "22012"),
        ("SELECT id / (id - 5) FROM range(10)", "DIVIDE_BY_ZERO", "22012"),
        ("SELECT CAST('a' AS INT)", "CAST_INVALID_INPUT", "22018"),
        ("SELECT raise_error('no')", "USER_RAISED_EXCEPTION", "P0001"),
        ("SET spark.sql.warehouse.dir = /x", "CANNOT_MODIFY_STATIC_CONFIG", "46110"),
        ("CREATE SCHEMA default", "SCHEMA_ALREADY_EXISTS", "42P06"),
    ],
)
async def test_error_of_a_wrong_query_has_its_class_and_sqlstate(
    engine: SparkConnectEngine, sql: str, error_class: str, sqlstate: str
) -> None:
    failed = await error(engine.session("errors"), sql)
    assert (failed.kind, failed.error_class, failed.sqlstate) == (
        APPLICATION,
        error_class,
        sqlstate,
    )
    assert error_class in failed.message


async def test_error_with_a_long_message_has_the_whole_message(engine: SparkConnectEngine) -> None:
    failed = await error(engine.session("errors"), f"SELECT raise_error('{'x' * 5000}')")
    assert "x" * 5000 in failed.message


async def test_write_that_fails_in_a_task_is_an_application_error(
    engine: SparkConnectEngine, schema: str
) -> None:
    await apply(engine, f"CREATE TABLE {schema}.t (v BIGINT) USING delta")
    with pytest.raises(EngineError) as caught:
        await apply(engine, f"INSERT INTO {schema}.t SELECT 1 DIV (id - 5) FROM range(10)")
    assert caught.value.kind is APPLICATION
    assert (caught.value.error_class, caught.value.sqlstate) == ("DIVIDE_BY_ZERO", "22012")


async def test_error_of_a_violated_constraint_has_its_class_and_sqlstate(
    engine: SparkConnectEngine, schema: str
) -> None:
    await apply(engine, f"CREATE TABLE {schema}.t (v BIGINT NOT NULL, w BIGINT) USING delta")
    await apply(engine, f"ALTER TABLE {schema}.t ADD CONSTRAINT positive CHECK (w > 0)")
    for values, error_class in (
        ("1, -1", "DELTA_VIOLATE_CONSTRAINT_WITH_VALUES"),
        ("NULL, 1", "DELTA_NOT_NULL_CONSTRAINT_VIOLATED"),
    ):
        with pytest.raises(EngineError) as caught:
            await apply(engine, f"INSERT INTO {schema}.t VALUES ({values})")
        assert caught.value.kind is APPLICATION
        assert caught.value.error_class == error_class
        assert caught.value.sqlstate.startswith("23")


async def test_wrong_token_is_an_availability_error(spark: LocalSpark) -> None:
    address = EngineAddress("127.0.0.1", spark.port, "wrong")
    async with contextlib.aclosing(
        SparkConnectEngine(address, ring="ring", cluster="a")
    ) as stranger:
        with pytest.raises(EngineError) as caught:
            await stranger.probe(timeout_s=10)
    assert (caught.value.kind, caught.value.error_class) == (AVAILABILITY, "UNAUTHENTICATED")


async def test_query_at_its_deadline_is_an_availability_error_and_stops(
    engine: SparkConnectEngine,
) -> None:
    session = engine.session("slow")
    failed = await error(session, SLOW, timeout_s=1)
    assert (failed.kind, failed.error_class) == (AVAILABILITY, "DEADLINE_EXCEEDED")
    await _wait_until_idle(engine, "slow")


async def test_cancel_stops_all_queries_of_its_session_only(engine: SparkConnectEngine) -> None:
    mine, other = engine.session("mine"), engine.session("other")
    running = [await mine.query(SqlText(SLOW), timeout_s=60) for _ in range(2)]
    assert (await anext(aiter(running[0]))).rows > 0
    waiting = asyncio.ensure_future(anext(aiter(running[1])))
    await _wait_until_active(engine, "mine", 2)
    await mine.cancel()
    for read in (_rest_of(running[0]), waiting):
        with pytest.raises(EngineError) as caught:
            await read
        assert (caught.value.kind, caught.value.error_class) == (AVAILABILITY, "OPERATION_CANCELED")
    await _wait_until_idle(engine, "mine")
    assert await rows(other, "SELECT 1") == [(1,)]


async def test_result_that_is_closed_early_stops_its_query(engine: SparkConnectEngine) -> None:
    stream = await engine.session("early").query(SqlText(SLOW), timeout_s=60)
    assert (await anext(aiter(stream))).rows > 0
    await stream.aclose()
    await _wait_until_idle(engine, "early")


@pytest.mark.thorough
async def test_query_cancelled_before_its_tasks_start_runs_no_tasks_later(
    engine: SparkConnectEngine, spark: LocalSpark
) -> None:
    """Spark loses an interrupt that comes so early, though it acknowledges it."""
    text = "SELECT count(*) FROM range(100000000000) WHERE id % 17 = 3"  # minutes on two cores

    async def give_up(after_ms: int) -> None:
        session = engine.session(f"early/{after_ms}")
        await session.settings()
        giving_up = asyncio.create_task(rows(session, text))
        await asyncio.sleep(after_ms / 1000)
        giving_up.cancel()
        await asyncio.gather(giving_up, return_exceptions=True)

    for after_ms in (0, 10, 20, 200):
        await give_up(after_ms)
    await asyncio.sleep(4)  # Spark has reported their tasks
    before = processor_s(spark)
    await asyncio.sleep(1)
    assert processor_s(spark) - before < 0.5


@pytest.mark.thorough
async def test_many_cancelled_queries_do_not_delay_another_query(
    engine: SparkConnectEngine, spark: LocalSpark, schema: str
) -> None:
    await apply(engine, f"CREATE TABLE {schema}.t (n BIGINT) USING delta")
    leaving = [
        asyncio.ensure_future(rows(engine.session("leaving"), f"SELECT {n}, n FROM {schema}.t"))
        for n in range(100)
    ]
    await asyncio.wait(leaving, timeout=1.0)  # by then most are looking for the table
    for each in leaving:
        each.cancel()
    await asyncio.gather(*leaving, return_exceptions=True)
    assert await rows(engine.session("staying"), f"SELECT n FROM {schema}.t") == []
    # What Derby writes down of each of them, it does with the lock that all others wait for.
    assert (spark.folder / "derby.log").stat().st_size < 100_000


async def test_session_runs_several_queries_at_once(engine: SparkConnectEngine) -> None:
    session = engine.session("parallel")
    results = await asyncio.gather(*(rows(session, f"SELECT {number}") for number in range(8)))
    assert results == [[(number,)] for number in range(8)]


@pytest.mark.thorough
async def test_result_of_200_mb_streams_in_bounded_memory(engine: SparkConnectEngine) -> None:
    sql = "SELECT id, repeat(string(id % 10), 492) AS text FROM range(0, 400000, 1, 80)"
    stream = await engine.session("large").query(SqlText(sql), timeout_s=120)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    size, count = 0, 0
    async with contextlib.aclosing(stream):
        async for chunk in stream:
            size += len(chunk.data)
            count += chunk.rows
            await asyncio.sleep(0)
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert count == 400_000
    assert size > 200_000_000
    assert grown_mb < 100


async def test_columns_of_a_query_and_of_a_table_have_sparks_type_texts(
    engine: SparkConnectEngine, schema: str
) -> None:
    types = "a BIGINT NOT NULL, b DECIMAL(10,2), c ARRAY<STRING>, d STRUCT<x: INT, y: DATE>"
    await apply(engine, f"CREATE TABLE {schema}.t ({types}) USING delta")
    columns = await engine.table_columns(f"{schema}.t")
    assert columns == [
        Column("a", "bigint", nullable=False),
        Column("b", "decimal(10,2)"),
        Column("c", "array<string>"),
        Column("d", "struct<x:int,y:date>"),
    ]
    assert await engine.session("columns").columns(f"SELECT b, c FROM {schema}.t") == columns[1:3]


async def test_columns_of_a_missing_table_are_an_application_error(
    engine: SparkConnectEngine,
) -> None:
    with pytest.raises(EngineError) as caught:
        await engine.table_columns("no_such_table")
    assert caught.value.error_class == "TABLE_OR_VIEW_NOT_FOUND"


async def test_probe_of_a_working_server_succeeds(engine: SparkConnectEngine) -> None:
    await engine.probe(timeout_s=30)


async def test_probe_without_a_server_is_refused_at_once(unused_tcp_port: int) -> None:
    address = EngineAddress("127.0.0.1", unused_tcp_port, "")
    async with contextlib.aclosing(
        SparkConnectEngine(address, ring="ring", cluster="a")
    ) as nowhere:
        with pytest.raises(EngineError) as caught:
            async with asyncio.timeout(5):
                await nowhere.probe(timeout_s=30)
    assert (caught.value.kind, caught.value.error_class) == (AVAILABILITY, REFUSED)


@pytest.mark.thorough
async def test_lane_is_found_and_interrupted_by_a_later_engine(
    engine: SparkConnectEngine, spark: LocalSpark, schema: str
) -> None:
    await apply(engine, f"CREATE TABLE {schema}.t (n BIGINT) USING delta", lane=3)
    running = asyncio.create_task(
        apply(engine, f"INSERT INTO {schema}.t {SLOW}", version=1, lane=3)
    )
    later = SparkConnectEngine(address_of(spark), ring="ring", cluster="a")
    async with contextlib.aclosing(later):
        await _wait_until_lane_active(engine, 3)
        await later.lane(3).fence()
        with pytest.raises(EngineError) as caught:
            await running
        assert (caught.value.kind, caught.value.error_class) == (AVAILABILITY, "OPERATION_CANCELED")
        await apply(later, f"INSERT INTO {schema}.t VALUES (1)", version=1, lane=3)
    assert await rows(engine.session("check"), f"SELECT n FROM {schema}.t") == [(1,)]


async def test_lane_fenced_by_another_engine_is_refused_with_and_without_a_later_session(
    engine: SparkConnectEngine, spark: LocalSpark, schema: str
) -> None:
    await apply(engine, f"CREATE TABLE {schema}.t (n BIGINT) USING delta", lane=8)
    later = SparkConnectEngine(address_of(spark), ring="ring", cluster="a")
    stale = f"INSERT INTO {schema}.t VALUES (1)"
    async with contextlib.aclosing(later):
        began = time.monotonic()
        await asyncio.gather(*(later.lane(index).fence() for index in range(LANES_MAX)))
        assert time.monotonic() - began < 10
        for _ in range(2):  # no session is there; then the later one's
            lane = engine.lane(8)
            observed = lane._remote._observed
            with pytest.raises(EngineError) as caught:
                await apply(engine, stale, lane=8)
            assert caught.value.error_class == "INVALID_HANDLE.SESSION_CHANGED"
            await apply(later, f"INSERT INTO {schema}.t VALUES (2)", lane=8)
            lane._in_doubt, lane._remote._observed = False, observed  # as one that slept
    assert await rows(engine.session("check"), f"SELECT n FROM {schema}.t") == [(2,), (2,)]


async def test_lane_uses_a_new_session_only_after_it_is_authorised(
    spark: LocalSpark, schema: str
) -> None:
    requested: list[str] = []
    made = SparkConnectEngine(address_of(spark), ring="ring", cluster="other")

    async def authorise() -> None:
        requested.append(lane._remote._observed)

    async with contextlib.aclosing(made):
        lane = made.lane(0, authorise)
        await apply(made, f"CREATE TABLE {schema}.t (n BIGINT) USING delta")
        assert requested == ["", lane._remote._observed] and requested[1]
        await apply(made, f"INSERT INTO {schema}.t VALUES (1)")
        assert len(requested) == 2
        await lane.fence()
        await apply(made, f"INSERT INTO {schema}.t VALUES (2)")
        assert len(requested) == 4 and len(set(requested[1:])) == 2


@pytest.mark.thorough
async def test_lane_stops_a_cancelled_statement_before_it_runs_the_next(
    engine: SparkConnectEngine, schema: str
) -> None:
    await apply(engine, f"CREATE TABLE {schema}.t (n BIGINT) USING delta")
    running = asyncio.create_task(apply(engine, f"INSERT INTO {schema}.t {SLOW}", version=1))
    await _wait_until_lane_active(engine, 0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await apply(engine, f"INSERT INTO {schema}.t VALUES (2)", version=2)
    assert await rows(engine.session("check"), f"SELECT n FROM {schema}.t") == [(2,)]


@pytest.mark.thorough
async def test_lane_whose_session_was_closed_fails_once_and_continues_in_a_new_session(
    engine: SparkConnectEngine, schema: str
) -> None:
    await apply(engine, f"CREATE TABLE {schema}.t (n BIGINT) USING delta", lane=5)
    await engine.lane(5)._remote.release()
    settings = Settings(schema=schema, time_zone="Asia/Tokyo")
    sql = "INSERT INTO t SELECT length(current_timezone())"
    # Whoever closed it may have taken over the cluster: that is not for the lane to decide.
    with pytest.raises(EngineError) as caught:
        await apply(engine, sql, version=1, settings=settings, lane=5)
    assert caught.value.kind is AVAILABILITY
    await apply(engine, sql, version=1, settings=settings, lane=5)
    assert await rows(engine.session("check"), f"SELECT n FROM {schema}.t") == [(10,)]


@pytest.mark.thorough
async def test_lane_settings_hold_for_one_operation_only(
    engine: SparkConnectEngine, schema: str
) -> None:
    await apply(engine, f"CREATE TABLE {schema}.t (a STRING, b STRING, c STRING) USING delta")
    sql = (
        f"INSERT INTO {schema}.t SELECT current_schema(), current_timezone(), "
        "string(try_divide(1, 0) IS NULL AND CAST('x' AS INT) IS NULL)"
    )
    lax = Settings(schema=schema, time_zone="Asia/Tokyo", ansi=False)
    await apply(engine, sql, version=1, settings=lax)
    with pytest.raises(EngineError) as caught:
        await apply(engine, sql, version=2)
    assert caught.value.error_class == "CAST_INVALID_INPUT"
    show = f"INSERT INTO {schema}.t SELECT current_schema(), current_timezone(), NULL"
    await apply(engine, show, version=3)
    assert await rows(engine.session("check"), f"SELECT * FROM {schema}.t ORDER BY b") == [
        (schema, "Asia/Tokyo", "true"),
        ("default", "UTC", None),
    ]


async def test_lane_confs_hold_for_one_operation_only(
    engine: SparkConnectEngine,
) -> None:
    key = "spark.sql.shuffle.partitions"
    lane = engine.lane(6)
    await apply(engine, "SELECT 1", settings=Settings(confs=((key, "7"),)), lane=6)
    assert (await lane._remote.get_confs([key]))[key] == "7"
    await apply(engine, "SELECT 1", lane=6)
    assert (await lane._remote.get_confs([key]))[key] == "2"


async def test_session_confs_are_removed_by_the_next_configure(
    engine: SparkConnectEngine,
) -> None:
    session = engine.session("confs")
    show = "SET spark.sql.shuffle.partitions"
    for confs, value in (((("spark.sql.shuffle.partitions", "5"),), "5"), ((), "2")):
        await session.configure(Settings(confs=confs))
        assert (await rows(session, show))[0][1] == value


async def test_lane_confs_that_are_refused_leave_no_conf_set(
    engine: SparkConnectEngine,
) -> None:
    key, static = "spark.sql.shuffle.partitions", "spark.sql.warehouse.dir"
    bad = Settings(confs=((key, "9"), (static, "/x")))
    with pytest.raises(EngineError) as caught:
        await apply(engine, "SELECT 1", settings=bad, lane=7)
    assert caught.value.kind is APPLICATION
    await apply(engine, "SELECT 1", lane=7)
    assert (await engine.lane(7)._remote.get_confs([key]))[key] == "2"


@pytest.mark.thorough
async def test_lane_after_renewal_uses_the_current_function_and_misses_a_dropped_schema(
    engine: SparkConnectEngine, schema: str
) -> None:
    inside, sql = Settings(schema=schema), "INSERT INTO t SELECT f(1)"
    await apply(engine, "CREATE FUNCTION f(x INT) RETURNS INT RETURN x", settings=inside)
    await apply(engine, "CREATE TABLE t (x INT) USING delta", settings=inside)
    await apply(engine, sql, settings=inside, lane=5)
    await apply(
        engine, "CREATE OR REPLACE FUNCTION f(x INT) RETURNS INT RETURN 10 * x", settings=inside
    )
    engine.lane(5).renew()  # else it goes on with the function that it knows
    await apply(engine, sql, settings=inside, lane=5)
    assert sorted(await rows(engine.session("r"), f"SELECT x FROM {schema}.t")) == [(1,), (10,)]

    other = Settings(schema=f"{schema}_2")
    await apply(engine, f"CREATE SCHEMA {other.schema}")
    await apply(engine, "SELECT 1", settings=other, lane=5)
    await apply(engine, f"DROP SCHEMA {other.schema}")
    engine.lane(5).renew()
    with pytest.raises(EngineError) as caught:
        await apply(engine, "SELECT 1", settings=other, lane=5)
    assert (caught.value.kind, caught.value.error_class) == (APPLICATION, "SCHEMA_NOT_FOUND")


async def test_session_is_busy_while_a_result_is_partly_read(
    engine: SparkConnectEngine,
) -> None:
    session = engine.session("busy")
    stream = await session.query(SqlText("SELECT id FROM range(0, 10, 1, 10)"), timeout_s=60)
    assert not session.busy
    await anext(aiter(stream))
    assert session.busy
    await stream.aclose()
    async with asyncio.timeout(30):  # it counts until Spark has let its query go
        while session.busy:
            await session.touch()


async def _rest_of(stream: ResultStream) -> None:
    async for _ in stream:
        pass


async def _wait_until_active(engine: SparkConnectEngine, key: str, operations: int) -> None:
    await _wait_for(engine.session(key)._remote, operations)


async def _wait_until_idle(engine: SparkConnectEngine, key: str) -> None:
    await _wait_for(engine.session(key)._remote, 0)


async def _wait_until_lane_active(engine: SparkConnectEngine, index: int) -> None:
    await _wait_for(engine.lane(index)._remote, 1)


async def _wait_for(remote: RemoteSession, operations: int) -> None:
    async with asyncio.timeout(30):
        while True:
            try:
                if len(await remote._operations(_ACTIVE)) == operations:
                    return
            except EngineError as error:
                assert error.error_class.startswith("INVALID_HANDLE")
            await asyncio.sleep(0.05)


async def test_server_settings_of_a_local_spark_are_read_and_are_as_required(
    engine: SparkConnectEngine,
) -> None:
    other = engine.session("elsewhere")
    await rows(other, "SET spark.sql.ansi.enabled = false")  # a session's own affair
    requested = [*to_look_up([]), "spark.sql.ansi.enabled", "spark.sql.no.such"]
    found = await engine.server_settings(requested)
    assert await engine.server_settings(requested) == found  # whatever ran since
    for version in ("spark", "java", "delta"):
        assert (found[f"version.{version}"] or "")[:1].isdigit(), found
    assert found["spark.sql.ansi.enabled"] == "true"  # by default
    assert found["spark.sql.no.such"] is None
    assert found["spark.sql.extensions"] == EXTENSIONS
    assert found["spark.sql.sources.default"] == "delta"
    assert not any(name.startswith("spark.driver.") for name in found)
    reported = as_reported(found, "secret")
    assert "spark.sql.warehouse.dir" in found and "spark.sql.warehouse.dir" not in reported
    assert compare(reported, {"b": reported}) == Findings()
