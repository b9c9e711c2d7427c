"""What Spark's analyzer computes itself is judged, too, over readings of a real Spark.

Its result alone is in the analyzed tree. Which functions compute so, no list of ours says.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from haproc.classify.names import Context
from haproc.pin.literals import Moment, Treatment
from haproc.reading.judge import Judged, judge, judge_definition, judge_query
from haproc.reading.names import expression_classes
from haproc.reading.tree import Facts, Node
from tests.readings.corpus import statements
from tests.readings.golden import recorded

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
AS_NOW = "TIMESTAMP '2026-03-01 12:00:00+00:00'"


def moment(world: str) -> Moment:
    return Moment(NOW, "UTC", "ann", "spark_catalog", world)


def judged(sql: str, unread: tuple[Node, ...] = ()) -> Judged:
    found = recorded(sql)
    reading = found.reading(sql)
    reading = replace(reading, unread=(*reading.unread, *unread))
    return judge(reading, Context("spark_catalog", found.world), Facts(), moment(found.world))


def changing(*words: str) -> list[str]:
    """Return the statements of the corpus that change rows, and have all of these words."""
    others = ("SELECT", "CREATE TABLE", "CREATE FUNCTION")
    found = [each for each in statements("computed") if not each.startswith(others)]
    return [each for each in found if all(word in each for word in words)]


@pytest.mark.parametrize("sql", changing("now()"))
def test_clock_in_what_is_computed_becomes_a_literal(sql: str) -> None:
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
def test_whatever_moves_in_what_is_computed_becomes_a_literal(written: str, becomes: str) -> None:
    (sql,) = changing(written)
    found = judged(sql)
    assert (found.treatment, found.reasons) == (Treatment.REPLICATE, ())
    assert written not in found.sql and becomes in found.sql


@pytest.mark.parametrize("name", ["FROM pivots", "fdays(1)", "tdays(1)"])
def test_bodies_of_views_and_functions_that_compute_so_make_rows(name: str) -> None:
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
def test_what_is_computed_of_constants_alone_stays_as_it_is(words: str) -> None:
    sql = next(each for each in changing(words) if "now()" not in each)
    found = judged(sql)
    assert (found.treatment, found.sql) == (Treatment.REPLICATE, sql)


@pytest.mark.parametrize(("words", "cls"), [("lower('A')", "lower"), ("upper('a')", "upper")])
def test_rule_by_expression_sees_what_is_computed(words: str, cls: str) -> None:
    (sql,) = changing(words)
    assert cls in expression_classes(recorded(sql).reading(sql))
    assert cls in judged(sql).expressions


def test_what_cannot_be_read_by_itself_counts_as_different() -> None:
    unread = (Node("NamedParameter", place=None),)
    (of_rows,) = changing("'a int')), 2")
    assert judged(of_rows).treatment is Treatment.REPLICATE
    assert judged(of_rows, unread=unread).treatment is Treatment.MATERIALISE
    (update,) = changing("UPDATE u")
    found = judged(update, unread=unread)
    assert found.treatment is Treatment.REFUSE
    assert "cannot be read by itself" in found.reasons[0]


def test_part_beside_the_source_is_told_from_it_by_its_place() -> None:
    (sql,) = changing("MERGE", "current_date")
    reading = recorded(sql).reading(sql)
    places = {each.place for plan in reading.computed for each in plan.walk() if each.cls == "Now"}
    unread = tuple(Node("NamedParameter", place=each) for each in places)
    assert judged(sql, unread=unread).treatment is Treatment.REFUSE


def test_query_and_definition_that_compute_so_are_told() -> None:
    for sql in statements("computed"):
        found = recorded(sql)
        reading = found.reading(sql)
        if sql.startswith("SELECT"):
            query = judge_query(reading, Facts(), moment(found.world))
            assert query.reasons == ("now() reads the clock",)
        elif sql.startswith("CREATE TABLE"):
            context = Context("spark_catalog", found.world)
            told = judge_definition(reading, context, Facts(), moment(found.world))
            assert told is not None and told.judged.treatment is Treatment.REFUSE


def test_pattern_that_the_parser_computes_of_a_moment_is_refused() -> None:
    sql, constant = changing("LIKE ANY")
    found = judged(sql)
    assert found.treatment is Treatment.REFUSE
    assert any("may be a moment" in each for each in found.reasons)
    assert judged(constant).treatment is Treatment.REPLICATE
