"""Tests of short statements with huge plans: Spark ends them before they use up its memory."""

from __future__ import annotations

import asyncio
import time

import pytest

from haproc import protos
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import EngineError
from haproc.engine.interface import Settings
from haproc.engine.session import SparkSession
from haproc.engine.statement import SparkPlan, SqlText
from haproc.failure import ErrorClass
from haproc.ring.spark import LocalSpark
from haproc.route.shared_sessions import ReadingSessions
from tests.integration.engine_calls import processor_s, rows

pytestmark = pytest.mark.spark
LEVELS = 16
"""Each level uses the previous one twice: 65,536 columns, or leaves, in the end."""
COST_S = 60.0
"""Of Spark's processors, while it compiles its own code, too."""
PATIENCE_S = 400.0
CANCELLED_S = 90.0
IDLE_S = 0.5
"""Processor seconds in a second; a busy thread uses the whole second."""


def chain(columns: str = "*") -> str:
    """Return a query whose common table expressions double the size of the plan."""
    pairs = (f"c{i} AS (SELECT {columns} FROM c{i - 1} a, c{i - 1} b)" for i in range(1, LEVELS))
    return f"WITH c0 AS (SELECT 1 AS x), {', '.join(pairs)} SELECT count(*) FROM c{LEVELS - 1}"


def doubled() -> SparkPlan:
    """Return a DataFrame that is joined with itself repeatedly."""
    relation = protos.relations.Relation()
    relation.sql.query = "SELECT " + ", ".join(f"{i} AS x{i}" for i in range(80))
    for _ in range(10):
        joined = protos.relations.Relation()
        joined.join.left.CopyFrom(relation)
        joined.join.right.CopyFrom(relation)
        joined.join.join_type = protos.relations.Join.JOIN_TYPE_CROSS
        relation = joined
    plan = protos.base.Plan()
    plan.root.CopyFrom(relation)
    return SparkPlan(plan.SerializeToString())


@pytest.fixture
async def users(engine: SparkConnectEngine, schema: str) -> SparkSession:
    """A session like those in which a user's queries run."""
    session = engine.session("users")
    await session.configure(Settings(schema=schema))
    return session


async def refused(session: SparkSession, spark: LocalSpark, sent: SqlText | SparkPlan) -> None:
    """Check that a statement is refused because of its size, before it has cost much."""
    before = processor_s(spark)
    with pytest.raises(EngineError) as caught:
        async for _ in await session.query(sent, timeout_s=PATIENCE_S):
            pass
    assert caught.value.error_class == ErrorClass.STATEMENT_TOO_COMPLEX
    cost_s = processor_s(spark) - before
    print(f"{cost_s:.1f} s of processors")
    assert cost_s < COST_S


@pytest.mark.parametrize("columns", ["*", "a.x"])
async def test_query_with_doubling_common_table_expressions_is_refused(
    users: SparkSession, spark: LocalSpark, columns: str
) -> None:
    await refused(users, spark, SqlText(chain(columns)))
    assert len(await rows(users, "SELECT 1")) == 1


@pytest.mark.thorough
async def test_analysis_of_many_views_is_cancelled_after_its_statements_deadline(
    users: SparkSession, spark: LocalSpark
) -> None:
    """Spark reads each use of a view again. Uncancelled, this would take minutes.

    The interrupt comes a minute after the statement's end (`SparkAnswer.follow`).
    """
    await rows(users, "CREATE TEMPORARY VIEW v0 AS SELECT 1 AS x")
    levels, took_s = 0, 0.0
    while took_s < 1:
        levels, began = levels + 1, time.monotonic()
        sql = f"CREATE TEMPORARY VIEW v{levels} AS SELECT a.x FROM v{levels - 1} a, v{levels - 1} b"
        await rows(users, sql)
        took_s = time.monotonic() - began
    uses = ", ".join(f"v{levels} u{i}" for i in range(256))
    with pytest.raises(EngineError) as caught:
        async for _ in await users.query(SqlText(f"SELECT 1 FROM {uses}"), timeout_s=2):
            pass
    assert caught.value.error_class == "DEADLINE_EXCEEDED"
    end = time.monotonic() + CANCELLED_S
    while await busy_s(spark) > IDLE_S:
        assert time.monotonic() < end, "Spark goes on with a cancelled statement"


async def busy_s(spark: LocalSpark) -> float:
    """Return the processor seconds that Spark uses within a second."""
    before = processor_s(spark)
    await asyncio.sleep(1)
    return processor_s(spark) - before


async def test_dataframe_with_doubling_joins_is_refused(
    users: SparkSession, spark: LocalSpark
) -> None:
    await refused(users, spark, doubled())


async def test_reading_of_a_query_with_doubling_expressions_is_refused(
    engine: SparkConnectEngine,
) -> None:
    session = await ReadingSessions(engine, lambda: 0, time.monotonic).shared(Settings())
    with pytest.raises(EngineError) as caught:
        await session.reading(SqlText(chain()), timeout_s=120)
    assert caught.value.error_class == ErrorClass.STATEMENT_TOO_COMPLEX
