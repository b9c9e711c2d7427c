"""Tests of plan readings on a real Spark: their content, and that they run nothing."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from haproc import protos
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Chunk
from haproc.engine.session import SparkSession
from haproc.engine.statement import SparkPlan, SqlText, Statement
from haproc.reading.tree import Node, Reading, deep, read
from tests.integration.engine_calls import rows
from tests.unit.recorded_plans import recorded

pytestmark = pytest.mark.spark
TIMEOUT_S = 120.0


async def reading(session: SparkSession, source: str | SparkPlan) -> Reading:
    statement = SqlText(source) if isinstance(source, str) else source
    data = await session.reading(statement, timeout_s=TIMEOUT_S)
    with deep():
        return read(data, source if isinstance(source, str) else "")


async def chunks(session: SparkSession, question: Statement) -> list[Chunk]:
    stream = await session.query(question, timeout_s=TIMEOUT_S)
    async with contextlib.aclosing(stream):
        return [chunk async for chunk in stream]


async def failure(awaitable: Any) -> EngineError:
    with pytest.raises(EngineError) as caught:
        await awaitable
    return caught.value


def frame(program: Callable[[Any], Any]) -> SparkPlan:
    """Return the query that a program sends; for ``sql``, which sends a command, its input."""
    sent = recorded(lambda spark: program(spark).collect())
    plan = protos.base.Plan()
    plan.root.CopyFrom(sent.command.sql_command.input if sent.HasField("command") else sent.root)
    return SparkPlan(bytes(plan.SerializeToString()))


def classes(*trees: Node | None) -> set[str]:
    return {each.cls for tree in trees if tree is not None for each in tree.walk()}


# -- a reading executes nothing ----------------------------------------------------------------

OBJECTS = (
    "CREATE TABLE {s}.t (k INT, n STRING) USING delta",
    "INSERT INTO {s}.t VALUES (1, 'a'), (2, 'b')",
    "CREATE TABLE {s}.p (j INT, k INT) USING parquet PARTITIONED BY (k)",
    "CREATE TABLE {s}.h (k INT) STORED AS TEXTFILE",
    "CREATE VIEW {s}.v AS SELECT * FROM {s}.t",
    "CREATE FUNCTION {s}.f(x INT) RETURNS INT RETURN x + 1",
    "CREATE TEMPORARY VIEW tv AS SELECT 1 AS k, 'x' AS n",
    "CREATE TEMPORARY FUNCTION tf(x INT) RETURNS INT RETURN x * 2",
    "DECLARE x INT DEFAULT 7",
)
WRITES = """
INSERT INTO {s}.t VALUES (3, 'c')
INSERT INTO {s}.t SELECT * FROM tv
INSERT OVERWRITE {s}.t SELECT * FROM tv
INSERT INTO {s}.t REPLACE WHERE k = 1 SELECT 1, 'z'
INSERT OVERWRITE DIRECTORY '{d}/out' USING parquet SELECT 1 AS a
FROM {s}.t INSERT INTO {s}.p SELECT k, k
UPDATE {s}.t SET n = 'q' WHERE k = x
DELETE FROM {s}.t
MERGE INTO {s}.t USING tv ON t.k = tv.k WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT *
CREATE TABLE {s}.made USING delta AS SELECT * FROM {s}.t
CREATE OR REPLACE TABLE {s}.t USING delta AS SELECT 1 AS k
CREATE TABLE {s}.made (k INT) USING delta
CREATE TABLE {s}.made LIKE {s}.t
CREATE TABLE {s}.made SHALLOW CLONE {s}.t
CREATE EXTERNAL TABLE {s}.made (k INT) STORED AS TEXTFILE LOCATION '{d}/made'
CREATE SCHEMA {s}_made
CREATE VIEW {s}.made AS SELECT 1 AS a
CREATE TEMPORARY VIEW made AS SELECT 1 AS a
CREATE GLOBAL TEMPORARY VIEW made AS SELECT 1 AS a
CREATE FUNCTION {s}.made(y INT) RETURNS INT RETURN y
CREATE TEMPORARY FUNCTION made(y INT) RETURNS INT RETURN y
DROP TABLE {s}.t
DROP VIEW {s}.v
DROP VIEW tv
DROP FUNCTION {s}.f
DROP TEMPORARY FUNCTION tf
DROP SCHEMA {s} CASCADE
DROP TEMPORARY VARIABLE x
ALTER TABLE {s}.t ADD COLUMNS (z INT)
ALTER TABLE {s}.t SET TBLPROPERTIES ('a' = 'b')
ALTER TABLE {s}.t ADD CONSTRAINT c CHECK (k > 0)
ALTER TABLE {s}.t RENAME TO {s}.other
ALTER TABLE {s}.p ADD PARTITION (k = 3)
ALTER VIEW {s}.v AS SELECT 2 AS b
ALTER SCHEMA {s} SET DBPROPERTIES ('a' = 'b')
COMMENT ON TABLE {s}.t IS 'x'
OPTIMIZE {s}.t
OPTIMIZE {s}.t ZORDER BY (k)
REORG TABLE {s}.t APPLY (PURGE)
VACUUM {s}.t
TRUNCATE TABLE {s}.t
RESTORE TABLE {s}.t TO VERSION AS OF 0
GENERATE symlink_format_manifest FOR TABLE {s}.t
ANALYZE TABLE {s}.t COMPUTE STATISTICS
MSCK REPAIR TABLE {s}.p
REFRESH TABLE {s}.t
SET spark.sql.shuffle.partitions = 9
SET TIME ZONE 'Asia/Tokyo'
SET VARIABLE x = 8
SET VARIABLE x = (SELECT max(k) FROM {s}.t)
RESET spark.sql.shuffle.partitions
DECLARE y INT DEFAULT 8
USE {s}
CACHE TABLE {s}.t
CACHE TABLE made AS SELECT 1 AS a
UNCACHE TABLE {s}.t
CLEAR CACHE
ADD JAR '{d}/none.jar'
ADD FILE '{d}/none.txt'
LOAD DATA INPATH '{d}/none.txt' INTO TABLE {s}.h
EXECUTE IMMEDIATE "INSERT INTO {s}.t VALUES (9, 'z')"
EXECUTE IMMEDIATE 'SET spark.sql.shuffle.partitions = 9'
BEGIN INSERT INTO {s}.t VALUES (9, 'z'); SET spark.sql.shuffle.partitions = 9; END
EXPLAIN ANALYZE SELECT 1
CALL spark_catalog.system.nothing()
SELECT java_method('java.lang.System', 'setProperty', 'haproc.reader', 'ran')
"""
WRONG = ("EXPLAIN ANALYZE", "CALL ", "GENERATE ")
"""Statements that this Spark, or these tables, do not support: their reading is an error."""


async def state(session: SparkSession, schema: str, folder: Path) -> dict[str, Any]:
    """Return all that a statement could have changed."""
    cached = protos.base.Plan()
    cached.root.catalog.is_cached.table_name = f"{schema}.t"
    queries = {
        "catalog": f"SELECT current_schema(), current_timezone(), x, tf(1), {schema}.f(1)",
        "java": "SELECT java_method('java.lang.System', 'getProperty', 'haproc.reader')",
    } | {
        sql: sql
        for sql in (
            "SHOW SCHEMAS",
            f"SHOW TABLES IN {schema}",
            "SHOW VIEWS IN global_temp",
            f"SHOW USER FUNCTIONS IN {schema}",
            "SHOW USER FUNCTIONS",
            f"SHOW TBLPROPERTIES {schema}.t",
            f"SHOW PARTITIONS {schema}.p",
            f"DESCRIBE TABLE EXTENDED {schema}.t",
            f"DESCRIBE SCHEMA EXTENDED {schema}",
            f"DESCRIBE HISTORY {schema}.t",
            f"SHOW CREATE TABLE {schema}.v",
            f"SELECT * FROM {schema}.t ORDER BY k",
            "LIST JAR",
            "LIST FILE",
            "SET",
        )
    }
    found = {name: await rows(session, sql) for name, sql in queries.items()}
    found["cached"] = await rows(session, SparkPlan(cached.SerializeToString()))
    found["files"] = await asyncio.to_thread(lambda: sorted(folder.iterdir()))
    return found


@pytest.mark.thorough
async def test_reading_of_a_statement_executes_nothing(
    engine: SparkConnectEngine, schema: str, tmp_path: Path
) -> None:
    session = engine.session("reader")
    for sql in OBJECTS:
        await rows(session, sql.format(s=schema))
    before = await state(session, schema, tmp_path)
    unread = []
    for line in WRITES.format(s=schema, d=tmp_path).strip().splitlines():
        try:
            found = await reading(session, line)
        except EngineError as error:
            assert error.kind is ErrorKind.APPLICATION, line
            unread.append(line)
            continue
        assert found.parsed is not None and (found.analyzed is not None or found.unseen), line
    after = await state(session, schema, tmp_path)
    assert {name for name in before if before[name] != after[name]} == set()
    assert [line for line in unread if not line.startswith(WRONG)] == []
    await rows(session, f"INSERT INTO {schema}.t VALUES (3, 'c')")
    assert await state(session, schema, tmp_path) != before


@pytest.mark.parametrize(
    ("sql", "unseen"),
    [
        ("EXECUTE IMMEDIATE 'SELECT 1'", "UnresolvedExecuteImmediate"),
        ("BEGIN SELECT 1; END", "CompoundBody"),
    ],
)
async def test_statement_that_runs_during_analysis_is_only_parsed(
    engine: SparkConnectEngine, sql: str, unseen: str
) -> None:
    found = await reading(engine.session("unseen"), sql)
    assert found.parsed is not None
    assert (found.unseen, found.analyzed) == (unseen, None)
    assert unseen in classes(found.parsed)


# -- what is read ------------------------------------------------------------------------------


async def test_sql_over_dataframes_is_read_and_leaves_no_view(
    engine: SparkConnectEngine, schema: str
) -> None:
    session = engine.session("frames")
    await rows(session, f"CREATE TABLE {schema}.t (id BIGINT) USING delta")
    sent = frame(lambda s: s.sql(f"INSERT INTO {schema}.t SELECT * FROM {{d}}", d=s.range(5)))
    found = await reading(session, sent)
    assert {"AppendData", "Range"} <= classes(found.analyzed)
    assert "UnresolvedRelation" in classes(found.parsed) or "Range" in classes(found.parsed)
    assert [row for row in await rows(session, "SHOW VIEWS") if row[2]] == []
    assert await rows(session, f"SELECT * FROM {schema}.t") == []


async def test_dataframe_is_read_as_its_analyzed_plan(engine: SparkConnectEngine) -> None:
    found = await reading(
        engine.session("frame"), frame(lambda s: s.range(5).where("id > 2").selectExpr("rand()"))
    )
    assert (found.parsed, found.text) == (None, "")
    assert {"Project", "Filter", "Range", "GreaterThan", "Rand"} <= classes(found.analyzed)


@pytest.mark.thorough
async def test_dataframe_of_sixty_steps_is_read(engine: SparkConnectEngine) -> None:
    def steps(spark: Any) -> Any:
        made = spark.range(5)
        for _ in range(60):
            made = made.limit(5)
        return made

    found = await reading(engine.session("steps"), frame(steps))
    assert found.analyzed is not None
    assert sum(each.cls == "GlobalLimit" for each in found.analyzed.walk()) == 60


async def test_temporary_views_and_variables_of_the_session_are_recognised_in_a_reading(
    engine: SparkConnectEngine, schema: str
) -> None:
    session = engine.session("own")
    await rows(session, f"CREATE TABLE {schema}.t (k INT) USING delta")
    await rows(session, f"CREATE VIEW {schema}.v AS SELECT k FROM {schema}.t")
    for sql in OBJECTS[-3:]:
        await rows(session, sql)
    found = await reading(session, f"SELECT v.k, tf(2), x FROM tv JOIN {schema}.v ON tv.k = v.k")
    seen = {"VariableReference", "SQLFunctionNode", "SQLFunctionExpression", "LogicalRelation"}
    assert found.analyzed is not None
    assert {"VariableReference", "View"} <= classes(found.analyzed) & (seen | {"View"})
    views = [each for each in found.analyzed.walk() if each.cls == "View"]
    assert sorted(each["isTempView"] is True for each in views) == [False, True]
    with pytest.raises(EngineError) as caught:  # they are this session's alone
        await reading(engine.session("another"), "SELECT * FROM tv")
    assert caught.value.error_class == "TABLE_OR_VIEW_NOT_FOUND"


# -- what the analyzer computes itself ---------------------------------------------------------

SCHEMA = "concat('c', date_format(now(), 'SSSSSS'), ' int')"


@pytest.mark.parametrize(
    "source",
    [
        f"SELECT from_json('{{}}', {SCHEMA}) AS s",
        f"SELECT * FROM (SELECT 1 x, '0' y) PIVOT (max(x) FOR y IN ({SCHEMA} AS n))",
        "SELECT variant_get(parse_json('1'), '$', if(hour(now()) > -1, 'int', 'double'))",
        "SELECT * FROM v_computed",
        "SELECT f_computed(1)",
        frame(lambda spark: spark.sql(f"SELECT from_csv('1', {SCHEMA}) AS s")),
        frame(lambda spark: spark.range(1).selectExpr(f"from_json('{{}}', {SCHEMA}) AS s")),
        # Spark analyzes it while it makes a plan of the client's
        frame(lambda spark: spark.range(1).selectExpr(f"from_json('{{}}', {SCHEMA})").na.fill(0)),
    ],
)
async def test_expression_that_the_analyzer_computes_is_read_separately(
    engine: SparkConnectEngine, source: str | SparkPlan
) -> None:
    session = engine.session("computed")
    body = f"typeof(from_json('{{}}', {SCHEMA}))"
    for sql in (
        f"CREATE OR REPLACE TEMPORARY VIEW v_computed AS SELECT {body} AS s",
        f"CREATE OR REPLACE TEMPORARY FUNCTION f_computed(x INT) RETURNS STRING RETURN {body}",
    ):
        await rows(session, sql)
    found = await reading(session, source)
    assert "Now" in classes(*found.computed) and "Now" not in classes(found.analyzed)
    assert found.unread == ()


async def test_reading_without_analyzer_computations_has_no_computed_trees(
    engine: SparkConnectEngine,
) -> None:
    source = (
        "SELECT upper(current_user), id + 1, from_json('{}', 'a int') FROM range(9) WHERE id > 2"
    )
    found = await reading(engine.session("computed"), source)
    assert (found.computed, found.unread) == ((), ())


# -- what is wrong, large, deep, malformed -----------------------------------------------------

MISTAKES = [
    "",
    "SELEC 1",
    "SELECT 'a",
    "SELECT 1; SELECT 2",
    "SELECT * FROM no_such_table",
    "WITH a AS (SELECT * FROM b) SELECT * FROM a",
    "SELECT no_such_column FROM range(1)",
    "SELECT no_such_function(1)",
    "SELECT id FROM range(2), range(3)",
    "SELECT sum(id), id FROM range(3)",
    "SELECT 1 UNION SELECT 1, 2",
    "SELECT 'a' + array(1)",
    "SELECT :x",
    "SELECT DATE '2020-13-13'",
    "SELECT * FROM VALUES (1), (2, 3)",
]


def comparable(error: EngineError) -> tuple[Any, ...]:
    """Return an error's content without the numbers of plan columns."""
    message = re.sub(r"#\d+", "#", error.message)
    return (error.kind, message, error.error_class, error.sqlstate, error.details)


@pytest.mark.thorough
@pytest.mark.parametrize("sql", [*MISTAKES[1:], "INSERT INTO no_such_table VALUES (1)"])
async def test_reading_of_a_wrong_statement_fails_with_the_error_of_its_execution(
    engine: SparkConnectEngine, sql: str
) -> None:
    session = engine.session("wrong")
    plain = await failure(chunks(session, SqlText(sql)))
    assert comparable(await failure(reading(session, sql))) == comparable(plain)


@pytest.mark.thorough
async def test_reading_of_a_deeply_nested_statement_fails_and_the_server_survives(
    engine: SparkConnectEngine,
) -> None:
    session = engine.session("deep")
    for sql in (f"SELECT {'(' * 5000}1{')' * 5000}", f"SELECT {'NOT ' * 3000}true"):
        error = await failure(reading(session, sql))
        assert error.kind in (ErrorKind.APPLICATION, ErrorKind.ENVIRONMENT), error.message
        assert "deeply" in error.message or "COMPLEX" in error.error_class, error.message
    assert (await reading(session, f"SELECT {' + '.join('1' * 600)}")).unseen == ""


@pytest.mark.thorough
async def test_statement_of_a_megabyte_is_read(engine: SparkConnectEngine) -> None:
    values = ", ".join(f"({n}, 'text number {n}')" for n in range(40_000))
    sql = f"SELECT * FROM VALUES {values} AS t(k, n)"
    assert len(sql) > 1_000_000
    found = await reading(engine.session("large"), sql)
    assert found.analyzed is not None and "Project" in classes(found.analyzed)


@pytest.mark.parametrize(
    ("what", "value", "says"),
    [
        ("haproc/read", b"\x00\xff", "not what HAProc sends"),
        ("haproc/read", b"", "not what HAProc sends"),
        ("haproc/read", b"{}", "not what HAProc sends: .*no plan"),
        ("haproc/read", b'{"plan": 5}', "not what HAProc sends: .*no plan"),
        ("haproc/read", b'{"plan": "%%"}', "not what HAProc sends"),
        ("haproc/read", b'{"plan": "AAAA"}', "not what HAProc sends"),
        ("haproc/nothing", b"{}", "NO_HANDLER_FOR_EXTENSION"),
    ],
)
async def test_malformed_reading_request_fails_with_a_clear_error(
    engine: SparkConnectEngine, what: str, value: bytes, says: str
) -> None:
    plan = protos.base.Plan()
    plan.root.extension.type_url, plan.root.extension.value = what, value
    source = SparkPlan(plan.SerializeToString())
    error = await failure(chunks(engine.session("malformed"), source))
    assert error.kind is ErrorKind.APPLICATION and re.search(says, error.message), error.message
