"""Tests of statements that name files, on a real Spark: only allowed paths are read."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from haproc import protos
from haproc.engine.confs import READING_POOL, pool_of
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import EngineError
from haproc.engine.interface import Settings
from haproc.engine.session import SparkSession
from haproc.engine.statement import SparkPlan, SqlText, Statement
from haproc.failure import ErrorClass
from haproc.ring.spark import LocalSpark
from tests.integration.conftest import address_of
from tests.integration.engine_calls import command, rows
from tests.unit.path_lists import ALLOWED, PREFIXES, REFUSED
from tests.unit.statement_table import unread

pytestmark = pytest.mark.spark
TIMEOUT_S = 120.0
NAMING = [
    "SELECT * FROM text.`{path}`",
    "SELECT 1 WHERE EXISTS (SELECT * FROM range(3) WHERE id IN (SELECT k FROM delta.`{path}`))",
    "WITH c AS (SELECT * FROM delta.`{path}`) SELECT count(*) FROM c",
    "SELECT * FROM IDENTIFIER('delta.' || '`{path}`')",
    "SELECT * FROM IDENTIFIER(concat_ws('.', 'delta', '`{path}`'))",
    "SELECT * FROM spark_catalog.delta.`{path}`",
    "SELECT * FROM `org.apache.spark.sql.delta.sources.DeltaDataSource`.`{path}`",
    "SELECT * FROM table_changes_by_path('{path}', 0)",
    "SELECT from_xml('<a/>', 'a INT', map('mode', 'FAST', 'rowValidationXSDPath', '{path}'))",
    "SELECT * FROM table_changes('delta.`{path}`', 0)",
    "SELECT from_xml('<a/>', 'a INT', map('rowValidationXSD' || 'Path', '{path}'))",
    "SELECT from_xml('<a/>', 'a INT', map(v, '{path}'))",
    "SELECT * FROM table_changes_by_path(concat('{path}', ''), 0)",
    "EXPLAIN SELECT * FROM delta.`{path}`",
    "EXPLAIN EXTENDED DELETE FROM delta.`{path}`",
    "DESCRIBE HISTORY '{path}'",
    "DESCRIBE DETAIL delta.`{path}`",
    "DESCRIBE delta.`{path}`",
    "SHOW COLUMNS IN delta.`{path}`",
    "CREATE TEMPORARY VIEW f AS SELECT * FROM delta.`{path}`",
    "CREATE TEMPORARY VIEW f USING text OPTIONS (path '{path}')",
    "CACHE TABLE f AS SELECT * FROM delta.`{path}`",
    "SET VAR v = (SELECT string(max(k)) FROM delta.`{path}`)",
]
"""Statements that run in users' sessions."""
WRITING = [
    "DELETE FROM delta.`{path}`",
    "MERGE INTO t USING delta.`{path}` s ON t.k = s.k WHEN MATCHED THEN DELETE",
    "INSERT INTO t SELECT * FROM delta.`{path}`",
    "INSERT INTO delta.`{path}` VALUES (1)",
    "CREATE TABLE u (a INT) USING delta LOCATION '{path}'",
    "CREATE TABLE u (a INT) USING csv OPTIONS (header 'true', path '{path}', sep '/')",
    "CREATE TABLE u SHALLOW CLONE delta.`{path}`",
    "CREATE DATABASE d LOCATION '{path}'",
    "ALTER TABLE t SET LOCATION '{path}'",
    "OPTIMIZE '{path}'",
    "VACUUM '{path}'",
    "REFRESH '{path}'",
]
"""Statements that are only read (parsed and analyzed) here."""


EVERYDAY = [
    "WITH c AS (SELECT a / 2 AS x FROM t) SELECT * FROM c",
    "WITH c AS (SELECT a FROM t WHERE s = 'a/b') INSERT INTO t SELECT a, 's' FROM c",
    "INSERT INTO t WITH c AS (SELECT date_format(now(), 'yyyy/MM/dd') AS d) SELECT 1, d FROM c",
    r"CREATE VIEW w AS WITH c AS (SELECT regexp_replace(s, '[^\\w]', '') AS r FROM t) TABLE c",
    "MERGE INTO t USING (WITH c AS (SELECT 4 / 2 AS x) TABLE c) u ON u.x = t.a "
    "WHEN MATCHED THEN DELETE",
    "EXPLAIN WITH c AS (SELECT a / 2 AS x FROM t) SELECT * FROM c",
    "SELECT * FROM (SELECT 1) AS q(`km/h`)",
    "WITH c(`km/h`) AS (SELECT 1) SELECT * FROM c",
    "WITH `a/b` AS (SELECT 1) SELECT * FROM `a/b`",
    "SELECT 'a/b' AS `c/d`, map('path', '/x')",
    "SELECT IDENTIFIER('abs')(-1), IDENTIFIER('from_json')('{}', 'a INT', map('mode', 'FAILFAST'))",
]
"""Statements with slashes, but without files."""
AROUND = {
    "SELECT IDENTIFIER('from_xml')('<a/>', 'a INT', map('rowValidationXSDPath', '/etc/passwd'))": (
        ErrorClass.PATH
    ),
    "SELECT IDENTIFIER('from_' || 'xml')('<a/>', 'a INT', "
    "map('rowValidationXSDPath', '/etc/passwd'))": ErrorClass.TABLE_NAME,
    "SELECT from_protobuf(CAST('a' AS BINARY), 'M', 'x.desc')": ErrorClass.PATH,
    "SELECT * FROM `cſv`.`*`": ErrorClass.PATH,
    "SELECT path FROM `bınaryfile`.`..`": ErrorClass.PATH,
    "SELECT * FROM pq WITH ('fs.file.impl' = 'x')": ErrorClass.OPTION,
    "SELECT * FROM pq WITH ('parquet.crypto.factory.class' = 'x')": ErrorClass.OPTION,
    "CREATE TEMPORARY VIEW z USING text OPTIONS ('path' '/data/in/f', 'fs.defaultFS' 'x:///')": (
        ErrorClass.OPTION
    ),
}


@pytest.fixture
async def restricted_engine(spark: LocalSpark, tmp_path: Path) -> AsyncIterator[SparkConnectEngine]:
    """An engine whose operator allows PREFIXES and the test's own folder."""
    paths = (*PREFIXES, str(tmp_path))
    made = SparkConnectEngine(address_of(spark), ring="files", cluster="a", paths=paths)
    yield made
    await made.aclose()


async def session_of(engine: SparkConnectEngine, schema: str, pool: str) -> SparkSession:
    session = engine.session(f"files-{uuid.uuid4().hex[:6]}", pool=pool)
    await session.configure(Settings(schema=schema))
    return session


async def outcome(session: SparkSession, sent: Statement, *, reads: bool = False) -> str:
    """Return the class of the error that a statement ends with; empty if it succeeds."""
    try:
        if reads:
            assert isinstance(sent, SqlText)
            await session.reading(sent, timeout_s=TIMEOUT_S)
        else:
            async for _ in await session.query(sent, timeout_s=TIMEOUT_S):
                pass
    except EngineError as error:
        return error.error_class
    return ""


def _is_here(path: str) -> bool:
    return not path.lower().startswith("s3a:")  # nobody brings its classes


async def test_path_is_compared_in_its_normal_form(
    restricted_engine: SparkConnectEngine, schema: str
) -> None:
    session = await session_of(restricted_engine, schema, pool_of("ann"))
    for path in filter(_is_here, ALLOWED):
        found = await outcome(session, SqlText(f"SELECT * FROM text.`{path}`"))
        assert found not in ("", ErrorClass.PATH), path  # it was looked for
    for path in filter(lambda path: "/" in path and "\0" not in path, REFUSED):
        found = await outcome(session, SqlText(f"SELECT * FROM text.`{path}`"))
        assert found == ErrorClass.PATH, path


@pytest.mark.parametrize("as_command", [False, pytest.param(True, marks=pytest.mark.thorough)])
async def test_file_is_looked_up_only_below_an_allowed_prefix(
    restricted_engine: SparkConnectEngine,
    engine: SparkConnectEngine,
    schema: str,
    tmp_path: Path,
    as_command: bool,
) -> None:
    """In all ways in which a text may name files; also as PySpark sends it."""
    own = engine.session("own")
    await rows(own, f"CREATE TABLE {schema}.t (k INT) USING delta")
    for allowed, path in ((True, tmp_path / "d"), (False, tmp_path.parent / f"x{tmp_path.name}")):
        await rows(own, f"CREATE TABLE delta.`{path}` (k INT) USING delta")
        users = await session_of(restricted_engine, schema, pool_of("ann"))
        await rows(users, "DECLARE VARIABLE v STRING")
        for sql in NAMING:
            text = sql.format(path=path)
            found = await outcome(users, command(text) if as_command else SqlText(text))
            put_together = any(
                each in sql for each in ("'rowValidationXSD' ||", "map(v", "concat(")
            )
            if found == ErrorClass.NO_QUERY and text.startswith("CREATE TEMP"):
                found = ""
            assert (found == ErrorClass.PATH) is (not allowed or put_together), (sql, found)
            await outcome(users, SqlText("DROP VIEW IF EXISTS f"))
    assert await rows(own, f"SELECT count(*) FROM {schema}.t") == [(0,)]


async def test_reading_of_a_write_that_names_files_needs_an_allowed_prefix(
    restricted_engine: SparkConnectEngine, engine: SparkConnectEngine, schema: str, tmp_path: Path
) -> None:
    own = engine.session("own")
    await rows(own, f"CREATE TABLE {schema}.t (k INT) USING delta")
    for allowed, path in ((True, tmp_path / "e"), (False, tmp_path.parent / f"y{tmp_path.name}")):
        await rows(own, f"CREATE TABLE delta.`{path}` (k INT) USING delta")
        reads = await session_of(restricted_engine, schema, READING_POOL)
        for sql in WRITING:
            found = await outcome(reads, SqlText(sql.format(path=path)), reads=True)
            assert (found == ErrorClass.PATH) is not allowed, (sql, found)


async def test_statements_listed_as_naming_files_are_refused_by_their_reading(
    restricted_engine: SparkConnectEngine, engine: SparkConnectEngine, schema: str
) -> None:
    for sql in ("CREATE TABLE t (a INT) USING delta", "CREATE TABLE u (a INT) USING delta"):
        await rows(engine.session("own"), sql.replace("TABLE ", f"TABLE {schema}."))
    reads = await session_of(restricted_engine, schema, READING_POOL)
    naming = [each.sql for each in unread() if each.error_class == ErrorClass.PATH]
    assert len(naming) > 15
    for sql in naming:
        assert await outcome(reads, SqlText(sql), reads=True) == ErrorClass.PATH, sql


async def test_name_below_a_format_is_a_file_unless_it_has_a_catalog_or_is_written(
    restricted_engine: SparkConnectEngine, schema: str
) -> None:
    reads = await session_of(restricted_engine, schema, READING_POOL)
    assert await outcome(reads, SqlText("SELECT * FROM json.t"), reads=True) == ErrorClass.PATH
    for sql in ("SELECT * FROM spark_catalog.json.t", "INSERT INTO json.t VALUES (1)"):
        assert await outcome(reads, SqlText(sql), reads=True) == "TABLE_OR_VIEW_NOT_FOUND"


async def test_table_stored_in_files_is_readable_by_its_name_in_all_ways(
    restricted_engine: SparkConnectEngine, engine: SparkConnectEngine, schema: str
) -> None:
    """Its analyzed plan has the path, and Spark analyzes it again inside of other plans."""
    own = engine.session("own")
    await rows(own, f"CREATE TABLE {schema}.p USING parquet AS SELECT id AS k FROM range(9)")
    users = await session_of(restricted_engine, schema, pool_of("ann"))
    relation = protos.relations.Relation()
    relation.read.named_table.unparsed_identifier = f"{schema}.p"
    plans = [protos.base.Plan() for _ in range(4)]
    plans[0].root.show_string.input.CopyFrom(relation)
    plans[0].root.show_string.num_rows = 3
    plans[1].root.describe.input.CopyFrom(relation)
    plans[2].root.sample_by.input.CopyFrom(relation)
    plans[2].root.sample_by.col.unresolved_attribute.unparsed_identifier = "k"
    plans[3].command.create_dataframe_view.input.CopyFrom(relation)
    plans[3].command.create_dataframe_view.name = "seen"
    plans[3].command.create_dataframe_view.replace = True
    for plan in plans:
        assert await outcome(users, SparkPlan(plan.SerializeToString())) == ""
    for sql in ("SELECT * FROM seen", "CACHE TABLE c AS SELECT * FROM p", "SELECT * FROM c, seen"):
        assert await outcome(users, SqlText(sql)) == ""
    await outcome(users, SqlText("UNCACHE TABLE c"))


async def test_name_or_text_with_a_slash_is_no_file(
    restricted_engine: SparkConnectEngine, engine: SparkConnectEngine, schema: str
) -> None:
    own = engine.session("own")
    await rows(own, f"CREATE TABLE {schema}.t (a INT, s STRING) USING delta")
    users = await session_of(restricted_engine, schema, pool_of("ann"))
    reads = await session_of(restricted_engine, schema, READING_POOL)
    for sql in EVERYDAY:
        if not any(each in sql for each in ("INSERT", "CREATE VIEW", "MERGE")):
            assert await outcome(users, SqlText(sql)) == "", sql
        assert await outcome(reads, SqlText(sql), reads=True) == "", sql
    plan = protos.base.Plan()
    plan.root.to_df.input.sql.query = "SELECT 1"
    plan.root.to_df.column_names.append("km/h")
    assert await outcome(users, SparkPlan(plan.SerializeToString())) == ""


async def test_indirect_way_to_files_is_refused(
    restricted_engine: SparkConnectEngine, engine: SparkConnectEngine, schema: str, tmp_path: Path
) -> None:
    own = engine.session("own")
    await rows(own, f"CREATE TABLE {schema}.pq (s STRING) USING csv")
    users = await session_of(restricted_engine, schema, pool_of("ann"))
    for sql, error_class in AROUND.items():
        assert await outcome(users, SqlText(sql)) == error_class, sql
        assert await outcome(users, command(sql)) == error_class, sql
    for option in ("'header' = 'true'", "'orc.compress' = 'NONE'"):
        assert await outcome(users, SqlText(f"SELECT * FROM pq WITH ({option})")) == ""


async def test_version_computed_by_a_query_is_refused_before_its_lookup(
    restricted_engine: SparkConnectEngine, engine: SparkConnectEngine, schema: str
) -> None:
    """The analyzer would run that query, and an error would show its result."""
    own = engine.session("own")
    await rows(own, f"CREATE TABLE {schema}.t (a INT) USING delta")
    reads = await session_of(restricted_engine, schema, READING_POOL)
    users = await session_of(restricted_engine, schema, pool_of("ann"))
    moment = "t TIMESTAMP AS OF (SELECT timestamp'2099-01-01')"
    for sql in (f"SELECT * FROM {moment}", f"INSERT INTO t SELECT * FROM {moment}"):
        for session in (reads, users):
            found = await outcome(session, SqlText(sql), reads=True)
            assert found == ErrorClass.NONDETERMINISTIC
    frame = protos.base.Plan()
    frame.root.limit.input.sql.query = f"SELECT * FROM {moment}"
    with pytest.raises(EngineError) as caught:
        await users.reading(SparkPlan(frame.SerializeToString()), timeout_s=TIMEOUT_S)
    assert caught.value.error_class == ErrorClass.NONDETERMINISTIC
    found = await outcome(users, SqlText(f"SELECT * FROM {moment}"))
    assert found.startswith("DELTA_")  # nobody has to judge what it touches


async def test_explain_does_not_run_the_code_of_its_statement(
    restricted_engine: SparkConnectEngine, engine: SparkConnectEngine, schema: str
) -> None:
    users, own = await session_of(restricted_engine, schema, pool_of("ann")), engine.session("own")
    key = uuid.uuid4().hex
    call = f"java_method('java.lang.System', 'setProperty', '{key}', b)"
    for sql in (
        f"EXPLAIN SELECT {call} FROM VALUES ('ran') AS v(b)",
        f"EXPLAIN FORMATTED INSERT INTO t SELECT {call} FROM VALUES ('ran') AS v(b)",
        f"EXPLAIN SELECT * FROM t TIMESTAMP AS OF (SELECT if({call} IS NULL, now(), now()) "
        "FROM VALUES ('ran') AS v(b))",
    ):
        await outcome(users, SqlText(sql))
        read_property = f"SELECT java_method('java.lang.System', 'getProperty', '{key}')"
        assert await rows(own, read_property) in ([(None,)], [("null",)]), sql


async def test_guard_and_its_file_check_survive_a_reset(
    restricted_engine: SparkConnectEngine, engine: SparkConnectEngine, schema: str
) -> None:
    """A client's RESET removes the setting before HAProc can set it again."""
    users = await session_of(restricted_engine, schema, pool_of("ann"))
    own = engine.session("own")
    await rows(own, f"CREATE TABLE {schema}.t (k INT) USING delta")
    remote = users._remote
    await remote.unset_confs(["spark.sql.haproc.guarded"])
    insert, files = f"INSERT INTO {schema}.t VALUES (1)", "SELECT * FROM text.`/etc/passwd`"
    assert await outcome(users, command(insert)) == ErrorClass.NO_QUERY
    assert await outcome(users, command(files)) == ErrorClass.PATH
    assert await rows(own, f"SELECT count(*) FROM {schema}.t") == [(0,)]


async def test_rows_of_haprocs_own_tables_are_refused_to_users(
    restricted_engine: SparkConnectEngine, engine: SparkConnectEngine, schema: str
) -> None:
    """The name is computed, so it is not in the text of the statement."""
    own, table = engine.session("own"), "haproc_warm_up.mine"
    await rows(own, "CREATE SCHEMA IF NOT EXISTS haproc_warm_up")
    try:
        await rows(own, f"CREATE TABLE {table} (k INT) USING delta")
        users = await session_of(restricted_engine, schema, pool_of("ann"))
        sql = "SELECT * FROM IDENTIFIER('haproc_' || 'warm_up.mine')"
        for sent in (SqlText(sql), command(sql)):
            assert await outcome(users, sent) == ErrorClass.NO_QUERY
    finally:
        await rows(own, "DROP SCHEMA haproc_warm_up CASCADE")
