"""Tests of expressions that DDL computes later: read as queries, and judged by those readings."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from haproc.classify.model import RefusedError
from haproc.classify.names import Context
from haproc.pin.literals import Moment, Treatment
from haproc.reading.definitions import function_queries, queries, schemas
from haproc.reading.judge import Judged, judge, judge_definition, with_part
from haproc.reading.tree import Facts, Node, Reading, TextRange, UnreadableError
from tests.readings import corpus
from tests.readings.golden import part

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
MOMENT = Moment(NOW, "UTC", "ann", "spark_catalog", "witness")
CONTEXT, FACTS = Context("spark_catalog", "witness"), Facts()
REPLICATED = [
    "CREATE TABLE n (x INT DEFAULT 3 + 1 NOT NULL COMMENT 'x', z INT GENERATED ALWAYS AS "
    "(x + 1)) USING delta TBLPROPERTIES ('delta.feature.allowColumnDefaults' = "
    "'supported')",
    "CREATE TABLE n (x STRING DEFAULT '10:00', ts TIMESTAMP DEFAULT TIMESTAMP "
    "'2026-01-01 10:00') USING delta",
    "CREATE TABLE n (current_date DATE, user STRING, y INT GENERATED ALWAYS AS "
    "(year(current_date)), CHECK (user <> 'x')) USING delta",
    "CREATE TABLE n (a INT) USING delta OPTIONS ('x' = concat('a', 'b'))",
    "CREATE TABLE n LIKE t",
    "CREATE VIEW n AS SELECT *, now() AS moment FROM t",
    "ALTER TABLE us ADD CONSTRAINT c CHECK (user = 'x' AND current_date > DATE '2020-01-01')",
    "ALTER TABLE t ADD CONSTRAINT c CHECK (a > 0 -- positive\n)",
    "ALTER TABLE t ALTER COLUMN b SET DEFAULT 'x -- y'",
    "ALTER TABLE p ALTER COLUMN i SET DEFAULT 3",
    "ALTER TABLE t ADD COLUMNS (q INT DEFAULT 3 FIRST, r STRING DEFAULT upper('x'))",
    "CREATE FUNCTION g(current_date DATE, user STRING) RETURNS STRING RETURN user || "
    "g.current_date",
    "CREATE FUNCTION g(x STRING DEFAULT 'a') RETURNS TABLE (q INT, r STRING) RETURN "
    "SELECT i, b FROM u WHERE b = x ORDER BY a, b, i LIMIT 2",
    "CREATE FUNCTION g() RETURNS TABLE RETURN SELECT a FROM t",
    "CREATE FUNCTION g(x INT) RETURNS INT RETURN SELECT max(i) FROM u WHERE a = x",
    "CREATE FUNCTION g(x STRING) RETURNS TIMESTAMP RETURN to_timestamp(x, 'yyyy-MM-dd')",
]
REFUSED = {
    "CREATE TABLE n (current_date DATE, y DATE DEFAULT current_date) USING delta": "the clock",
    "CREATE TABLE n (a INT, d TIMESTAMP DEFAULT current_timestamp()) USING delta": "the clock",
    "CREATE TABLE n (x INT, ts TIMESTAMP DEFAULT '10:00') USING delta": "as a moment",
    "CREATE TABLE n (a STRING DEFAULT IDENTIFIER('current_user')()) USING delta": "session",
    "CREATE TABLE n (a BIGINT GENERATED ALWAYS AS IDENTITY) USING delta": "IDENTITY",
    "CREATE TABLE n (a DATE, b INT GENERATED ALWAYS AS (year(now()))) USING delta": "the clock",
    "CREATE TABLE n (b STRING, x TIMESTAMP GENERATED ALWAYS AS (CAST(b AS TIMESTAMP))) "
    "USING delta": "time of day",
    "CREATE TABLE n (a INT, CHECK (a > month(current_date()))) USING delta": "the clock",
    "ALTER TABLE t ADD COLUMNS (q DATE DEFAULT current_date, r INT DEFAULT 3)": "the clock",
    "ALTER TABLE t ALTER COLUMN b SET DEFAULT current_user()": "session",
    "ALTER TABLE t ALTER COLUMN ts SET DEFAULT '10:00'": "as a moment",
    "ALTER TABLE p ALTER COLUMN b SET DEFAULT current_user()": "session",
    "ALTER TABLE t ADD CONSTRAINT c CHECK (d < current_date())": "the clock",
    "ALTER TABLE t ADD CONSTRAINT c CHECK (d > DATE 'today')": "read by the clock",
    "ALTER TABLE t ADD CONSTRAINT c CHECK (frr(1) = 'x')": "uuid() in spark_catalog.witness.fr",
    "ALTER TABLE t ADD CONSTRAINT c CHECK (ts BETWEEN '00:00' AND '23:59')": "time of day",
    "CREATE FUNCTION g() RETURNS DOUBLE RETURN rand()": "other values",
    "CREATE FUNCTION g(x INT DEFAULT 3, y DATE DEFAULT current_date()) RETURNS INT "
    "RETURN x": "the clock",
    "CREATE FUNCTION g(x VARCHAR(5)) RETURNS TIMESTAMP RETURN x": "time of day",
    "CREATE FUNCTION g(x STRUCT<a: STRING>) RETURNS TIMESTAMP RETURN x.a": "time of day",
    "CREATE FUNCTION g(x STRING) RETURNS TABLE (p INT, q TIMESTAMP) RETURN SELECT 1, x": (
        "time of day"
    ),
    "CREATE FUNCTION g(x STRING) RETURNS DOUBLE RETURN (SELECT sum(c) FROM t WHERE b = x)": (
        "floating"
    ),
    "CREATE FUNCTION g() RETURNS TABLE (n INT) RETURN SELECT TRANSFORM (a) USING 'cat' "
    "AS (n INT) FROM t": "runs a program",
    "CREATE FUNCTION g() RETURNS TABLE (b STRING) RETURN SELECT b FROM u LIMIT 1": "any rows",
    "CREATE OR REPLACE TABLE t SHALLOW CLONE u": "each cluster numbers itself",
}


def reading_of(sql: str) -> Reading:
    return part("ddl")[sql].reading(sql)


def queries_of(sql: str) -> list[str]:
    found = judge_definition(reading_of(sql), CONTEXT, FACTS, MOMENT)
    assert found is not None
    if found.function is None:
        return list(found.queries)
    return function_queries(found.function, [reading_of(each) for each in schemas(found.function)])


def judged(sql: str) -> Judged:
    """Return the verdict that `haproc.route.readings` would come to."""
    if "CLONE" in sql:
        return judge(reading_of(sql), CONTEXT, FACTS, MOMENT)
    found = judge_definition(reading_of(sql), CONTEXT, FACTS, MOMENT)
    assert found is not None
    verdict = found.judged
    if verdict.treatment is Treatment.REPLICATE:
        for query in queries_of(sql):
            verdict = with_part(reading_of(query), verdict, CONTEXT, FACTS, MOMENT)
    return verdict


def test_statements_of_the_corpus_are_all_tested() -> None:
    statements = [each for each in corpus.statements("ddl") if not each.startswith("SELECT")]
    made = [each for each in statements if not each.startswith("CREATE TABLE haproc_columns")]
    assert made == [*REPLICATED, *REFUSED]


@pytest.mark.parametrize("sql", REPLICATED)
def test_definition_with_the_same_effect_on_all_clusters_is_replicated(sql: str) -> None:
    verdict = judged(sql)
    assert (verdict.treatment, verdict.reasons) == (Treatment.REPLICATE, ())
    assert verdict.sql == sql


@pytest.mark.parametrize("sql", REFUSED)
def test_definition_that_would_differ_is_refused_with_the_responsible_part(sql: str) -> None:
    try:
        verdict = judged(sql)
    except RefusedError as error:
        assert REFUSED[sql] in error.message and "keeps its name" not in error.message
        return
    assert verdict.treatment is Treatment.REFUSE and verdict.hint
    assert REFUSED[sql] in "; ".join(verdict.reasons)
    assert "keep" not in "; ".join(verdict.reasons)


def test_query_of_a_default_has_no_column_and_the_query_of_a_check_has_all() -> None:
    sql = "CREATE TABLE n (current_date DATE, y DATE DEFAULT current_date) USING delta"
    assert queries(reading_of(sql)) == ["SELECT CAST((current_date\n) AS DATE) AS x0"]
    (sql,) = (each for each in REPLICATED if "user <> 'x'" in each)
    (query,) = queries_of(sql)
    assert query == (
        "SELECT CAST((year(current_date)\n) AS INT) AS x0, (user <> 'x'\n) AS x1 FROM (SELECT "
        "CAST(NULL AS DATE) AS `current_date`, CAST(elt(1, CAST(NULL AS STRING)) AS STRING) AS "
        "`user`, CAST(NULL AS INT) AS `y`) AS `q`"
    )


def test_query_of_a_table_function_has_its_parameters_and_column_types() -> None:
    (sql,) = (each for each in REPLICATED if "TABLE (q INT, r STRING)" in each)
    default, body = queries_of(sql)
    assert default == "SELECT CAST(('a'\n) AS STRING) AS x0"
    assert body == (
        "SELECT * FROM (SELECT CAST(elt(1, CAST(NULL AS STRING)) AS STRING) AS `x`) AS `g`, "
        "LATERAL (SELECT CAST(c0 AS INT), CAST(c1 AS STRING) FROM (SELECT i, b FROM u WHERE b = x "
        "ORDER BY a, b, i LIMIT 2\n) AS q(c0, c1)\n)"
    )


def test_verdict_rests_on_tables_of_the_later_reading() -> None:
    (sql,) = (each for each in REPLICATED if "RETURN SELECT max(i)" in each)
    assert judged(sql).rests_on == {"spark_catalog.witness.u"}


def test_function_without_a_body_is_unreadable() -> None:
    with pytest.raises(UnreadableError):
        function_queries(Node("CreateUserDefinedFunction"), [])


@pytest.mark.parametrize(
    ("argument", "becomes"),
    [
        (Node("Literal", type="STRING", value="'t'", is_tree=True), "CALL compact(x())"),
        (Node("Frobnicate", type="INT", is_tree=True), "CALL compact(x())"),
        (Node("Rand", type="DOUBLE", deterministic=False, is_tree=True), None),
        (
            Node("CurrentDate", type="DATE", place=TextRange(13, 27), is_tree=True),
            "CALL compact(DATE '2026-03-01')",
        ),
    ],
)
def test_statement_that_a_rule_vouches_for_is_replicated_unless_it_is_random(
    argument: Node, becomes: str | None
) -> None:
    text = "CALL compact(current_date())" if argument.place else "CALL compact(x())"
    call = Node("Call", {"arguments": [argument]}, is_tree=True)
    reading = Reading(text, Node("Call", is_tree=True), call)
    with pytest.raises(RefusedError):
        judge_definition(reading, CONTEXT, FACTS, MOMENT)
    found = judge_definition(reading, CONTEXT, Facts(vouched=True), MOMENT)
    assert found is not None
    if becomes is None:
        assert found.judged.treatment is Treatment.REFUSE
    else:
        assert (found.judged.treatment, found.judged.sql) == (Treatment.REPLICATE, becomes)
