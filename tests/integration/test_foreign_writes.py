"""Tests of commits on a real Delta table: the ring's own have its note, others are found."""

from __future__ import annotations

import asyncio

import pytest

from haproc.config.model import OnForeignWrite, Timeouts
from haproc.engine.confs import version_in
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.interface import Settings
from haproc.membership.state import State
from haproc.ring.spark import LocalSpark
from tests.integration.conftest import address_of
from tests.integration.engine_calls import apply, rows
from tests.integration.one_cluster import one_cluster

pytestmark = pytest.mark.spark

_DDL = (
    "CREATE TABLE t (id BIGINT, d DATE) USING delta "
    "TBLPROPERTIES ('delta.autoOptimize.autoCompact' = 'true')",
    "INSERT INTO t SELECT id, DATE'2026-01-01' FROM range(0, 90, 1, 60)",
    "ALTER TABLE t ADD COLUMN x STRING",
    "ALTER TABLE t SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')",
    "ALTER TABLE t ADD CONSTRAINT positive CHECK (id >= 0)",
    "OPTIMIZE t",
    "VACUUM t",
    "RESTORE TABLE t TO VERSION AS OF 2",
    "TRUNCATE TABLE t",
    "CREATE OR REPLACE TABLE t USING delta AS SELECT 1L AS id",
)


@pytest.mark.thorough
async def test_commits_of_a_lane_all_have_the_rings_note(
    engine: SparkConnectEngine, schema: str
) -> None:
    settings = Settings(schema=schema)
    for offset, sql in enumerate(_DDL):
        await apply(engine, sql, offset, settings=settings)
    commits = await engine.histories().commits(f"spark_catalog.{schema}.t", 100)
    # Some statements make several, and what Delta adds by itself is the ring's, too. OPTIMIZE finds
    # nothing to do: Delta compacted the files behind the INSERT.
    assert len(commits) > len(_DDL)
    assert [each.operation for each in commits].count("OPTIMIZE") == 1
    offsets = {*range(len(_DDL))} - {_DDL.index("OPTIMIZE t")}
    assert {version_in(each.note, "ring") for each in commits} == offsets
    newest = (await engine.histories().newest())[f"`spark_catalog`.`{schema}`.`t`"]
    assert (newest.version, newest.at_ms) == (commits[0].version, commits[0].at_ms)


async def test_write_past_haproc_takes_the_cluster_out_of_service_until_it_is_verified(
    spark: LocalSpark, engine: SparkConnectEngine, schema: str
) -> None:
    past = engine.session("past")
    await rows(past, f"CREATE TABLE {schema}.adopted USING delta AS SELECT 1 AS id")
    timeouts = Timeouts(foreign_look_s=1)
    async with one_cluster(
        address_of(spark), timeouts=timeouts, on_foreign_write=OnForeignWrite.STOP
    ) as (_, member):
        core, foreign = member.core, member.replica.foreign

        async def until(state: State) -> None:
            async with asyncio.timeout(120):
                await core.news.until(lambda: core.condition.state is state)

        newest = await foreign.newest()
        assert newest is not None
        await foreign.look(newest, 0)  # or the one at the start
        await rows(past, f"OPTIMIZE {schema}.adopted")
        await rows(past, f"INSERT INTO {schema}.adopted VALUES (2)")
        await until(State.DIVERGED)
        assert f"(spark_catalog.{schema}.adopted)" in core.condition.reason
        marker = (await member.replica.operators.verify())["marker"]
        await until(State.READY)
        (write,) = [each for each in foreign.found if each.changes_rows]
        assert (write.commit.version, write.commit.operation) == (1, "WRITE")
        assert write.verified_at == marker
