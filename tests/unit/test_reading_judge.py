"""The verdict on writes, over readings of a real Spark: as they stand, with literals, as rows."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from haproc.classify.model import Kind, RefusedError
from haproc.classify.names import Context
from haproc.pin.literals import Moment, Treatment
from haproc.reading.cut import cut
from haproc.reading.judge import (
    Definition,
    Judged,
    confirm_query,
    judge,
    judge_definition,
)
from haproc.reading.tree import UNASKED, Facts, Node, Reading
from tests.readings.golden import CORPUS, part, recorded

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def judged(sql: str) -> Judged:
    found = recorded(sql)
    moment = Moment(NOW, "UTC", "ann", "spark_catalog", found.world)
    context = Context("spark_catalog", found.world)
    return judge(found.reading(sql), context, Facts(), moment)


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM days WHERE current_date > DATE'2026-01-01'",
        "INSERT INTO days REPLACE WHERE current_date >= DATE'2026-01-01' "
        "SELECT current_date, n FROM days",
        "INSERT INTO u SELECT a, b, `now()` FROM odd",
        "DELETE FROM odd WHERE b = 'now()' AND a = 9",
        "DELETE FROM odd WHERE `now()` = 1",
        "INSERT INTO x SELECT k, current_user FROM audit",
    ],
)
def test_column_is_one_whatever_function_has_its_name(sql: str) -> None:
    found = judged(sql)
    assert (found.treatment, found.sql, found.moved) == (Treatment.REPLICATE, sql, False)


@pytest.mark.parametrize(
    ("sql", "becomes"),
    [
        ("DELETE FROM t WHERE a > k", "DELETE FROM t WHERE a > 3"),
        ("DELETE FROM t WHERE a > system.session.k", "DELETE FROM t WHERE a > 3"),
        (
            "UPDATE t SET d = current_date WHERE ts < current_timestamp",
            "UPDATE t SET d = DATE '2026-03-01' WHERE ts < TIMESTAMP '2026-03-01 12:00:00+00:00'",
        ),
        (
            "UPDATE us SET current_date = current_date() WHERE user = current_user()",
            "UPDATE us SET current_date = DATE '2026-03-01' WHERE user = 'ann'",
        ),
    ],
)
def test_what_moves_is_a_literal_at_its_place(sql: str, becomes: str) -> None:
    found = judged(sql)
    assert (found.treatment, found.sql) == (Treatment.REPLICATE, becomes)
    assert found.moved


@pytest.mark.parametrize(
    ("sql", "query"),
    [
        (
            "MERGE INTO t USING tempview s ON t.a = s.a WHEN MATCHED THEN UPDATE SET b = s.b "
            "WHEN NOT MATCHED THEN INSERT (a, b) VALUES (s.a, s.b)",
            "SELECT * FROM tempview",
        ),
        ("INSERT INTO u SELECT a, b, i FROM tempview", "SELECT a, b, i FROM tempview"),
        (
            "INSERT INTO u SELECT a, b, tempfunction(i) FROM u",
            "SELECT a, b, tempfunction(i) FROM u",
        ),
    ],
)
def test_query_over_what_the_session_has_becomes_rows_computed_there(sql: str, query: str) -> None:
    found = judged(sql)
    assert found.treatment is Treatment.MATERIALISE and found.of_session
    assert found.cut is not None and found.cut.query == query
    assert any("temporary view" in each or "function" in each for each in found.reasons)


def test_change_feed_becomes_rows() -> None:
    found = judged("INSERT INTO u SELECT a, b, i FROM table_changes('cdf', 1)")
    assert found.treatment is Treatment.MATERIALISE and not found.of_session


def test_several_inserts_in_one_are_refused() -> None:
    with pytest.raises(RefusedError, match="several INSERTs"):
        judged("FROM t INSERT INTO u SELECT a, b, 1 INSERT INTO p SELECT a, b, 2")


@pytest.mark.parametrize(
    ("head", "query"),
    [
        ("CREATE OR REPLACE TABLE e.z USING delta CLUSTER BY (k) AS ", "(SELECT uuid() AS k)"),
        ("CREATE TABLE z CLUSTER BY (a) COMMENT 'AS SELECT' AS ", "WITH q AS (SELECT 1 a) TABLE q"),
        ("CREATE TABLE z CLUSTER BY (k) TBLPROPERTIES ('a'='b') ", "SELECT rand() AS k"),
    ],
)
def test_query_of_a_clustered_table_is_cut_by_its_words(head: str, query: str) -> None:
    create = Node("ReplaceTableAsSelect")  # Delta's parser leaves no places
    found = cut(Reading(head + query, create, None), Kind.CREATE_TABLE_AS)
    assert found is not None and (found.head, found.query) == (head, query)


def defined(sql: str, whole: bool = True) -> Definition | None:
    """Return the verdict on what is recorded of DDL, with the analyzer or without."""
    found = recorded(sql)
    reading = found.reading(sql)
    if not whole:
        reading = replace(reading, analyzed=None, unseen=UNASKED)
    moment = Moment(NOW, "UTC", "ann", "spark_catalog", found.world)
    return judge_definition(reading, Context("spark_catalog", found.world), Facts(), moment)


def test_text_that_is_no_query_is_not_confirmed() -> None:
    several = "FROM t INSERT INTO u SELECT a, b, 1 INSERT INTO p SELECT a, b, 2"
    for sql in ("DELETE FROM t WHERE a > k", several):
        with pytest.raises(RefusedError):
            confirm_query(recorded(sql).reading(sql), Context("spark_catalog", "witness"))


def of_definitions(whole: bool) -> dict[str, Judged]:
    """Return the verdicts on all that is recorded, by statement, with the analyzer or without."""
    verdicts = {}
    for path in sorted(CORPUS.glob("*.txt")):
        for sql, found in part(path.stem).items():
            reading = None if found.error else found.reading(sql)
            if reading is None or reading.analyzed is None:
                continue
            with contextlib.suppress(RefusedError):
                told = defined(sql, whole)
                if told is not None:
                    verdicts[sql] = told.judged
    return verdicts


def test_definition_is_told_by_its_text_as_the_analyzer_tells_it() -> None:
    by_text, analyzed = of_definitions(whole=False), of_definitions(whole=True)
    assert len(by_text) > 50
    for sql, told in by_text.items():
        # What turns out to be a temporary view is none in a session that holds nothing.
        full = analyzed[sql]
        assert (told.kind, told.writes, told.treatment) == (full.kind, full.writes, full.treatment)
    assert not any(sql.startswith(("CREATE VIEW", "CREATE OR REPLACE VIEW")) for sql in by_text)


@pytest.mark.parametrize(
    ("sql", "is_told"),
    [
        ("CREATE TABLE t (a INT, b STRING) USING delta", True),
        ("ALTER TABLE t ADD COLUMN q INT", True),
        ("DROP TABLE t", True),
        ("ALTER TABLE t ADD CONSTRAINT c CHECK (a > 0)", False),
        ("ALTER TABLE t ALTER COLUMN a SET DEFAULT 5", False),
        ("CREATE VIEW n AS SELECT current_date FROM us", False),
    ],
)
def test_definition_that_computes_or_reads_is_not_told_by_its_text(sql: str, is_told: bool) -> None:
    assert (defined(sql, whole=False) is not None) is is_told
