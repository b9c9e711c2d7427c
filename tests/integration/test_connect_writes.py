"""What PySpark's objects hold behind a write that went through the door, as Spark itself has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from haproc.ring.spark import LocalSpark
from tests.integration.pyspark_program import Program
from tests.integration.test_connect_door import _run as run_beside
from tests.integration.test_connect_door import door

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


async def test_what_a_write_observes_is_told_as_spark_tells_it(
    spark: LocalSpark, schema: str, tmp_path: Path
) -> None:
    """Whether the plan ran everywhere, or one run of its query became everybody's rows."""

    def work(program: Program) -> None:
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

    async with door(spark, tmp_path) as port:
        await run_beside(work, port)


async def test_dataframe_that_create_table_gives_is_its_table(
    spark: LocalSpark, schema: str, tmp_path: Path
) -> None:
    def work(program: Program) -> None:
        run = program.run
        run("from pyspark.sql.types import LongType, StructType")
        run('made = StructType().add("a", LongType())')
        run(f'd = spark.catalog.createTable("{schema}.n", schema=made, source="delta")')
        assert run("d.schema == made")
        run(f'spark.sql("INSERT INTO {schema}.n VALUES (1), (2)")')
        assert run('d.filter("a > 1").count()') == 1

    async with door(spark, tmp_path) as port:
        await run_beside(work, port)


_DEFAULTS = (
    ("spark.sql.ansi.enabled", "false"),
    ("spark.sql.session.timeZone", "Asia/Tokyo"),
    ("spark.sql.shuffle.partitions", "3"),
)


@pytest.mark.thorough
async def test_session_begins_with_the_rings_settings_writes_under_them_and_goes_back_to_them(
    spark: LocalSpark, schema: str, tmp_path: Path
) -> None:
    def work(program: Program) -> None:
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

    async with door(spark, tmp_path, session_defaults=_DEFAULTS) as port:
        await run_beside(work, port)
