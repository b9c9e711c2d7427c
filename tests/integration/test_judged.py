"""Tests of the judge's verdicts on statements, by their plan readings on a real Spark."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from haproc.classify.model import Classified, Kind, OperationClass, RefusedError
from haproc.config.shares import Shares
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Session, Settings
from haproc.engine.statement import SqlText
from haproc.pin.literals import Moment, Treatment
from haproc.reading.judge import OF_ROWS
from haproc.route.caching import Reading, Repeatable
from haproc.route.classifying import Asker
from haproc.route.offload import Inline
from haproc.route.planning import Planning
from haproc.route.readings import Readings
from haproc.route.shared_sessions import ReadingSessions
from haproc.sessions.client import ClientSession
from haproc.sessions.durable import Adoption, Key
from haproc.sessions.journal import StateEntry
from tests.integration.engine_calls import apply, rows
from tests.integration.witness_statements import AS_TEXT, REFUSED, ROWS
from tests.readings import corpus
from tests.readings.classified import classified_by

pytestmark = pytest.mark.spark

NOT_FOR_SPARK = {
    "INSERT INTO nowhere SELECT 1": "TABLE_OR_VIEW_NOT_FOUND",
    "INSERT INTO u SELECT 1": "DELTA_INSERT_COLUMN_ARITY_MISMATCH",
    "INSERT INTO u SELECT nope, 1, 1 FROM u": "UNRESOLVED_COLUMN.WITH_SUGGESTION",
    "INSERT INTO u SELECT a b c d FROM u": "PARSE_SYNTAX_ERROR",
    "DELETE FROM t WHERE a IN (SELECT a FROM v)": "DELTA_UNSUPPORTED_SUBQUERY",
    "GRANT SELECT ON TABLE t TO x": "INVALID_STATEMENT_OR_CLAUSE",
}
NO_QUERIES = [
    "FROM t INSERT WITH SCHEMA EVOLUTION INTO u SELECT a, b, 1",
    "WITH q AS (SELECT 1 a) FROM q INSERT WITH SCHEMA EVOLUTION INTO u SELECT a, 'x', 2",
    "SELECT IDENTIFIER('reflect')('java.lang.System', 'currentTimeMillis')",
]
QUERIES = [
    "SELECT a AS update, `insert` FROM (SELECT a, b AS `insert` FROM t)",
    "SELECT IDENTIFIER('abs')(-1), IDENTIFIER('uuid')()",
    "SELECT 'INSERT INTO x' FROM IDENTIFIER('t')",
    f"SELECT {', '.join(map(str, range(40)))} FROM IDENTIFIER('t')",
]
REPEATABLE = {
    "WITH q AS (SELECT a, m FROM t WHERE b = '12:30') SELECT q.a, sum(m), f2(1, 'x') FROM q "
    "WHERE EXISTS (SELECT 1 FROM us WHERE `a b` = q.a) GROUP BY q.a ORDER BY 1": "t u us",
    "VALUES (1), (2)": "",
    "SELECT n FROM v": "t v",
}
"""Queries whose result is the same as long as these tables are."""
NOT_REPEATABLE = {
    "SELECT a FROM t WHERE a IN (SELECT a FROM p)": "no managed Delta table",
    "SELECT frr(1), sum(c) FROM t LIMIT 1": "uuid() in ",
    "SELECT * FROM table_changes('t', 0)": "everywhere",
    "SELECT * FROM t VERSION AS OF 0": "VERSION AS OF",
    "SELECT a FROM t WHERE ts < now()": "now()",
    "SELECT current_user() FROM t": "current_user",
    "SELECT current_schema() FROM t": "current_schema",
    "SELECT a, rand() FROM t": "rand",
    "SELECT * FROM t TABLESAMPLE (10 PERCENT)": "TABLESAMPLE",
    "SELECT input_file_name(), a FROM t": "input_file_name",
}
SESSION_STATEMENTS = [
    f"CREATE TEMPORARY VIEW n AS SELECT {', '.join(map(str, range(40)))}",
    "CREATE TEMPORARY VIEW n AS SELECT now()",
    "DECLARE VARIABLE n INT DEFAULT 3",
    "CREATE TEMPORARY FUNCTION n(a INT) RETURNS INT RETURN a + 1",
    "DROP TEMPORARY VARIABLE IF EXISTS n",
    "DROP TEMPORARY FUNCTION IF EXISTS n",
    "CACHE TABLE t",
    "CACHE LAZY TABLE n AS SELECT 1",
    "UNCACHE TABLE IF EXISTS n",
    "CLEAR CACHE",
]
NO_SESSION_STATEMENTS = [
    "CREATE TEMPORARY VIEW n AS SELECT IDENTIFIER('reflect')('java.lang.System', 'nanoTime')",
    "CREATE TEMPORARY FUNCTION n AS 'a.b.C'",
    "CREATE TEMPORARY FUNCTION n AS 'a.b.C' USING JAR 'http://x/y.jar'",
    "CREATE TEMPORARY FUNCTION n(x INT) RETURNS STRING "
    "RETURN IDENTIFIER('reflect')('java.lang.System', 'nanoTime')",
    "DECLARE VARIABLE n STRING DEFAULT IDENTIFIER('reflect')('java.lang.System', 'nanoTime')",
    "CACHE TABLE n AS SELECT IDENTIFIER('reflect')('java.lang.System', 'nanoTime')",
]


@dataclass(frozen=True)
class Found:
    """The verdict on a statement, or its refusal."""

    treatment: Treatment
    reasons: tuple[str, ...]
    reads: frozenset[str] = frozenset()
    rests_on: frozenset[str] = frozenset()


class Judging:
    """Plan readings in a schema with tables."""

    def __init__(self, engine: SparkConnectEngine, schema: str) -> None:
        self.engine = engine
        self.settings = Settings(schema=schema)
        self.epoch = 0

        def epoch() -> int:
            return self.epoch

        sessions = ReadingSessions(engine, epoch, time.monotonic)
        planning = Planning(Shares(1), Shares(1))
        self.readings = Readings(sessions, epoch, Inline(), planning, 60)

    async def statement(self, sql: str) -> Classified:
        return await classified_by(self.readings, sql, self.settings)

    async def verdict(self, sql: str, session: ClientSession | None = None) -> Found:
        """Return the verdict on a write."""
        now = datetime(2026, 3, 1, 23, 30, tzinfo=UTC)
        moment = Moment(now, "UTC", "ann", "spark_catalog", self.settings.schema)
        try:
            statement = await self.statement(sql)
            of_rows = statement.kind in OF_ROWS
            judge = self.readings.judged if of_rows else self.readings.definition
            found = await judge(statement, Asker(self.settings, session, "ann"), moment)
        except RefusedError as error:
            return Found(Treatment.REFUSE, (error.message,))
        return Found(found.treatment, found.reasons, found.reads, found.rests_on)


def _session(spark: Session, settings: Settings) -> ClientSession:
    """Return a client's session that holds temporary objects."""
    adoption, state = Adoption(1, "first", "a"), StateEntry(settings)
    session = ClientSession(Key("ann", "s"), "", spark, adoption, frozenset(), state)
    session.holds_temporaries = True
    return session


@pytest.fixture
async def judging(engine: SparkConnectEngine, schema: str) -> AsyncIterator[Judging]:
    made = Judging(engine, schema)
    for sql in corpus.world("witness"):
        await apply(engine, sql, settings=made.settings)
    yield made


@pytest.mark.thorough
async def test_verdict_on_a_write_follows_its_plan_reading(judging: Judging) -> None:
    wrong: list[tuple[str, Treatment, tuple[str, ...]]] = []
    for sql in AS_TEXT:
        verdict = await judging.verdict(sql)
        if verdict.treatment is not Treatment.REPLICATE:
            wrong.append((sql, verdict.treatment, verdict.reasons))
    for treatment, expected in ((Treatment.MATERIALISE, ROWS), (Treatment.REFUSE, REFUSED)):
        for sql, reason in expected.items():
            verdict = await judging.verdict(sql)
            if verdict.treatment is not treatment or reason not in " ".join(verdict.reasons):
                wrong.append((sql, verdict.treatment, verdict.reasons))
    assert wrong == []


async def test_write_that_spark_cannot_analyze_fails_with_sparks_error(
    judging: Judging,
) -> None:
    for sql, error_class in NOT_FOR_SPARK.items():
        with pytest.raises(EngineError) as caught:
            await judging.verdict(sql)
        assert caught.value.error_class == error_class, sql
        assert caught.value.kind is ErrorKind.APPLICATION, sql


@pytest.mark.thorough
async def test_queries_and_session_statements_are_confirmed_by_their_plan_reading(
    judging: Judging,
) -> None:
    """The plan reading decides, not the class that their text suggests."""
    spark = judging.engine.session("reader")
    await spark.configure(judging.settings)
    session, readings = _session(spark, judging.settings), judging.readings
    for sql in QUERIES:
        assert (await judging.statement(sql)).operation_class is OperationClass.QUERY
        await readings.touches(
            SqlText(sql), sql, Asker(judging.settings, None, "ann"), is_query=True
        )
    for sql in NO_QUERIES:
        with pytest.raises(RefusedError):
            query_text = SqlText(sql)
            await readings.touches(
                query_text, sql, Asker(judging.settings, session, "ann"), is_query=True
            )
    for sql in NO_SESSION_STATEMENTS:
        kind = Kind.CACHE if sql.startswith("CACHE") else Kind.TEMPORARY_VIEW
        taken = replace(await judging.statement("SELECT 1"), sql=sql, kind=kind)
        with pytest.raises(RefusedError):
            await readings.of_session(taken, session)
    for sql in SESSION_STATEMENTS:
        await readings.of_session(await judging.statement(sql), session)


@pytest.mark.thorough
async def test_verdict_depends_on_settings_that_change_results(judging: Judging) -> None:
    """Without ANSI a sum of decimals overflows to NULL; the old parser reads '26' by the clock."""
    total = "INSERT INTO t (m) SELECT sum(m) FROM t"
    parsed = "INSERT INTO t (d) SELECT to_date(b, 'yy-MM-dd') FROM u"
    for sql in (total, parsed):
        assert (await judging.verdict(sql)).treatment is Treatment.REPLICATE
    judging.settings = replace(
        judging.settings, ansi=False, confs=(("spark.sql.legacy.timeParserPolicy", "legacy"),)
    )
    for sql, reason in ((total, "overflow"), (parsed, "timeParserPolicy")):
        verdict = await judging.verdict(sql)
        assert verdict.treatment is Treatment.MATERIALISE
        assert reason in verdict.reasons[0]


@pytest.mark.thorough
async def test_verdict_is_not_changed_by_a_redaction_setting(judging: Judging) -> None:
    """Spark omits text that this setting matches from plans; a server, not a client, can set it."""
    confs = (("spark.sql.redaction.string.regex", "sum"),)
    judging.settings = replace(judging.settings, confs=confs)
    sql = "INSERT INTO u SELECT a, b, CAST(sum(c) AS INT) FROM t GROUP BY a, b"
    verdict = await judging.verdict(sql)
    assert verdict.treatment is Treatment.MATERIALISE


async def test_verdict_names_the_objects_that_it_rests_on(judging: Judging) -> None:
    def full(*names: str) -> set[str]:
        return {f"spark_catalog.{judging.settings.schema}.{name}" for name in names}

    verdict = await judging.verdict("INSERT INTO u SELECT a, b, f2(i, b) FROM p")
    assert verdict.rests_on == full("u", "p", "f1", "f2")
    assert verdict.reads == full("u", "p")
    verdict = await judging.verdict("INSERT INTO u SELECT a, 'x', n FROM v")
    assert verdict.rests_on == full("u", "v", "t")


@pytest.mark.thorough
async def test_verdict_is_kept_until_a_definition_changes(judging: Judging) -> None:
    sql = "UPDATE t SET b = 'x', m = 1.25 WHERE a IN (1)"
    assert (await judging.verdict(sql)).treatment is Treatment.REPLICATE
    await apply(judging.engine, "DROP TABLE t", settings=judging.settings)
    assert (await judging.verdict(sql)).treatment is Treatment.REPLICATE
    judging.epoch += 1
    with pytest.raises(EngineError):
        await judging.verdict(sql)


async def test_statement_over_temporary_objects_is_materialised_or_refused(
    judging: Judging,
) -> None:
    spark = judging.engine.session("client")
    session = _session(spark, judging.settings)
    await spark.configure(judging.settings)
    await rows(spark, "CREATE TEMPORARY VIEW p AS SELECT 1L AS a, 'x' AS b, 2 AS i")
    await rows(spark, "DECLARE VARIABLE here INT DEFAULT 3")
    for sql in (
        "INSERT INTO u SELECT a, b, i FROM p",
        "MERGE INTO t USING p ON t.a = p.a WHEN MATCHED THEN UPDATE SET b = p.b",
    ):
        verdict = await judging.verdict(sql, session)
        assert verdict.treatment is Treatment.MATERIALISE
        assert verdict.reasons == ("it rests on the temporary view p",)
    for sql in (
        "CREATE VIEW n AS SELECT * FROM p",
        "CREATE TABLE n LIKE p",
        "CREATE FUNCTION n() RETURNS BIGINT RETURN (SELECT max(a) FROM p)",
        "CREATE FUNCTION n() RETURNS INT RETURN here",
    ):
        verdict = await judging.verdict(sql, session)
        assert verdict.treatment is Treatment.REFUSE, sql
        assert "it rests on the" in verdict.reasons[0]
    verdict = await judging.verdict("INSERT INTO u SELECT a, b, 1 FROM u WHERE i = 5", session)
    assert verdict.treatment is Treatment.REPLICATE


@pytest.mark.thorough
async def test_query_is_repeatable_only_if_it_rests_on_delta_tables_alone(judging: Judging) -> None:
    written = SimpleNamespace(defined=lambda since: False)
    schedule = SimpleNamespace(done_below=lambda concerned: 7)
    core: Any = SimpleNamespace(schedule=schedule, log_state=SimpleNamespace(written=written))
    repeatable, settings = Repeatable(core, judging.readings), judging.settings
    wrong = []
    for sql, tables in REPEATABLE.items():
        found = await repeatable.reading(await judging.statement(sql), settings, "ann")
        names = {f"spark_catalog.{settings.schema}.{name}" for name in tables.split()}
        if found != Reading(7, frozenset(names)):
            wrong.append((sql, found))
    for sql, reason in NOT_REPEATABLE.items():
        found = await repeatable.reading(await judging.statement(sql), settings, "ann")
        if reason not in found.reason:
            wrong.append((sql, found))
    assert wrong == []
