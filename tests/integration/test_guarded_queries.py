"""Guarded queries on a real Spark: those that are none do not run, all others are as without."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable

import pyarrow as pa
import pytest

from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import ErrorKind, NoQueryError
from haproc.engine.remote import RemoteSession, plan_of
from haproc.engine.session import SparkSession
from haproc.engine.statement import GuardedSql, SqlText
from haproc.failure import ErrorClass
from tests.integration.engine_calls import SLOW, rows
from tests.integration.test_reader import MISTAKES, OBJECTS, TIMEOUT_S, chunks, failure, told

pytestmark = pytest.mark.spark
FAILURES = [
    "SELECT 1 / 0",
    "SELECT id / (id - 5) FROM range(10)",
    "SELECT CAST('a' AS INT)",
    "SELECT 1L + 9223372036854775807L",
    "SELECT element_at(array(1), 5)",
    "SELECT (SELECT id FROM range(3))",
    "SELECT raise_error('HAPROC_NO_QUERY: DeleteFromTable')",
    "SELECT * FROM parquet.`/no/such/path`",
]


@pytest.mark.thorough
@pytest.mark.parametrize("sql", [*MISTAKES, *FAILURES])
async def test_guarded_query_that_is_wrong_gives_the_error_of_itself(
    engine: SparkConnectEngine, sql: str
) -> None:
    session = engine.session("wrong")
    plain = await failure(chunks(session, SqlText(sql)))
    assert told(await failure(chunks(session, GuardedSql(sql, ("/no",))))) == told(plain)


QUERIES = [
    "SELECT 1 AS a, 'x' AS b, DATE'2024-02-29' AS c, array(1, NULL) AS d",
    "SELECT id, id % 7 AS m, string(id) AS s FROM range(0, 100000, 1, 4)",
    "SELECT id % 3 AS k, count(*) AS n FROM range(1000) GROUP BY ALL ORDER BY k",
    "WITH RECURSIVE r(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM r WHERE n < 5) TABLE r",
    "FROM range(3) |> WHERE id > 0 |> SELECT id * 2 AS d",
    "VALUES (1, 'a'), (2, NULL)",
    "SELECT explode(array(1, 2)), x FROM tv, (SELECT x AS y)",
    "SELECT * FROM range(0) WHERE id IN (SELECT k FROM tv)",
    "SELECT count(*) FROM {s}.t VERSION AS OF 0",
]


@pytest.fixture
async def session(engine: SparkConnectEngine, schema: str) -> AsyncIterator[SparkSession]:
    made = engine.session("guarded")
    for sql in (*OBJECTS[:2], *OBJECTS[-3:]):
        await rows(made, sql.format(s=schema))
    yield made
    await made.aclose()


@pytest.mark.parametrize("query", QUERIES)
async def test_guarded_query_gives_the_rows_and_the_schema_of_itself(
    session: SparkSession, schema: str, query: str
) -> None:
    sql = query.format(s=schema)
    tables = [
        pa.concat_tables(pa.ipc.open_stream(chunk.data).read_all() for chunk in each)
        for each in [await chunks(session, asked) for asked in (SqlText(sql), GuardedSql(sql))]
    ]
    assert tables[0].schema.equals(tables[1].schema, check_metadata=True)
    assert tables[0].equals(tables[1])
    assert await session.schema(GuardedSql(sql)) == await session.schema(SqlText(sql))


async def test_guarded_query_reports_the_metrics_of_itself(session: SparkSession) -> None:
    remote: RemoteSession = session._remote
    found = []
    for question in (SqlText("SELECT count(*) FROM tv"), GuardedSql("SELECT count(*) FROM tv")):
        told = remote.execute(plan_of(question), str(uuid.uuid4()), TIMEOUT_S)
        found.append(
            [
                (each.name, sorted(each.execution_metrics))
                async for response in told
                for each in response.metrics.metrics
            ]
        )
    assert found[0] == found[1] != []


REFUSED = {
    "INSERT INTO {s}.t VALUES (9, 'z')": "InsertIntoStatement",
    "WITH a AS (SELECT 9, 'z') INSERT INTO {s}.t SELECT * FROM a": "InsertIntoStatement",
    "FROM tv INSERT INTO {s}.t SELECT *": "InsertIntoStatement",
    "DELETE FROM {s}.t": "DeleteFromTable",
    "DROP TABLE {s}.t": "DropTable",
    "SHOW TABLES": "ShowTables",
    "SET spark.sql.shuffle.partitions = 9": "SetCommand",
    "BEGIN DELETE FROM {s}.t; END": "CompoundBody",
    "EXECUTE IMMEDIATE 'DELETE FROM {s}.t'": "UnresolvedExecuteImmediate",
    "SELECT reflect('java.lang.System', 'setProperty', 'a', 'b')": "CallMethodViaReflection",
    "SELECT TRANSFORM (k) USING 'cat' AS (a) FROM tv": "ScriptTransformation",
}


async def test_guarded_query_that_is_none_runs_nothing_and_says_what_it_is(
    session: SparkSession, schema: str
) -> None:
    for sql, effect in REFUSED.items():
        error = await failure(chunks(session, GuardedSql(sql.format(s=schema))))
        assert isinstance(error, NoQueryError), (sql, error.message)
        assert any(effect in each for each in error.effects), (sql, error.effects)
        assert (error.kind, error.error_class) == (ErrorKind.APPLICATION, ErrorClass.NO_QUERY)
    assert await rows(session, f"SELECT count(*) FROM {schema}.t") == [(2,)]
    assert await rows(session, "SET spark.sql.shuffle.partitions") != [
        ("spark.sql.shuffle.partitions", "9")
    ]


async def test_guarded_query_that_is_cancelled_or_left_ends(session: SparkSession) -> None:
    """SLOW itself calls a method of Java's, which a guarded query may not."""
    assert isinstance(await failure(chunks(session, GuardedSql(SLOW))), NoQueryError)
    busy = "SELECT count(*) FROM range(0, 40000000000, 1, 100) WHERE sha2(string(id), 256) = ''"
    for ends in ("cancel", "left"):
        reading_on = asyncio.ensure_future(chunks(session, GuardedSql(busy)))
        await _until(lambda: session.busy)
        await asyncio.sleep(1.0)
        if ends == "cancel":
            await session.cancel()
            error = await failure(reading_on)
            assert error.error_class == "OPERATION_CANCELED"
        else:
            reading_on.cancel()
            await asyncio.gather(reading_on, return_exceptions=True)
        await _until(lambda: not session.busy)


async def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.05)
