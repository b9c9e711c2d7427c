"""Tests of users' sessions on a real Spark: a statement taken for a query changes nothing else."""

from __future__ import annotations

import contextlib
import json
import time

import pytest

from haproc import protos
from haproc.engine.confs import pool_of
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import EngineError, NoQueryError
from haproc.engine.interface import Settings
from haproc.engine.pieces import DROP_SCHEMA, MAKE_SCHEMA, drop, fill
from haproc.engine.session import SparkSession
from haproc.engine.statement import SparkPlan, SqlText, Statement
from haproc.route.shared_sessions import ReadingSessions
from tests.integration.engine_calls import command, rows

pytestmark = pytest.mark.spark
CHANGING = [
    "INSERT INTO t VALUES (2)",
    "WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a",
    "FROM t INSERT INTO t SELECT id",
    "INSERT OVERWRITE t VALUES (2)",
    "DELETE FROM t",
    "UPDATE t SET id = 3",
    "MERGE INTO t USING (SELECT 1 AS k) s ON s.k = id WHEN MATCHED THEN DELETE",
    "TRUNCATE TABLE t",
    "CREATE TABLE u USING delta AS SELECT 1 AS a",
    "CREATE TABLE u (a INT) USING parquet",
    "CREATE TABLE u USING parquet AS SELECT 1 AS a",
    "CREATE OR REPLACE TABLE t USING delta AS SELECT 1 AS a",
    "CREATE VIEW v AS SELECT 1",
    "CREATE GLOBAL TEMPORARY VIEW v AS SELECT 1",
    "CREATE FUNCTION f(x INT) RETURNS INT RETURN x",
    "CREATE DATABASE another",
    "ALTER TABLE t ADD COLUMN n INT",
    "ALTER VIEW pv AS SELECT 2 AS a",
    "ALTER VIEW pv SET TBLPROPERTIES ('k' = 'v')",
    "ALTER VIEW pv RENAME TO pw",
    "DROP TABLE t",
    "DROP TABLE IF EXISTS nothing",
    "OPTIMIZE t",
    "VACUUM t",
    "RESTORE TABLE t TO VERSION AS OF 0",
    "ANALYZE TABLE t COMPUTE STATISTICS",
    "COMMENT ON TABLE t IS 'x'",
    "EXECUTE IMMEDIATE 'INSERT INTO t VALUES (5)'",
    "BEGIN INSERT INTO t VALUES (6); END",
    "INSERT OVERWRITE DIRECTORY '/tmp/nowhere' USING parquet SELECT 1",
    "SELECT java_method('java.util.UUID', 'randomUUID')",
    "DECLARE VARIABLE w STRING DEFAULT reflect('java.util.UUID', 'randomUUID')",
    "CREATE TEMPORARY VIEW w AS SELECT reflect('java.util.UUID', 'randomUUID')",
    "SELECT TRANSFORM (id) USING 'cat' FROM t",
]
ITS_OWN = [
    "CACHE TABLE t",
    "UNCACHE TABLE t",
    "CLEAR CACHE",
    "CREATE TEMPORARY VIEW tv AS SELECT * FROM t",
    "CREATE OR REPLACE TEMPORARY VIEW tv AS SELECT 1 AS a",
    "ALTER VIEW tv AS SELECT 2 AS a",
    "ALTER VIEW tv RENAME TO tw",
    "DROP VIEW tw",
    "CREATE TEMPORARY FUNCTION f(x INT) RETURNS INT RETURN x + 1",
    "CREATE TEMPORARY FUNCTION g() RETURNS TABLE(a INT) RETURN SELECT 1",
    "SELECT f(1), a FROM g()",
    "DROP TEMPORARY FUNCTION f",
    "DECLARE VARIABLE k INT DEFAULT 3",
    "SET VAR k = (SELECT max(id) FROM t)",
    "DROP TEMPORARY VARIABLE k",
    "SET spark.sql.shuffle.partitions = 5",
    "USE default",
    "SHOW TABLES",
    "DESCRIBE EXTENDED {schema}.t",
    "DESCRIBE HISTORY {schema}.t",
    "SHOW FUNCTIONS",
    "EXPLAIN EXTENDED DELETE FROM {schema}.t",
    "EXPLAIN INSERT INTO {schema}.t VALUES (5)",
    "SELECT count(*) FROM {schema}.t VERSION AS OF 0",
]


@pytest.fixture
async def users(engine: SparkConnectEngine, schema: str) -> SparkSession:
    """A session like those in which a user's queries run, beside a table of one row."""
    own = engine.session("own")
    for sql in (f"CREATE TABLE {schema}.t (id BIGINT) USING delta",
                f"INSERT INTO {schema}.t VALUES (1)",
                f"CREATE VIEW {schema}.pv AS SELECT 1 AS a"):  # fmt: skip
        await rows(own, sql)
    session = engine.session("users", pool=pool_of("ann"))
    await session.configure(Settings(schema=schema))
    return session


async def run(session: SparkSession, sent: Statement) -> None:
    async for _ in await session.query(sent, timeout_s=60):
        pass


async def test_session_of_a_user_changes_nothing_outside_of_the_session(
    engine: SparkConnectEngine, users: SparkSession, schema: str
) -> None:
    before = await rows(engine.session("own"), f"DESCRIBE HISTORY {schema}.t")
    ran = []
    for sql in CHANGING:
        for sent in (SqlText(sql), command(sql)):
            try:
                await run(users, sent)
            except NoQueryError:
                continue
            except EngineError as error:
                ran.append((sql, error.message))
            else:
                ran.append((sql, "it ran"))
    assert ran == []
    assert await rows(engine.session("own"), f"DESCRIBE HISTORY {schema}.t") == before
    tables = await rows(engine.session("own"), f"SHOW TABLES IN {schema}")
    assert sorted(row[1] for row in tables) == ["pv", "t"]


async def test_statement_in_an_execute_immediate_is_not_run_by_a_query_or_explain(
    engine: SparkConnectEngine, users: SparkSession, schema: str
) -> None:
    before = await rows(engine.session("own"), f"DESCRIBE HISTORY {schema}.t")
    for text in (
        f"INSERT INTO {schema}.t SELECT 77",
        f"CREATE TABLE {schema}.made (a INT) USING delta",
        "SET spark.sql.shuffle.partitions = 99",
    ):
        quoted = text.replace("'", "\\'")
        for sql in (f"EXPLAIN EXECUTE IMMEDIATE '{quoted}'", f"EXECUTE IMMEDIATE '{quoted}'"):
            for sent in (SqlText(sql), command(sql)):
                with contextlib.suppress(EngineError):  # EXPLAIN may show it
                    await run(users, sent)
    assert await rows(engine.session("own"), f"DESCRIBE HISTORY {schema}.t") == before
    tables = await rows(engine.session("own"), f"SHOW TABLES IN {schema}")
    assert sorted(row[1] for row in tables) == ["pv", "t"]
    [(_, value)] = await rows(users, "SET spark.sql.shuffle.partitions")
    assert value != "99"


@pytest.mark.thorough
async def test_session_of_a_user_may_change_and_describe_its_own_content(
    users: SparkSession, schema: str
) -> None:
    for sql in ITS_OWN:
        await run(users, SqlText(sql.format(schema=schema)))


async def test_session_of_a_user_may_read_statements_that_it_may_not_run(
    users: SparkSession,
) -> None:
    for sql in CHANGING[:7]:
        assert json.loads(await users.reading(SqlText(sql), timeout_s=60))["analyzed"]


async def test_reading_of_a_dataframe_that_contains_a_write_changes_nothing(
    engine: SparkConnectEngine, users: SparkSession, schema: str
) -> None:
    """Spark runs some commands in a relation as soon as it analyzes the relation."""
    before = await rows(engine.session("own"), f"DESCRIBE HISTORY {schema}.t")
    reading = ReadingSessions(engine, lambda: 0, time.monotonic)
    made, text = protos.base.Plan(), protos.base.Plan()
    made.root.limit.limit = text.root.limit.limit = 1
    table = made.root.limit.input.catalog.create_table
    table.table_name, table.source = "hidden", "delta"
    table.schema.struct.fields.add(name="a").data_type.integer.SetInParent()
    text.root.limit.input.sql.query = "INSERT INTO t VALUES (2)"
    for session in (users, await reading.shared(Settings(schema=schema))):
        with pytest.raises(NoQueryError):
            await session.reading(SparkPlan(made.SerializeToString()), timeout_s=60)
        tree = await session.reading(SparkPlan(text.SerializeToString()), timeout_s=60)
        assert '"AppendData"' in tree
    assert await rows(engine.session("own"), f"DESCRIBE HISTORY {schema}.t") == before
    tables = await rows(engine.session("own"), f"SHOW TABLES IN {schema}")
    assert sorted(row[1] for row in tables) == ["pv", "t"]


async def test_session_of_a_user_fills_a_staging_table(
    engine: SparkConnectEngine, users: SparkSession
) -> None:
    own, table = engine.session("own"), "spark_catalog.haproc_staging.r_1_1_1"
    query = SqlText("SELECT id FROM t")
    await run(own, MAKE_SCHEMA)
    try:
        await run(users, fill(table, query, await users.schema(query)))
        assert len(await rows(own, f"SELECT * FROM {table}")) == 1
        await run(own, drop(table))
    finally:
        await run(own, DROP_SCHEMA)
