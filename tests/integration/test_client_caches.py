"""Tests that a client's cached tables change no other client's rows and no write's outcome.

A program caches a table, queries and views over it, in each possible way. After each way of
writing to the table, all reads of the program are compared with a session that uses no cache.
Before the write, the test checks that the program really reads from the cache.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from haproc.engine.arrow import stream_of
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.statement import SqlText
from haproc.ring.spark import LocalSpark
from haproc.route.model import Request, Sent, SentRows, SentSql
from haproc.route.service import RingService
from tests.integration.conftest import address_of
from tests.integration.one_cluster import one_cluster
from tests.integration.pyspark_program import Program
from tests.integration.test_connect_door import door

pytestmark = [pytest.mark.spark, pytest.mark.thorough]  # a Spark of its own: 90 s
SESSION = "caches"
NUMBERS = itertools.count()
FREED_S = 10.0


@pytest.fixture
async def service(spark: LocalSpark) -> AsyncIterator[RingService]:
    async with one_cluster(address_of(spark)) as (service, _):
        await service.open_session(SESSION, "eve", [], afresh=False)
        yield service
        await ask(service, "CLEAR CACHE", SESSION)


async def ask(
    service: RingService, sql: str, session: str | None = None
) -> list[dict[str, object]]:
    """Run a statement, in eve's session or as another user without one."""
    return await send(service, SentSql(sql), session)


async def send(
    service: RingService, sent: Sent, session: str | None = None
) -> list[dict[str, object]]:
    number, user = f"r{next(NUMBERS)}", "eve" if session else "ann"
    request = Request(number, sent, number, user, session_id=session, timeout_s=120)
    answer = await service.execute(request)
    rows: list[dict[str, object]] = []
    async with aclosing(answer.result) as result:
        async for chunk in result:
            rows += pa.ipc.open_stream(chunk.data).read_all().to_pylist()
    return rows


@pytest.mark.thorough
async def test_insert_after_whose_commit_a_cached_query_fails_is_applied_once(
    service: RingService, schema: str
) -> None:
    """After the commit Spark plans the cached query again, and reports its error for the INSERT."""
    table = f"{schema}.t"
    await ask(service, f"CREATE TABLE {table} (k INT, p STRING) USING delta PARTITIONED BY (p)")
    await ask(service, f"INSERT INTO {table} VALUES (1, '1')")
    await ask(
        service, f"CACHE TABLE mine AS SELECT * FROM {table} WHERE CAST(p AS INT) > 0", SESSION
    )
    inserts = [f"INSERT INTO {table} VALUES ({k}, '{p}')" for k, p in enumerate("23x4", 10)]
    await asyncio.gather(*(ask(service, each) for each in inserts))
    held = await ask(service, f"SELECT k, count(*) AS times FROM {table} GROUP BY k ORDER BY k")
    assert [(row["k"], row["times"]) for row in held] == [(k, 1) for k in (1, 10, 11, 12, 13)]


async def test_cached_table_that_is_recreated_shows_no_old_rows(
    service: RingService, schema: str
) -> None:
    made = f"{schema}_made"
    for value in (1, None):
        await ask(service, f"CREATE SCHEMA {made}")
        await ask(service, f"CREATE TABLE {made}.c (k INT) USING delta")
        if value is not None:
            await ask(service, f"INSERT INTO {made}.c VALUES ({value})")
            await ask(service, f"CACHE TABLE {made}.c", SESSION)
            assert await ask(service, f"SELECT k FROM {made}.c") == [{"k": value}]
        else:
            assert await ask(service, f"SELECT k FROM {made}.c") == []
        await ask(service, f"DROP SCHEMA {made} CASCADE")


WAYS = {
    "dynamic overwrite by a DataFrame": "ROWS.writeTo(T).overwritePartitions()",
    "INSERT": "sql(f\"INSERT INTO {T} VALUES (7, 70, 'a')\")",
    "INSERT OVERWRITE": "sql(f\"INSERT OVERWRITE {T} VALUES (8, 80, 'a'), (9, 90, 'b')\")",
    "INSERT OVERWRITE of a partition": (
        "sql(f\"INSERT OVERWRITE {T} PARTITION (p = 'a') SELECT 5, 55\")"
    ),
    "REPLACE WHERE": "sql(f\"INSERT INTO {T} REPLACE WHERE p = 'a' VALUES (6, 61, 'a')\")",
    "UPDATE": 'sql(f"UPDATE {T} SET v = v + 1")',
    "DELETE": "sql(f\"DELETE FROM {T} WHERE p = 'a'\")",
    "MERGE": (
        "sql(f\"MERGE INTO {T} USING (SELECT 1 AS k, 1000 AS v, 'a' AS p) s ON {T}.k = s.k \"\n"
        '"WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *")'
    ).replace("\n", ""),
    "computed rows": 'sql(f"INSERT INTO {T} SELECT 50, CAST(rand() * 1000 AS INT), uuid()")',
    "TRUNCATE": 'sql(f"TRUNCATE TABLE {T}")',
    "CTAS that replaces": (
        'sql(f"CREATE OR REPLACE TABLE {T} USING delta PARTITIONED BY (p) AS "'
        "\"SELECT 1 AS k, 11 AS v, 'a' AS p\")"
    ),
    "writeTo.append": "ROWS.writeTo(T).append()",
    "writeTo.overwrite": "ROWS.writeTo(T).overwrite(F.col('p') == 'a')",
    "saveAsTable append": "ROWS.write.format('delta').mode('append').saveAsTable(T)",
    "saveAsTable overwrite": "ROWS.write.format('delta').mode('overwrite').saveAsTable(T)",
    "insertInto": "ROWS.write.insertInto(T)",
    "insertInto overwrite": "ROWS.write.insertInto(T, overwrite=True)",
    "mergeInto": (
        "ROWS.alias('s').mergeInto(T, F.expr(f'{T}.k = s.k'))"
        ".whenMatched().updateAll().whenNotMatched().insertAll().merge()"
    ),
}
READS = {
    "the table": "spark.table(T)",
    "a cached query": "QUERY",
    "the same query, made anew": "spark.table(T).where('k >= 0')",
    "a cached view": "spark.table(f'{T}_view')",
    "a temporary view of a cached DataFrame": "spark.table('kept')",
    "a cached temporary view": "spark.table('named')",
    "a subquery": 'sql(f"SELECT * FROM {T} WHERE k IN (SELECT k FROM {T})")',
}
MADE = (
    "QUERY = spark.table(T).where('k >= 0')",
    "QUERY.createOrReplaceTempView('kept')",
    "sql(f'CREATE OR REPLACE TEMPORARY VIEW named AS SELECT * FROM {T} WHERE k >= -1')",
    'sql(f"CREATE VIEW {T}_view AS SELECT * FROM {T} WHERE v >= 0")',
)
CACHED = (
    "QUERY.persist()",
    *(f"sql(f'CACHE LAZY TABLE {name}')" for name in ("{T}", "{T}_view", "named")),
)
DIGEST = "count(*) AS n", "coalesce(sum(v), 0) AS v", "coalesce(sum(k), 0) AS k"


def prepare(program: Program, table: str) -> None:
    """Create the table, queries over it, and ALL, which has one row for each way of reading."""
    program.run(f"T = {table!r}")
    program.run("sql = spark.sql")
    rows = "[(1, 100, 'a'), (4, 400, 'a')], 'k INT, v INT, p STRING'"
    program.run(f"ROWS = spark.createDataFrame({rows})")
    program.run('sql(f"CREATE TABLE {T} (k INT, v INT, p STRING) USING delta PARTITIONED BY (p)")')
    program.run("sql(f\"INSERT INTO {T} VALUES (1, 1, 'a'), (2, 2, 'a'), (3, 3, 'b')\")")
    for line in MADE:
        program.run(line)
    columns = {what: (f"'{what}' AS what", *DIGEST) for what in READS}
    parts = [f"{read}.selectExpr(*{columns[what]!r})" for what, read in READS.items()]
    union = "".join(f".union({part})" for part in parts[1:])
    program.run(f"ALL = {parts[0]}{union}")


def read_all(program: Program) -> dict[str, list[int]]:
    found = program.run("[list(row) for row in ALL.collect()]")
    return {what: numbers for what, *numbers in found}


def is_cached(program: Program) -> bool:
    """Return whether all of ALL is read from the cache and not from files."""
    plan = str(program.run("ALL._explain_string(True)"))
    optimized = plan.partition("== Optimized Logical Plan ==")[2].partition("== Physical")[0]
    return "InMemoryRelation [" in optimized and "Relation spark_catalog" not in optimized


@pytest.fixture
async def truth(engine: SparkConnectEngine, schema: str) -> Callable[[], Any]:
    """Return a function that reads the table past all caches."""

    async def row(sql: str) -> dict[str, Any]:
        result = await engine.session("truth").query(SqlText(sql), timeout_s=120)
        async with aclosing(result):
            chunks = [chunk.data async for chunk in result]
        found: list[dict[str, Any]] = pa.ipc.open_stream(chunks[0]).read_all().to_pylist()
        return found[0]

    async def read() -> list[int]:
        newest = (await row(f"DESCRIBE HISTORY {schema}.t LIMIT 1"))["version"]
        # Nothing of a version that is named is cached, with or without the plugin.
        named = f"{schema}.t VERSION AS OF {newest}"
        return list((await row(f"SELECT {', '.join(DIGEST)} FROM {named}")).values())

    return read


async def append_rows(service: RingService, table: str) -> None:
    rows = pa.table({"k": pa.array([7], pa.int32()), "v": pa.array([9], pa.int32()), "p": ["a"]})
    await send(service, SentRows(table, stream_of(rows)))


async def insert_at_once(service: RingService, table: str) -> None:
    """Send INSERTs together; some of them are run as one statement."""
    inserts = (f"INSERT INTO {table} VALUES ({k}, {k}, 'c')" for k in range(20, 26))
    await asyncio.gather(*(ask(service, each) for each in inserts))


OTHER_WAYS = {"rows over HTTP": append_rows, "combined INSERTs": insert_at_once}


async def compare(
    spark: LocalSpark,
    service: RingService,
    table: str,
    truth: Callable[[], Any],
    folder: Path,
    ways: Iterable[str],
) -> None:
    """For each way of writing: cache everything, write, and compare all reads."""
    wrong: list[str] = []
    run = asyncio.to_thread
    async with door(spark, folder) as port:
        program = await run(Program, f"sc://localhost:{port}/;")
        try:
            await run(prepare, program, table)
            for way in ways:
                for line in CACHED:
                    await run(program.run, line)
                await run(read_all, program)
                if not await run(is_cached, program):
                    wrong.append(f"before {way}: not all of it comes from the cache")
                if way in WAYS:
                    await run(program.run, WAYS[way])
                else:
                    await OTHER_WAYS[way](service, table)
                held, found = await truth(), await run(read_all, program)
                for what, numbers in found.items():
                    if numbers != held:
                        wrong.append(f"after {way}: {what} gives {numbers}, not {held}")
        finally:
            await run(program.end)
    assert not wrong, "\n".join(wrong)


@pytest.mark.thorough
async def test_cached_reads_are_current_after_writes_that_spark_s_cache_does_not_notice(
    spark: LocalSpark,
    service: RingService,
    schema: str,
    truth: Callable[[], Any],
    tmp_path: Path,
) -> None:
    ways = ("dynamic overwrite by a DataFrame", "rows over HTTP", "MERGE")
    await compare(spark, service, f"{schema}.t", truth, tmp_path, ways)


@pytest.mark.thorough
async def test_cached_reads_are_current_after_each_way_of_writing(
    spark: LocalSpark,
    service: RingService,
    schema: str,
    truth: Callable[[], Any],
    tmp_path: Path,
) -> None:
    await compare(spark, service, f"{schema}.t", truth, tmp_path, [*WAYS, *OTHER_WAYS])


TURNS, TURNS_AT_ONCE = 100, 5
TURN = """
def turn(number):
    Q.persist()
    found = Q.count()
    spark.sql(f"INSERT INTO {T} VALUES ({number})")
    return found
"""
"""Each turn reads a cached query; without HAProc the next turn would show old rows."""


@pytest.mark.thorough
async def test_query_persisted_repeatedly_never_shows_rows_from_before_a_write(
    spark: LocalSpark, schema: str, tmp_path: Path
) -> None:
    """Two programs, each with a table of its own; half of the turns each."""

    def work(port: int, table: str) -> list[int]:
        program, found = Program(f"sc://localhost:{port}/;"), []
        try:
            program.run(f"T = {table!r}")
            program.run('spark.sql(f"CREATE TABLE {T} (k INT) USING delta")')
            program.run("Q = spark.table(T).where('k >= 0')")
            program.run(f"exec({TURN!r})")
            for first in range(0, TURNS // 2, TURNS_AT_ONCE):
                numbers = range(first, first + TURNS_AT_ONCE)
                found += program.run(f"[turn(n) for n in {numbers}]")
        finally:
            program.end()
        return found

    async with door(spark, tmp_path) as port:
        tables = (f"{schema}.t{number}" for number in range(2))
        for found in await asyncio.gather(
            *(asyncio.to_thread(work, port, table) for table in tables)
        ):
            assert found == [*range(TURNS // 2)]


def blocks(spark: LocalSpark) -> set[str]:
    """Return the data sets that Spark keeps on its disk."""
    files = (spark.folder / "local").rglob("rdd_*")
    return {"_".join(file.name.split("_")[:2]) for file in files}


def held(spark: LocalSpark, at_most: int) -> set[str]:
    """Return the kept data sets as soon as they are few enough, or after FREED_S."""
    end = time.monotonic() + FREED_S
    while len(found := blocks(spark)) > at_most and time.monotonic() < end:
        time.sleep(0.1)
    return found


@pytest.mark.thorough
async def test_cached_rows_of_older_versions_are_freed(
    spark: LocalSpark, schema: str, tmp_path: Path, turns: int = 8
) -> None:
    """Otherwise each turn would leave its rows: no plan finds them any more, nor does uncache."""
    run = asyncio.to_thread
    before = len(blocks(spark))
    async with door(spark, tmp_path) as port:
        program = await run(Program, f"sc://localhost:{port}/;")
        try:
            await run(program.run, "from pyspark import StorageLevel as Level")
            await run(program.run, f"spark.sql('CREATE TABLE {schema}.t (k BIGINT) USING delta')")
            await run(program.run, f"Q = spark.table('{schema}.t').where('k >= 0')")
            for turn in range(turns):
                write = f"spark.range({turn}, {turn + 1}).withColumnRenamed('id', 'k')"
                await run(program.run, f"{write}.writeTo('{schema}.t').append()")
                await run(program.run, "Q.persist(Level.DISK_ONLY)")
                assert await run(program.run, "Q.count()") == turn + 1
                assert len(await run(held, spark, before + 1)) == before + 1
            await run(program.run, "Q.unpersist(blocking=True)")
            assert len(await run(held, spark, before)) == before
        finally:
            await run(program.end)
