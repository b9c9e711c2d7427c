"""Tests of rules that name tables, with the plan readings of statements and DataFrames."""

from __future__ import annotations

import uuid
from typing import Any

import pyspark.sql.connect.functions as F
import pytest

from haproc.classify.rules import parse_rules
from haproc.engine.connect import SparkConnectEngine
from haproc.failure import ErrorClass, RequestError
from haproc.ring.spark import LocalSpark
from haproc.route.model import Request, Sent, SentPlan, SentSql
from haproc.route.service import RingService
from tests.integration.conftest import address_of
from tests.integration.engine_calls import rows
from tests.integration.one_cluster import one_cluster
from tests.unit.recorded_plans import recorded

pytestmark = pytest.mark.spark
REFUSED = [
    "SELECT * FROM v",
    "SELECT count(*) FROM t WHERE a IN (SELECT a FROM v)",
    "WITH t AS (TABLE secret) SELECT * FROM t",
    "SELECT f()",
    "FROM v |> SELECT a",
    "EXPLAIN SELECT * FROM v",
    "DESCRIBE secret",
    "SHOW TBLPROPERTIES secret",
    "SHOW COLUMNS IN secret",
    "SHOW TABLE EXTENDED LIKE 'secret'",
    "SHOW TABLE EXTENDED LIKE '*'",
    "CREATE FUNCTION w() RETURNS INT RETURN SELECT max(a) FROM v",
    "INSERT INTO t SELECT * FROM v",
    "MERGE INTO t USING v ON t.a = v.a WHEN NOT MATCHED THEN INSERT *",
    "INSERT INTO secret VALUES (1)",
    "INSERT INTO secret SELECT 1",
    "UPDATE secret SET a = 1",
    "CREATE TABLE u USING delta AS SELECT * FROM v",
    "CREATE VIEW w AS SELECT * FROM v",
    "DROP TABLE secret",
]
ALLOWED = [
    "SELECT * FROM t",
    "SELECT 'secret' AS secret FROM t secret",
    "WITH secret AS (SELECT 1 AS a) SELECT * FROM secret",
    "EXPLAIN EXTENDED SELECT * FROM t",
    "DESCRIBE t",
    "SHOW TABLES",
    "SHOW TABLE EXTENDED LIKE 't'",
    "SHOW TABLE EXTENDED IN default LIKE '*'",
    "CREATE SCHEMA IF NOT EXISTS default",
    "CREATE FUNCTION w() RETURNS INT RETURN SELECT max(a) FROM t",
    "DROP FUNCTION w",
    "INSERT INTO t SELECT a FROM t",
    "UPDATE t SET a = 2",
]
PLANS = {
    "view": lambda s: s.table("v").collect(),
    "text": lambda s: s.sql("SELECT * FROM v").filter("a > 0").collect(),
    "condition": lambda s: s.range(2).filter("id IN (SELECT a FROM v)").collect(),
    "summary": lambda s: s.table("v").summary().collect(),
    "above a summary": lambda s: s.table("v").describe().limit(1).collect(),
    "shown": lambda s: s.table("v").show(),
    "pivot": lambda s: s.table("v").groupBy().pivot("a").count().collect(),
    "function": lambda s: s.range(1).select(F.call_function("f")).collect(),
    "rows": lambda s: s.createDataFrame([(1,)], ["b"]).crossJoin(s.table("v")).collect(),
    "written": lambda s: s.table("v").writeTo("t").append(),
    "summary written": lambda s: s.table("v").summary().write.saveAsTable("u"),
    "text with it": lambda s: s.sql("SELECT * FROM {df}", df=s.table("v")),
    "text with its summary": lambda s: s.sql("SELECT 1 FROM {df}", df=s.table("v").summary()),
    "summary written by a text": lambda s: s.sql(
        "INSERT INTO t SELECT count(*) FROM {df}", df=s.table("v").summary()
    ),
    "view of it": lambda s: s.table("v").createTempView("x"),
    "columns": lambda s: s.catalog.listColumns("secret"),
    "there": lambda s: s.catalog.tableExists("secret"),
    "told of": lambda s: s.catalog.getTable("secret"),
}
HARMLESS = {
    "table": lambda s: s.table("t").select("a").collect(),
    "rows": lambda s: s.createDataFrame([(1,)], ["b"]).collect(),
    "summary": lambda s: s.table("t").summary().collect(),
    "shown": lambda s: s.table("t").show(),
    "text": lambda s: s.sql("SELECT * FROM t").filter("a > 0").collect(),
    "told of": lambda s: s.catalog.getTable("t"),
    "tables": lambda s: s.catalog.listTables(),
}


async def outcome(service: RingService, sent: Sent, *, relays: bool = False, **fields: Any) -> str:
    """Return the class of a request's error, or "done"."""
    request = Request(uuid.uuid4().hex, sent, "", user="ann", **fields)
    try:
        answer = await (service.decide if relays else service.execute)(request)
        await answer.aclose()
    except RequestError as error:
        return str(error.error_class)
    return "done"


@pytest.mark.thorough
async def test_rule_for_a_table_applies_in_all_ways_in_which_spark_reads_it(
    spark: LocalSpark, engine: SparkConnectEngine, schema: str
) -> None:
    own = engine.session("own")
    for text in (
        f"CREATE TABLE {schema}.t (a INT) USING delta",
        f"CREATE TABLE {schema}.secret (a INT) USING delta",
        f"CREATE VIEW {schema}.v AS SELECT * FROM {schema}.secret",
        f"CREATE FUNCTION {schema}.f() RETURNS INT RETURN SELECT max(a) FROM {schema}.secret",
    ):
        await rows(own, text)
    rules = parse_rules(f"rules: [{{table: 'spark_catalog.{schema}.secret', refuse: no}}]")
    async with one_cluster(address_of(spark), rules=rules) as (service, _):
        texts = {each: await outcome(service, SentSql(each), schema=schema) for each in REFUSED}
        assert texts == dict.fromkeys(REFUSED, ErrorClass.REFUSED_BY_RULE)
        texts = {each: await outcome(service, SentSql(each), schema=schema) for each in ALLOWED}
        assert texts == dict.fromkeys(ALLOWED, "done")
        for programs, expected in ((PLANS, ErrorClass.REFUSED_BY_RULE), (HARMLESS, "done")):
            found = {}
            for name, program in programs.items():
                sent = SentPlan(recorded(program).SerializeToString())
                found[name] = await outcome(service, sent, schema=schema, relays=True)
            assert found == dict.fromkeys(programs, expected)


@pytest.mark.thorough
async def test_rule_for_a_table_applies_through_temporary_objects_of_a_session(
    spark: LocalSpark, engine: SparkConnectEngine, schema: str
) -> None:
    own = engine.session("own")
    for name in ("t", "secret"):
        await rows(own, f"CREATE TABLE {schema}.{name} (a INT) USING delta")
    rules = parse_rules(
        f"rules: [{{kind: [select, insert], table: 'spark_catalog.{schema}.secret', refuse: no}}]"
    )
    async with one_cluster(address_of(spark), rules=rules) as (service, _):
        begin = [
            f"USE {schema}",
            "CREATE TEMPORARY VIEW v AS SELECT * FROM secret",
            "CREATE TEMPORARY VIEW w AS SELECT * FROM t",
        ]
        await service.open_session("s", "ann", begin, afresh=True)
        for name, expected in (("v", ErrorClass.REFUSED_BY_RULE), ("w", "done")):
            for text in (f"SELECT * FROM {name}", f"INSERT INTO t SELECT * FROM {name}"):
                assert await outcome(service, SentSql(text), session_id="s") == expected
    every = parse_rules(f"rules: [{{table: 'spark_catalog.{schema}.secret', refuse: no}}]")
    async with one_cluster(address_of(spark), rules=every) as (service, _):
        await service.open_session("s", "ann", [f"USE {schema}"], afresh=True)
        assert await outcome(service, SentSql("DECLARE n INT"), session_id="s") == "done"
        for text in (
            "CREATE TEMPORARY VIEW v AS SELECT * FROM secret",
            "CACHE TABLE secret",
            "SET VAR n = (SELECT max(a) FROM secret)",
            "CREATE TEMPORARY FUNCTION g() RETURNS INT RETURN SELECT max(a) FROM secret",
        ):
            refused = ErrorClass.REFUSED_BY_RULE
            assert await outcome(service, SentSql(text), session_id="s") == refused
        text = "CREATE TEMPORARY FUNCTION g() RETURNS INT RETURN SELECT max(a) FROM t"
        assert await outcome(service, SentSql(text), session_id="s") == "done"
