"""Tests of the judge's findings in readings: parts that could differ between clusters.

Each finding has a remedy. The readings are Spark's own, recorded in
`tests/golden/readings/exact.json.gz` (text to JSON), of the tables of `witness_statements` and of
those in `PREPARING`.
"""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import pytest

from haproc.pin.literals import Moment
from haproc.reading.exact import examine
from haproc.reading.settled import examine_computed, examine_words
from haproc.reading.tree import Facts, Finding, Node, Reading, Remedy, read
from tests.integration.witness_statements import AS_TEXT, REFUSED, ROWS

GOLDEN = Path(__file__).parents[1] / "golden" / "readings" / "exact.json.gz"
MOMENT = Moment(
    now=datetime(2026, 3, 4, 5, 6, 7, 891011, tzinfo=UTC),
    time_zone="Europe/Berlin",
    user="ann",
    catalog="spark_catalog",
    schema="wit",
)
PREPARING = [
    "CREATE TABLE days (current_date DATE, n INT) USING delta",
    "CREATE TABLE audit (k INT, current_user STRING, now STRING) USING delta",
    "CREATE TABLE cdf (a INT) USING delta TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
    "CREATE TABLE part (a INT, d DATE, ts TIMESTAMP) USING delta PARTITIONED BY (d)",
    "CREATE VIEW vnow AS SELECT a, current_timestamp() AS ts, b FROM u",
    "CREATE VIEW vtoday AS SELECT a, DATE 'today' AS d FROM u",
    "CREATE VIEW vday AS SELECT a, DATE '2026-01-01' AS d FROM u WHERE a > 1",
    "CREATE VIEW vrows AS SELECT * FROM VALUES (1, CAST(concat('10', ':00') AS TIMESTAMP)) "
    "AS q(a, ts)",
    "CREATE VIEW vplain AS SELECT * FROM VALUES (1, 'x'), (2, NULL) AS q(a, b)",
    "CREATE VIEW vv AS SELECT * FROM vtoday",
    "CREATE TABLE ct (current_timestamp TIMESTAMP, n INT) USING delta",
    "CREATE FUNCTION fclock() RETURNS DATE RETURN current_date()",
    "CREATE FUNCTION ftoday(x INT) RETURNS DATE RETURN DATE 'today'",
    "CREATE FUNCTION frows() RETURNS TABLE(x TIMESTAMP) RETURN "
    "SELECT * FROM VALUES (CAST(concat('1', ':0') AS TIMESTAMP))",
    "CREATE OR REPLACE TEMPORARY VIEW tv AS SELECT a, b, i FROM u",
    "DECLARE OR REPLACE VARIABLE k INT = 3",
    "DECLARE OR REPLACE VARIABLE s STRING = 'it\\'s \\u0024{x}'",
    "DECLARE OR REPLACE VARIABLE at TIMESTAMP = TIMESTAMP '2026-01-02 03:04:05'",
]
"""The tables besides those of `witness_statements`."""
EXACT = [
    "DELETE FROM days WHERE current_date > DATE'2026-01-01'",
    "UPDATE days SET n = 1 WHERE current_date IS NULL",
    "INSERT INTO days REPLACE WHERE current_date >= DATE '2026-01-01' SELECT * FROM days",
    "INSERT INTO u SELECT k, current_user, 1 FROM audit",
    "INSERT INTO u SELECT k, now, 1 FROM audit WHERE now = 'now'",
    "MERGE INTO days USING days AS s ON days.n = s.n WHEN MATCHED THEN UPDATE SET current_date = "
    "s.current_date",
    "MERGE INTO days t USING (SELECT n, current_date FROM days) s ON t.n = s.n WHEN NOT MATCHED "
    "THEN INSERT (current_date, n) VALUES (current_date, s.n)",
    "INSERT INTO days SELECT x.current_date, 1 FROM days x",
    "INSERT INTO u SELECT a, `now()`, 1 FROM (SELECT a, b AS `now()` FROM u)",
    "INSERT INTO u SELECT aggregate(array(a), 0L, (current_date, x) -> current_date + x), 'x', 1 "
    "FROM t",
    "DELETE FROM t WHERE b = 'now()' AND a = 9",
    "INSERT INTO u SELECT a, 'x', 1 FROM vday",
    "INSERT INTO u SELECT a, b, 1 FROM vplain",
    "INSERT INTO u SELECT * FROM tv",
    "MERGE INTO u USING tv s ON u.a = s.a WHEN MATCHED THEN UPDATE SET b = s.b",
    "INSERT INTO u (a) SELECT max(a) FROM t LIMIT 1",
    "INSERT INTO days BY NAME SELECT current_date, n FROM days",
    "WITH current_date AS (SELECT 1 AS a) INSERT INTO u SELECT a, 'x', 1 FROM current_date",
    "MERGE INTO ct USING ct s ON ct.n = s.n WHEN MATCHED THEN UPDATE SET current_timestamp = "
    "s.current_timestamp, n = 2 WHEN NOT MATCHED THEN INSERT (current_timestamp, n) VALUES "
    "(current_timestamp, s.n)",
    "INSERT INTO u SELECT * FROM IDENTIFIER(lower('U'))",
    "INSERT INTO u SELECT * FROM (SELECT a, b, i FROM u) PIVOT (max(i) FOR b IN ('x' AS x, "
    "'y' AS y))",
    "WITH RECURSIVE r(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM r WHERE n < 5) INSERT INTO u "
    "SELECT n, 'x', 1 FROM r",
    "INSERT INTO t (ts) SELECT CAST(CAST(d AS STRING) AS TIMESTAMP) FROM t",
    "UPDATE t SET d = CASE WHEN a = 1 THEN 'today' ELSE '2026-01-01' END",
    "INSERT INTO t (d) SELECT 'today'",
    "INSERT INTO t (a, ts) VALUES (1, '2024-01-01 10:00:00'), (2, NULL)",
    "UPDATE t SET d = '2026-01-01', ts = '2026-01-01 10:00'",
    "UPDATE t SET ts = convert_timezone('UTC', TIMESTAMP_NTZ '2026-01-01 00:00:00')",
]
VALUES = {
    "UPDATE t SET d = current_date": {"current_date": "DATE '2026-03-04'"},
    "UPDATE t SET d = curdate(), ts = now()": {
        "curdate()": "DATE '2026-03-04'",
        "now()": "TIMESTAMP '2026-03-04 06:06:07.891011+01:00'",
    },
    "UPDATE t SET b = current_user() || user || session_user() || current_catalog() || "
    "current_schema() || current_database() || current_timezone()": {
        "current_user()": "'ann'",
        "user": "'ann'",
        "session_user()": "'ann'",
        "current_catalog()": "'spark_catalog'",
        "current_schema()": "'wit'",
        "current_database()": "'wit'",
        "current_timezone()": "'Europe/Berlin'",
    },
    "UPDATE t SET a = unix_timestamp() WHERE a < unix_timestamp(ts)": {
        "unix_timestamp()": "1772600767L"
    },
    "UPDATE t SET d = 'today' WHERE b = 'today'": {"'today'": "'2026-03-04'"},
    "UPDATE t SET d = DATE 'today Japan', ts = TIMESTAMP 'now', b = 'now'": {
        "DATE 'today Japan'": "DATE '2026-03-04'",
        "TIMESTAMP 'now'": "TIMESTAMP '2026-03-04 06:06:07.891011+01:00'",
    },
    "UPDATE t SET ts = '12:30' WHERE d > CAST('yesterday' AS DATE) AND b = '12:30'": {
        "'12:30'": "'2026-03-04 12:30'",
        "'yesterday'": "'2026-03-03'",
    },
    "DELETE FROM t WHERE ts < TIMESTAMP '12:30' AND d = to_date('tomorrow')": {
        "TIMESTAMP '12:30'": "TIMESTAMP '2026-03-04 12:30'",
        "'tomorrow'": "'2026-03-05'",
    },
    "UPDATE t SET a = k, b = s, ts = at": {
        "k": "3",
        "s": "'it\\'s \\u0024{x}'",
        "at": "TIMESTAMP '2026-01-02 03:04:05+01:00'",
    },
    "DELETE FROM t WHERE a > session.k": {"session.k": "3"},
    "INSERT INTO u SELECT a, b, k FROM t GROUP BY a, b, k": {
        "k": "CAST(3 AS INT)",
        "": " AS `k`",
    },
    "INSERT INTO t (a, d) SELECT a, current_date FROM u": {"current_date": "DATE '2026-03-04'"},
    "CREATE TABLE n USING delta AS SELECT a, current_date, now() AS x FROM t": {
        "current_date": "DATE '2026-03-04'",
        "": " AS `current_date()`",
        "now()": "TIMESTAMP '2026-03-04 06:06:07.891011+01:00'",
    },
    "MERGE INTO t USING u AS s ON t.a = s.a WHEN MATCHED AND t.d < current_date THEN UPDATE SET "
    "ts = current_timestamp(), b = current_user() WHEN NOT MATCHED THEN INSERT (a, d) "
    "VALUES (s.a, current_date)": {
        "current_date": "DATE '2026-03-04'",
        "current_timestamp()": "TIMESTAMP '2026-03-04 06:06:07.891011+01:00'",
        "current_user()": "'ann'",
    },
    "MERGE INTO t USING u AS s ON t.a = s.a WHEN MATCHED THEN UPDATE SET a = unix_timestamp()": {
        "unix_timestamp()": "1772600767L"
    },
    "MERGE INTO t USING (SELECT * FROM VALUES (1, DATE 'today'), (2, DATE '2026-01-01') AS q(a, d))"
    " s ON t.a = s.a WHEN MATCHED THEN UPDATE SET d = s.d": {"DATE 'today'": "DATE '2026-03-04'"},
    "MERGE INTO t USING (SELECT * FROM VALUES (1, current_date), (2, DATE 'today') AS q(a, d)) s "
    "ON t.a = s.a WHEN MATCHED THEN UPDATE SET d = s.d": {
        "current_date": "DATE '2026-03-04'",
        "DATE 'today'": "DATE '2026-03-04'",
    },
    "INSERT INTO part PARTITION (d = 'today') (a) VALUES (1)": {"'today'": "'2026-03-04'"},
    "MERGE INTO ct USING u s ON ct.n = s.a WHEN NOT MATCHED THEN INSERT (current_timestamp, n) "
    "VALUES (current_timestamp, 1)": {
        "current_timestamp": "TIMESTAMP '2026-03-04 06:06:07.891011+01:00'"
    },
    "MERGE INTO ct USING (SELECT n, now() AS w FROM ct) s ON ct.n = s.n WHEN MATCHED THEN UPDATE "
    "SET current_timestamp = s.w": {"now()": "TIMESTAMP '2026-03-04 06:06:07.891011+01:00'"},
    "MERGE INTO t USING u s ON t.a = s.a WHEN MATCHED THEN UPDATE SET ts = localtimestamp(), "
    "b = current_time(), d = date_sub(curdate(), 1)": {
        "localtimestamp()": "TIMESTAMP_NTZ '2026-03-04 06:06:07.891011'",
        "current_time()": "TIME '06:06:07.891011'",
        "curdate()": "DATE '2026-03-04'",
    },
    "CREATE TABLE n AS SELECT k, a + k AS z FROM u": {"k": "3", "": " AS `k`"},
    "CREATE TABLE n AS SELECT a, struct(current_date, a) AS s FROM t": {
        "current_date": "DATE '2026-03-04'",
        "": " AS `current_date`",
    },
    "MERGE INTO t USING (SELECT a, current_timestamp FROM u) s ON t.a = s.a WHEN MATCHED THEN "
    "UPDATE SET ts = s.`current_timestamp()`": {
        "current_timestamp": "TIMESTAMP '2026-03-04 06:06:07.891011+01:00'",
        "": " AS `current_timestamp()`",
    },
    "INSERT INTO u SELECT a, `current_date`(), 1 FROM t WHERE d = system.builtin.current_date()": {
        "`current_date`()": "DATE '2026-03-04'",
        "system.builtin.current_date()": "DATE '2026-03-04'",
    },
    "INSERT INTO t (a, d) VALUES (1, DATE 'today' + INTERVAL 1 DAY), (2, DATE '2026-01-05')": {
        "DATE 'today'": "DATE '2026-03-04'"
    },
    "UPDATE t SET ts = ifnull(ts, '12:30')": {"'12:30'": "'2026-03-04 12:30'"},
    "INSERT INTO u SELECT a, b, 1 FROM t WHERE b = 'é😀' AND d = current_date": {
        "current_date": "DATE '2026-03-04'"
    },
}
"""The parts that become literals, and no others: the text at its place, and the literal."""
ALSO_ROWS = {
    "INSERT INTO u SELECT a, 'x', 1 FROM vnow WHERE ts IS NULL": "vnow",
    "MERGE INTO t USING vnow s ON t.a = s.a WHEN MATCHED THEN UPDATE SET ts = s.ts": "vnow",
    "INSERT INTO t (a, d) SELECT * FROM vtoday": "DATE 'today'",
    "INSERT INTO t (a, ts) SELECT * FROM vrows": "vrows",
    "INSERT INTO u SELECT a, _change_type, 1 FROM table_changes('cdf', 0)": "DeltaCDFRelation",
    "INSERT INTO u (a) SELECT a FROM cdf WITH ('versionAsOf' = '0')": "VERSION AS OF",
    "INSERT INTO u SELECT a, b, i FROM u TABLESAMPLE (10 PERCENT)": "laid out",
    "INSERT INTO u SELECT a, b, CAST(rand() * 3 AS INT) FROM t": "rand()",
    "INSERT INTO u SELECT a, uuid(), 1 FROM t": "uuid()",
    "INSERT INTO u SELECT monotonically_increasing_id(), input_file_name(), spark_partition_id() "
    "FROM t": "spark_partition_id()",
    "INSERT INTO t (a, c) SELECT a, max(c) FROM t GROUP BY a": "0.0 and -0.0",
    "INSERT INTO u (b) SELECT DISTINCT b COLLATE UTF8_LCASE FROM u": "collation",
    "INSERT INTO u (b) SELECT b COLLATE UTF8_LCASE x FROM u GROUP BY x": "collation",
    "INSERT INTO u SELECT a, b, approx_count_distinct(i) FROM u GROUP BY a, b": "approximates",
    "INSERT INTO u SELECT a, version(), 1 FROM t": "server",
    "INSERT INTO u SELECT a, x, 1 FROM (VALUES (1, version())) AS q(a, x)": "server",
    "INSERT INTO t (c) SELECT stddev(c) FROM t": "floating point",
    "MERGE INTO u USING (SELECT a, first(b) b FROM u GROUP BY a) s ON u.a = s.a WHEN MATCHED THEN "
    "UPDATE SET b = s.b": "first(b)",
    "INSERT INTO u (a) SELECT a FROM u LIMIT 3": "LIMIT 3",
    "INSERT INTO u SELECT a, array_join(sort_array(first(array(b))), ','), 1 FROM u GROUP BY a": (
        "first(array(b))"
    ),
    "INSERT INTO t (a, d) SELECT * FROM vv": "vtoday",
    "INSERT INTO t (d) SELECT fclock() FROM u": "current_date() in spark_catalog.wit.fclock",
    "INSERT INTO t (d) SELECT ftoday(1) FROM u": "DATE 'today'",
    "INSERT INTO t (ts) SELECT * FROM frows()": "frows",
    "INSERT INTO u SELECT a, max(b) OVER (PARTITION BY a), lag(i) OVER (PARTITION BY a ORDER BY b) "
    "FROM u": "lag(i) OVER",
    "INSERT INTO t (a, ts) VALUES (1, 'T' || '10'), (2, NULL)": "time of day",
    "INSERT INTO t (a, ts) VALUES (1, 'x'), (2, '10:00')": "'10:00'",
}
NEVER = {
    "INSERT INTO u SELECT 1, reflect('java.lang.System', 'nanoTime'), 1": "reflect(",
    "INSERT INTO u SELECT 1, java_method('java.lang.System', 'nanoTime'), 1": "java_method(",
}
NOW_EXACT = {
    # what a view holds is seen now, and it is exact
    "INSERT INTO u SELECT a, 'x', n FROM v",
    "MERGE INTO t USING v ON t.a = v.a WHEN MATCHED THEN DELETE",
    "UPDATE t SET a = (SELECT max(n) FROM v)",
}
EXCLUDED = {
    # the forms of statements, which are judged beside their parts
    "WITH t AS (SELECT 1 AS a) UPDATE t SET a = (SELECT max(a) FROM u)",
    "FROM t INSERT INTO u SELECT a, b, 1 INSERT INTO p SELECT a, b, 2",
    # what it brings is not read as a moment: Spark refuses it
    "INSERT INTO t PARTITION (d = 'today') (a) VALUES (1)",
}
CHANGING = (
    "INSERT",
    "UPDATE",
    "DELETE",
    "MERGE",
    "WITH",
    "CREATE TABLE n USING delta AS",
    "CREATE TABLE n AS",
)
STATEMENTS = [*AS_TEXT, *ROWS, *REFUSED, *EXACT, *VALUES, *ALSO_ROWS, *NEVER]


@cache
def recorded() -> dict[str, str]:
    return json.loads(gzip.decompress(GOLDEN.read_bytes()))  # type: ignore[no-any-return]


def found(text: str) -> list[Finding]:
    """Return all findings in a statement; one without a reading is an error of Spark's."""
    data = recorded()[text]
    reading = read(data, text)
    if reading.analyzed is None:
        return []
    found = examine(reading, reading.analyzed, Facts(), MOMENT)
    found += examine_computed(reading, Facts(), MOMENT)
    return list(dict.fromkeys([*found, *examine_words(reading, MOMENT)]))


def remedies(text: str) -> set[Remedy]:
    return {each.remedy for each in found(text)}


def is_of_rows(text: str) -> bool:
    return text.startswith(CHANGING)


@pytest.mark.parametrize("text", [t for t in AS_TEXT if is_of_rows(t)])
def test_exact_statement_has_only_findings_that_become_values(text: str) -> None:
    assert remedies(text) <= {Remedy.VALUE}, found(text)


@pytest.mark.parametrize("text", EXACT)
def test_statement_with_columns_named_like_functions_has_no_finding(text: str) -> None:
    assert found(text) == []


@pytest.mark.parametrize("text", VALUES)
def test_value_of_a_statement_becomes_a_literal_at_its_place(text: str) -> None:
    findings = found(text)
    assert {each.remedy for each in findings} == {Remedy.VALUE}, findings
    replaced = {
        text[each.place.start : each.place.end]: each.literal for each in findings if each.place
    }
    assert replaced == VALUES[text]


def _marked(lists: dict[str, str]) -> list[str]:
    return [each for each in lists if is_of_rows(each) and each not in NOW_EXACT | EXCLUDED]


@pytest.mark.parametrize("text", [*_marked(ROWS), *_marked(REFUSED)])
def test_statement_that_differs_has_a_finding(text: str) -> None:
    assert found(text)


@pytest.mark.parametrize("text", ALSO_ROWS)
def test_query_that_differs_needs_rows_and_the_reason_names_its_expression(text: str) -> None:
    reasons = [each.reason for each in found(text) if each.remedy is Remedy.ROWS]
    assert any(ALSO_ROWS[text] in each for each in reasons), found(text)


@pytest.mark.parametrize("text", NEVER)
def test_code_outside_sql_has_no_remedy(text: str) -> None:
    (finding,) = found(text)
    assert finding.remedy is Remedy.NONE
    assert NEVER[text] in finding.reason


@pytest.mark.parametrize("text", sorted(NOW_EXACT))
def test_view_of_exact_rows_has_no_finding(text: str) -> None:
    assert found(text) == []


def test_class_that_is_in_no_list_is_found() -> None:
    for node in (Node("Frobnicate", type="INT"), Node("FrobnicatePlan")):
        reading = Reading("", None, node)
        (finding,) = examine(reading, node, Facts(), MOMENT)
        assert finding.remedy is Remedy.ROWS
        assert node.cls in finding.reason


def test_nondeterministic_expression_of_a_known_class_is_found() -> None:
    node = Node("Add", type="INT", deterministic=False)
    (finding,) = examine(Reading("", None, node), node, Facts(), MOMENT)
    assert "deterministic" in finding.reason


def test_format_under_the_legacy_parser_depends_on_the_clock() -> None:
    text = "INSERT INTO t (ts) SELECT to_timestamp(b, 'HH:mm') FROM u"
    reading = read(recorded()[text], text)
    assert reading.analyzed is not None
    assert examine(reading, reading.analyzed, Facts(), MOMENT) == []
    (finding,) = examine(reading, reading.analyzed, Facts(legacy=True), MOMENT)
    assert "LEGACY" in finding.reason
