"""Tests of rights: a user's tables and roles decide about statements of every form."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import LongType, StructType

from haproc.classify.classifier import decided, ruled
from haproc.classify.model import Kind, Recognised, RefusedError, Touched
from haproc.classify.names import Context
from haproc.classify.plans.classifying import classify_plan
from haproc.classify.rights import CODE, Rights, Role
from haproc.classify.rules import Rules, parse_rules
from haproc.config.sections import User
from haproc.engine.statement import SparkPlan, SqlText
from haproc.reading import known
from haproc.reading.summary import touches
from tests.readings.golden import CORPUS, part, reading_of
from tests.readings.golden import recorded as golden
from tests.unit import test_reads_between_doors as between
from tests.unit.door_rig import until
from tests.unit.made_readings import alias, reading_json, table
from tests.unit.recorded_plans import Program, read
from tests.unit.test_reads_between_doors import HAProc, Pair, Reads, pair
from tests.unit.test_ruling import INSERT, ReadingSpark, error_of

OWN = ("spark_catalog.default.*",)
USERS = (
    User("own", "token-of-own", tables=OWN),
    User("read", "token-of-read", roles=(Role.READER,)),
    User("all", "token-of-all"),
    User("t", "token-of-t", tables=("spark_catalog.default.t",)),
    User("nothing", "token-of-nothing", tables=("spark_catalog.nothing.*",)),
)
FORBIDDEN = "HAPROC_FORBIDDEN"
SALES = Rights(tables=("spark_catalog.sales.*", "spark_catalog.hr.names"))


class CodeSpark(ReadingSpark):
    """A Spark whose session has a Python function, f."""

    async def reading(self, statement: SqlText | SparkPlan, **given: Any) -> str:
        if isinstance(statement, SqlText) and statement.sql.startswith(("ALTER", "DELETE")):
            return golden(statement.sql).data
        if isinstance(statement, SqlText) and "f(" in statement.sql:
            code = alias("PythonUDF", "BIGINT", func={"c": "SimplePythonFunction", "f": {}})
            return reading_json(table("spark_catalog.default.t"), items=(code,))
        return await super().reading(statement, **given)


@contextlib.asynccontextmanager
async def ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, wait_s: float = 5.0
) -> AsyncIterator[tuple[Pair, HAProc, ReadingSpark]]:
    """Start two HAProcs, and send requests as a user."""
    monkeypatch.setattr(between, "Spark", CodeSpark)
    async with pair(tmp_path, Reads(wait_s=wait_s), users=USERS) as both:
        both.http.headers["Authorization"] = f"Bearer token-of-{user}"
        spark = both.a.spark
        assert isinstance(spark, ReadingSpark)
        yield both, both.a, spark


@pytest.mark.parametrize(
    ("sql", "ends"),
    [
        ("SELECT * FROM t", "SUCCEEDED"),
        ("SELECT * FROM v", FORBIDDEN),  # a view over another schema's table
        ("EXPLAIN SELECT * FROM v", FORBIDDEN),
        ("SELECT * FROM csv.`/x`", FORBIDDEN),  # files are no table
        ("SELECT f(a) FROM t", FORBIDDEN),  # code, which may read files
        ("INSERT INTO t VALUES (1)", "SUCCEEDED"),
        ("INSERT INTO secret.x VALUES (1)", FORBIDDEN),
        ("SHOW TABLES IN secret", "SUCCEEDED"),  # names alone
    ],
)
async def test_statement_of_a_user_with_some_tables_is_run_or_forbidden_by_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str, ends: str
) -> None:
    async with ring(tmp_path, monkeypatch, "own") as (both, a, spark):
        answer = await both.ask(a, sql)
        assert error_of(answer) == ends, answer
        if ends == FORBIDDEN:
            assert not spark.queries and "spark_catalog.default.*" in answer["message"]


async def test_write_that_reads_another_table_is_forbidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ring(tmp_path, monkeypatch, "t") as (both, a, _):
        assert error_of(await both.ask(a, INSERT)) == FORBIDDEN  # it reads u
        assert error_of(await both.ask(a, "INSERT INTO t VALUES (1)")) == "SUCCEEDED"


@pytest.mark.parametrize(
    ("sql", "taken"),
    [
        ("UPDATE t SET a = 1", True),
        ("DELETE FROM t", True),
        ("CREATE TABLE t (a INT, b STRING) USING delta", True),
        ("CREATE TABLE t USING delta AS SELECT * FROM u", False),
        ("CREATE TABLE t LIKE s.u", False),
        ("CREATE VIEW v AS SELECT * FROM t", False),  # v is another name
        ("ALTER TABLE t RENAME TO u", False),
        ("DROP TABLE t", True),
        ("CREATE SCHEMA s", False),
        ("DROP SCHEMA s CASCADE", False),
        ("CREATE FUNCTION g() RETURNS INT RETURN (SELECT max(a) FROM t)", False),
        ("DROP FUNCTION f", False),
    ],
)
async def test_write_of_a_user_with_one_table_is_forbidden_beyond_that_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: str, taken: bool
) -> None:
    """An allowed write is in the log, and a forbidden one is not."""
    for user, forbidden in (("t", not taken), ("nothing", True)):
        async with ring(tmp_path / user, monkeypatch, user) as (both, a, _):
            writing = asyncio.create_task(both.ask(a, sql, request_id="r"))
            logged = partial(a.core.outcomes.find, (user, "r"))
            await until(lambda: writing.done() or logged() is not None)  # noqa: B023
            assert (logged() is None) is forbidden
            if forbidden:
                assert error_of(await writing) == FORBIDDEN
            writing.cancel()  # the answer to one that is allowed may wait for the other cluster


async def test_query_that_another_cluster_runs_is_checked_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ring(tmp_path, monkeypatch, "own", wait_s=0.2) as (both, a, spark):
        both.b.spark.go.clear()  # so it lags, and forwards what is to be fresh
        await both.ask(a, "INSERT INTO t VALUES (1)")
        fresh = {"consistency": "linearizable"}
        assert error_of(await both.ask(both.b, "SELECT * FROM t", **fresh)) == "SUCCEEDED"
        assert error_of(await both.ask(both.b, "SELECT * FROM v", **fresh)) == FORBIDDEN
        assert spark.queries == ["SELECT * FROM t"]
        both.b.spark.go.set()


async def test_rows_for_another_table_are_forbidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ring(tmp_path, monkeypatch, "own") as (both, a, _):
        url = a.config.url(a.config.cluster("a").listen) + "/api/ha/tables/secret.x/rows"
        headers = {"Content-Type": "text/csv", "Idempotency-Key": "r1"}
        async with both.http.post(url, data=b"a\n1\n", headers=headers) as response:
            assert (response.status, (await response.json())["error_class"]) == (403, FORBIDDEN)


async def test_reader_can_query_and_is_forbidden_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "haproc.audit")
    async with ring(tmp_path, monkeypatch, "read") as (both, a, _):
        assert error_of(await both.ask(a, "SELECT * FROM v")) == "SUCCEEDED"
        for sql in ("INSERT INTO t VALUES ('a secret')", INSERT, "DROP TABLE t"):
            answer = await both.ask(a, sql)
            assert error_of(answer) == FORBIDDEN, answer
        audited = [json.loads(each.getMessage()) for each in caplog.records]
    assert [each["event"] for each in audited] == ["refused"] * 3
    assert {"user": "read", "door": "clients", "address": "127.0.0.1"}.items() <= audited[0].items()
    assert "a secret" not in str(audited)


async def test_user_without_table_patterns_has_all_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ring(tmp_path, monkeypatch, "all") as (both, a, _):
        for sql in ("SELECT * FROM v", "INSERT INTO t VALUES (1)"):
            assert error_of(await both.ask(a, sql)) == "SUCCEEDED"


# -- what Spark reads ----------------------------------------------------------------------------

NAMES = ("SHOW TABLES", "SHOW DATABASES", "SHOW VIEWS", "SHOW FUNCTIONS", "SHOW CATALOGS")
OF_TABLES = frozenset(
    """
    CatalogTable LogicalRelation HadoopFsRelation DataSourceV2Relation UnresolvedRelation
    ResolvedTable ResolvedIdentifier UnresolvedTable UnresolvedTableOrView UnresolvedIdentifier
    """.split()  # noqa: SIM905
)


def test_recorded_statements_about_a_table_are_all_forbidden_to_a_user_without_tables() -> None:
    """Each statement of the corpus, as the rules about queries and sessions see it."""
    nothing, passed, refused = Rights(tables=("spark_catalog.nothing.*",)), 0, 0
    for path in sorted(CORPUS.glob("*.txt")):
        for sql, recorded in part(path.stem).items():
            if recorded.error:
                continue
            reading = recorded.reading(sql)
            try:
                found = touches(reading, Context(schema=recorded.world))
            except RefusedError:
                continue  # for everybody
            if found.inner or found.function is not None:
                continue  # what is inside is read by itself, see `Ruling`
            if nothing.outside(Kind.SELECT, found.touched) is not None:
                refused += 1
                continue
            passed += 1
            listing = sql.startswith("SHOW") or "CACHE TABLE" in sql
            root = reading.analyzed or reading.parsed  # of which the latter names CTEs, too
            assert root is not None
            classes = {node.cls for node in root.walk()}
            variable = "FakeSystemCatalog" in classes
            assert listing or variable or classes.isdisjoint(OF_TABLES), sql
    assert refused > 1000 and passed > 100


@pytest.mark.parametrize("sql", NAMES)
def test_listing_of_names_is_allowed_to_everybody(sql: str) -> None:
    found = touches(reading_of(sql), Context())
    assert SALES.outside(Kind.SHOW, found.touched) is None


@pytest.mark.parametrize("sql", ["SHOW COLUMNS IN t", "DESCRIBE t", "DESCRIBE HISTORY t"])
def test_description_of_columns_requires_the_right_to_the_table(sql: str) -> None:
    found = touches(reading_of(sql), Context(schema="hr"))
    assert SALES.outside(Kind.SHOW, found.touched) is not None


# -- the rule itself -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("touched", "outside"),
    [
        (Touched(frozenset({"spark_catalog.sales.a", "spark_catalog.hr.names"})), None),
        (Touched(frozenset({"spark_catalog.hr.pay"})), "spark_catalog.hr.pay"),
        (Touched(schemas=frozenset({"spark_catalog.sales"})), None),
        (Touched(schemas=frozenset({"spark_catalog.hr"})), "spark_catalog.hr.*"),
        (Touched(schemas=frozenset({"spark_catalog.sales2"})), "spark_catalog.sales2.*"),
        (Touched(schemas=frozenset({""})), "all schemas"),
        (Touched(expressions=None), "tables, files or code that HAProc cannot name"),
        (Touched(known=False), "tables, files or code that HAProc cannot name"),
        (Touched(), None),
    ],
)
def test_outside_names_the_first_touched_table_or_schema_beyond_the_rights(
    touched: Touched, outside: str | None
) -> None:
    assert SALES.outside(Kind.SELECT, touched) == outside
    assert Rights().outside(Kind.SELECT, touched) is None


def test_code_classes_are_those_that_the_judge_considers_code() -> None:
    classes = {name for name, why in known.NATURE.items() if why.startswith("runs code")}
    assert {name.lower() for name in classes | known.FOREIGN} == CODE


@given(st.sampled_from(Kind))
def test_statement_of_an_unknown_kind_or_without_tables_is_outside_the_rights(kind: Kind) -> None:
    refused = SALES.outside(kind, Touched()) is not None
    name = kind.value
    assert refused is (kind is Kind.UNKNOWN or "namespace" in name or "function" in name)


def test_operators_rule_cannot_extend_a_users_tables() -> None:
    rules = parse_rules("rules: [{kind: select, class: query}, {kind: unknown, class: query}]")
    context = Context(user="ann", rights=SALES)
    secret = Touched(frozenset({"spark_catalog.hr.pay"}))
    for kind in (Kind.SELECT, Kind.UNKNOWN):
        with pytest.raises(RefusedError, match="may touch spark_catalog"):
            ruled(decided(Recognised(kind), "text", context, rules), secret)


@pytest.mark.parametrize(
    "plan",
    [
        lambda s: s.range(3).mapInArrow(lambda x: x, StructType().add("id", LongType())).collect(),
        lambda s: s.udf.register("f", lambda x: x),
    ],
)
def test_programs_own_functions_require_the_right_to_all_tables(plan: Program) -> None:
    reading = read(plan)
    classify_plan(reading, Context(), Rules.builtin())
    with pytest.raises(RefusedError, match="own functions") as raised:
        classify_plan(reading, Context(rights=SALES), Rules.builtin())
    assert raised.value.error_class == FORBIDDEN


@pytest.mark.parametrize("kind", [Kind.SET, Kind.USE, Kind.RESET])
def test_statement_without_tables_is_allowed_to_everybody(kind: Kind) -> None:
    found: Any = decided(Recognised(kind), "text", Context(rights=SALES), Rules.builtin())
    assert found.rules == ()
