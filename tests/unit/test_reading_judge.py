"""Tests of the verdict on writes, over real Spark's readings: unchanged, with literals, as rows."""

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
    judge_query,
)
from haproc.reading.names import expression_classes
from haproc.reading.tree import UNASKED, Facts, Node, Reading
from tests.readings.corpus import statements
from tests.readings.golden import CORPUS, part, recorded

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def moment(world: str) -> Moment:
    return Moment(NOW, "UTC", "ann", "spark_catalog", world)


def judged(sql: str, unread: tuple[Node, ...] = ()) -> Judged:
    found = recorded(sql)
    reading = found.reading(sql)
    reading = replace(reading, unread=(*reading.unread, *unread))
    return judge(reading, Context("spark_catalog", found.world), Facts(), moment(found.world))


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
def test_column_with_the_name_of_a_function_is_a_column(sql: str) -> None:
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
def test_changing_value_becomes_a_literal_at_its_place(sql: str, becomes: str) -> None:
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
def test_query_over_the_sessions_objects_becomes_rows_computed_in_the_session(
    sql: str, query: str
) -> None:
    found = judged(sql)
    assert found.treatment is Treatment.MATERIALISE and found.of_session
    assert found.cut is not None and found.cut.query == query
    assert any("temporary view" in each or "function" in each for each in found.reasons)


def test_query_of_a_change_feed_becomes_rows() -> None:
    found = judged("INSERT INTO u SELECT a, b, i FROM table_changes('cdf', 1)")
    assert found.treatment is Treatment.MATERIALISE and not found.of_session


def test_several_inserts_in_one_statement_are_refused() -> None:
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
    """Return the verdict on recorded DDL, with the analyzer's reading or without it."""
    found = recorded(sql)
    reading = found.reading(sql)
    if not whole:
        reading = replace(reading, analyzed=None, unseen=UNASKED)
    context = Context("spark_catalog", found.world)
    return judge_definition(reading, context, Facts(), moment(found.world))


def test_confirm_query_refuses_a_text_that_is_no_query() -> None:
    several = "FROM t INSERT INTO u SELECT a, b, 1 INSERT INTO p SELECT a, b, 2"
    for sql in ("DELETE FROM t WHERE a > k", several):
        with pytest.raises(RefusedError):
            confirm_query(recorded(sql).reading(sql), Context("spark_catalog", "witness"))


def of_definitions(whole: bool) -> dict[str, Judged]:
    """Return the verdicts on all recorded statements, with the analyzer's reading or without it."""
    verdicts = {}
    for path in sorted(CORPUS.glob("*.txt")):
        for sql, found in part(path.stem).items():
            reading = None if found.error else found.reading(sql)
            if reading is None or reading.analyzed is None:
                continue
            with contextlib.suppress(RefusedError):
                definition = defined(sql, whole)
                if definition is not None:
                    verdicts[sql] = definition.judged
    return verdicts


def test_definition_judged_by_its_text_has_the_verdict_of_the_analyzed_one() -> None:
    by_text, analyzed = of_definitions(whole=False), of_definitions(whole=True)
    assert len(by_text) > 50
    for sql, definition in by_text.items():
        # What turns out to be a temporary view is none in a session that holds nothing.
        full = analyzed[sql]
        assert (definition.kind, definition.writes, definition.treatment) == (
            full.kind,
            full.writes,
            full.treatment,
        )
    assert not any(sql.startswith(("CREATE VIEW", "CREATE OR REPLACE VIEW")) for sql in by_text)


@pytest.mark.parametrize(
    ("sql", "is_judged"),
    [
        ("CREATE TABLE t (a INT, b STRING) USING delta", True),
        ("ALTER TABLE t ADD COLUMN q INT", True),
        ("DROP TABLE t", True),
        ("ALTER TABLE t ADD CONSTRAINT c CHECK (a > 0)", False),
        ("ALTER TABLE t ALTER COLUMN a SET DEFAULT 5", False),
        ("CREATE VIEW n AS SELECT current_date FROM us", False),
    ],
)
def test_definition_that_computes_or_reads_is_not_judged_by_its_text(
    sql: str, is_judged: bool
) -> None:
    assert (defined(sql, whole=False) is not None) is is_judged


# -- what the analyzer computes itself: its result alone is in the analyzed tree
#
# Which functions compute so, no list of ours says.


AS_NOW = "TIMESTAMP '2026-03-01 12:00:00+00:00'"


def changing(*words: str) -> list[str]:
    """Return the statements of the corpus that change rows, and have all of these words."""
    others = ("SELECT", "CREATE TABLE", "CREATE FUNCTION")
    found = [each for each in statements("computed") if not each.startswith(others)]
    return [each for each in found if all(word in each for word in words)]


@pytest.mark.parametrize("sql", changing("now()"))
def test_clock_in_a_value_computed_by_the_analyzer_becomes_a_literal(sql: str) -> None:
    found = judged(sql)
    assert found.treatment is Treatment.REPLICATE
    assert "now()" not in found.sql and AS_NOW in found.sql


@pytest.mark.parametrize(
    ("written", "becomes"),
    [
        ("date_format(current_timestamp, ", f"date_format({AS_NOW}, "),
        ("cast('12:00' AS TIMESTAMP)", "cast('2026-03-01 12:00' AS TIMESTAMP)"),
        ("date_format('12:00', ", "date_format('2026-03-01 12:00', "),
        ("DATE 'today'", "DATE '2026-03-01'"),
        ("session_variable || ", "'x' || "),
    ],
)
def test_changing_value_inside_a_computed_value_becomes_a_literal(
    written: str, becomes: str
) -> None:
    (sql,) = changing(written)
    found = judged(sql)
    assert (found.treatment, found.reasons) == (Treatment.REPLICATE, ())
    assert written not in found.sql and becomes in found.sql


@pytest.mark.parametrize("name", ["FROM pivots", "fdays(1)", "tdays(1)"])
def test_view_or_function_with_computed_clock_values_is_replaced_by_rows(name: str) -> None:
    sql = next(each for each in changing(name) if each.startswith("INSERT"))
    found = judged(sql)
    assert (found.treatment, found.sql) == (Treatment.MATERIALISE, sql)
    assert "now() reads the clock" in found.reasons


@pytest.mark.parametrize(
    "words",
    [("MERGE", "pivots"), ("'12:00' AS a",)],
    ids=["source of a merge", "value that is compared with moments"],
)
def test_what_computes_so_becomes_rows(words: tuple[str, ...]) -> None:
    (sql,) = changing(*words)
    assert judged(sql).treatment is Treatment.MATERIALISE


@pytest.mark.parametrize(
    "words",
    [
        *("lower('A')", "upper('a')", "'a int')", "upper('permissive')", "UTF8_BINARY, 2"),
        *("substr", "upper(user)"),  # a column named like a function
    ],
)
def test_value_computed_from_constants_only_is_not_changed(words: str) -> None:
    sql = next(each for each in changing(words) if "now()" not in each)
    found = judged(sql)
    assert (found.treatment, found.sql) == (Treatment.REPLICATE, sql)


@pytest.mark.parametrize(("words", "cls"), [("lower('A')", "lower"), ("upper('a')", "upper")])
def test_rule_by_expression_includes_computed_expressions(words: str, cls: str) -> None:
    (sql,) = changing(words)
    assert cls in expression_classes(recorded(sql).reading(sql))
    assert cls in judged(sql).expressions


def test_part_that_cannot_be_read_by_itself_counts_as_different() -> None:
    unread = (Node("NamedParameter", place=None),)
    (of_rows,) = changing("'a int')), 2")
    assert judged(of_rows).treatment is Treatment.REPLICATE
    assert judged(of_rows, unread=unread).treatment is Treatment.MATERIALISE
    (update,) = changing("UPDATE u")
    found = judged(update, unread=unread)
    assert found.treatment is Treatment.REFUSE
    assert "cannot be read by itself" in found.reasons[0]


def test_part_beside_the_source_is_recognised_by_its_place() -> None:
    (sql,) = changing("MERGE", "current_date")
    reading = recorded(sql).reading(sql)
    places = {each.place for plan in reading.computed for each in plan.walk() if each.cls == "Now"}
    unread = tuple(Node("NamedParameter", place=each) for each in places)
    assert judged(sql, unread=unread).treatment is Treatment.REFUSE


def test_query_and_definition_with_computed_clock_values_are_reported() -> None:
    for sql in statements("computed"):
        found = recorded(sql)
        reading = found.reading(sql)
        if sql.startswith("SELECT"):
            query = judge_query(reading, Facts(), moment(found.world))
            assert query.reasons == ("now() reads the clock",)
        elif sql.startswith("CREATE TABLE"):
            definition = defined(sql)
            assert definition is not None and definition.judged.treatment is Treatment.REFUSE


def test_pattern_that_the_parser_computes_from_a_moment_is_refused() -> None:
    sql, constant = changing("LIKE ANY")
    found = judged(sql)
    assert found.treatment is Treatment.REFUSE
    assert any("may be a moment" in each for each in found.reasons)
    assert judged(constant).treatment is Treatment.REPLICATE
