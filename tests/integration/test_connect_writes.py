"""Tests of PySpark's objects after a write through the door, compared with plain Spark."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import quote

import pytest

from haproc.ring.spark import LocalSpark
from tests.integration.pyspark_program import FailedError, Program
from tests.integration.test_connect_door import behind_a_door, door, run_beside

pytestmark = pytest.mark.spark

_OBSERVED_WRITES = {
    "insertInto": '{}.write.insertInto("{}")',
    "append": '{}.writeTo("{}").append()',
    "mergeInto": '{}.alias("s").mergeInto("{}", F.expr("s.id = x.id - 1"))'
    ".whenNotMatched().insertAll().merge()",
}
_SOURCES = {
    "as it stands": "spark.range(50)",
    "as rows": 'spark.range(50).repartition(3).filter("rand() >= 0")',
}


@pytest.mark.thorough
@behind_a_door()
def test_observation_of_a_write_has_the_metrics_of_plain_spark(
    program: Program, schema: str
) -> None:
    """The write runs on each cluster, or its query runs once and the rows go to all clusters."""
    run = program.run
    run("from pyspark.sql import Observation, functions as F")
    for source, frame in _SOURCES.items():
        for way, write in _OBSERVED_WRITES.items():
            run(f'spark.sql("CREATE OR REPLACE TABLE {schema}.x (id BIGINT) USING delta")')
            run("seen = Observation()")
            observed = f'{frame}.observe(seen, F.count("*").alias("cnt"), F.max("id"))'
            run(write.format(observed, f"{schema}.x"))
            found = run("sorted(seen.get.items())")
            assert found == [["cnt", 50], ["max(id)", 49]], (source, way)
            assert run(f'spark.table("{schema}.x").count()') == 50


@behind_a_door()
def test_dataframe_returned_by_create_table_reads_its_table(program: Program, schema: str) -> None:
    run = program.run
    run("from pyspark.sql.types import LongType, StructType")
    run('made = StructType().add("a", LongType())')
    run(f'd = spark.catalog.createTable("{schema}.n", schema=made, source="delta")')
    assert run("d.schema == made")
    run(f'spark.sql("INSERT INTO {schema}.n VALUES (1), (2)")')
    assert run('d.filter("a > 1").count()') == 1


_DEFAULTS = (
    ("spark.sql.ansi.enabled", "false"),
    ("spark.sql.session.timeZone", "Asia/Tokyo"),
    ("spark.sql.shuffle.partitions", "3"),
)


@pytest.mark.thorough
@behind_a_door(session_defaults=_DEFAULTS)
def test_session_starts_with_the_rings_settings_and_writes_and_resets_with_them(
    program: Program, schema: str
) -> None:
    run = program.run

    def held() -> list[str]:
        return [str(run(f'spark.conf.get("{name}")')) for name, _ in _DEFAULTS]

    begins = [value for _, value in _DEFAULTS]
    assert held() == begins
    assert run('spark.sql("SELECT 1/0").collect()') == [[None]]
    run(f'spark.sql("CREATE TABLE {schema}.d (a DOUBLE, z STRING) USING delta")')
    run(f'spark.sql("INSERT INTO {schema}.d SELECT id / 0, current_timezone() FROM range(1)")')
    assert run(f'spark.table("{schema}.d").collect()') == [[None, "Asia/Tokyo"]]
    run('spark.conf.set("spark.sql.shuffle.partitions", "5")')
    run('spark.conf.set("spark.sql.ansi.enabled", "true")')
    for name, _ in _DEFAULTS:
        run(f'spark.conf.unset("{name}")')
    assert held() == begins
    run('spark.sql("SET spark.sql.shuffle.partitions = 7")')
    run('spark.sql("RESET")')
    assert held() == begins


_TARGET = (
    "CREATE TABLE {0}.w (id BIGINT NOT NULL, name VARCHAR(4), n INT, at TIMESTAMP, "
    "twice BIGINT GENERATED ALWAYS AS (id * 2), d DATE) USING delta PARTITIONED BY (n)"
)
_ROWS = {
    "as they are": '[(1, "x", 2)], "id BIGINT, name STRING, n INT"',
    "in another order": '[(3, 2, "y")], "n INT, id BIGINT, name STRING"',
    "numbers alone": '[(3, 4)], "id BIGINT, n INT"',
    "smaller numbers": '[(4, 5)], "id INT, n TINYINT"',
    "a larger number than fits": '[(4, 5 << 40)], "id BIGINT, n BIGINT"',
    "a longer text than fits": '[(1, "abcdef")], "id BIGINT, name STRING"',
    "null where none may be": '[(None, "x")], "id BIGINT, name STRING"',
    "a column too many": '[(1, 2)], "id BIGINT, other INT"',
    "a column twice": '[(1, 2)], "id BIGINT, ID BIGINT"',
    "a wrong generated value": '[(1, 3)], "id BIGINT, twice BIGINT"',
    "a right generated value": '[(1, 2)], "id BIGINT, twice BIGINT"',
    "a struct": '[(1, (2,))], "id BIGINT, n STRUCT<x: INT>"',
    "a moment": '[(1, datetime(2026, 1, 2, 3))], "id BIGINT, at TIMESTAMP"',
    "a text for a number": '[(1, "7")], "id BIGINT, n STRING"',
    "names only": '[(8, "z")], ["ID", "Name"]',
    "none": '[], "id BIGINT, n INT"',
    "all": '[(9, "q", 1, datetime(2026, 1, 2), 18, date(2026, 1, 2))], '
    '"id BIGINT, name STRING, n INT, at TIMESTAMP, twice BIGINT, d DATE"',
}
_APPENDS = (
    'writeTo("{0}.w").append()',
    'write.mode("append").saveAsTable("{0}.w")',
    'write.format("delta").mode("append").saveAsTable("{0}.w")',
    'write.insertInto("{0}.w")',
)


@pytest.mark.thorough
async def test_rows_of_the_program_are_appended_as_on_plain_spark(
    spark: LocalSpark, schema: str, tmp_path: Path
) -> None:
    """The rows, or the error, are the same for each difference from the table and each call."""
    outcomes: list[dict[tuple[str, str], object]] = []

    def work(program: Program) -> None:
        program.run("from datetime import date, datetime")
        program.run(f'spark.sql("{_TARGET.format(schema)}")')
        found: dict[tuple[str, str], object] = {}
        for name, rows in _ROWS.items():
            for append in _APPENDS:
                try:
                    program.run(f"spark.createDataFrame({rows}).{append.format(schema)}")
                except FailedError as error:
                    found[name, append] = (error.kind, error.details[:2])
                else:
                    found[name, append] = program.run(
                        f'sorted(map(str, spark.table("{schema}.w").collect()))'
                    )
        program.run(f'spark.sql("DROP TABLE {schema}.w")')
        outcomes.append(found)

    def past() -> None:
        token = quote(f"Bearer {spark.token}")
        program = Program(f"sc://127.0.0.1:{spark.port}/;authorization={token}")
        try:
            work(program)
        finally:
            program.end()

    await asyncio.to_thread(past)
    async with door(spark, tmp_path) as port:
        await run_beside(work, port)
    direct, ring = outcomes
    assert {key: value for key, value in ring.items() if value != direct[key]} == {}
    assert any(isinstance(value, list) for value in direct.values())
    assert any(isinstance(value, tuple) for value in direct.values())
