"""Tests of a session's own settings in its writes: Spark's two readings, and the decision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from haproc.classify.model import Kind, RefusedError
from haproc.classify.names import Context
from haproc.engine.interface import Settings
from haproc.pin.literals import Treatment
from haproc.reading.cut import Cut
from haproc.reading.judge import Judged
from haproc.reading.settled import alike, unsettled
from haproc.reading.tree import Reading
from haproc.route.own_settings import (
    check_carrying_out,
    check_definition,
    own_of,
    reasons,
    refusal,
    travelling,
    with_own,
)
from tests.readings.golden import recorded

NAME = "spark.sql.legacy.sizeOfNull"
DELTAS = "spark.databricks.delta.merge.x"
TRAVELS = ("spark.sql.shuffle.partitions", "3")
OWN = Settings(confs=((NAME, "true"), TRAVELS))


def readings(sql: str) -> tuple[Reading, Reading, Context]:
    """Return two readings of a statement as Spark gave them, and the context of its names."""
    found = recorded(sql)
    one, other = found.reading(sql), found.reading(sql)
    return one, other, Context("spark_catalog", found.world)


def part(sql: str) -> str | None:
    one, other, context = readings(sql)
    return unsettled(one, other, context)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE t SET a = 1",
        "DELETE FROM odd WHERE b = 'now()' AND a = 9",
        "MERGE INTO t USING t AS s ON t.a = s.a WHEN MATCHED THEN DELETE",
        "DELETE FROM days WHERE current_date > DATE'2026-01-01'",
        "INSERT INTO u SELECT a, b, `now()` FROM odd",
    ],
)
def test_write_that_no_setting_affects_has_no_unsettled_part(sql: str) -> None:
    assert part(sql) is None


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("UPDATE t SET a = (SELECT sum(b) FROM s)", "(SELECT sum(b) FROM s)"),
        (
            "UPDATE us SET current_date = current_date() WHERE user = current_user()",
            "current_date()",
        ),
    ],
)
def test_part_that_a_setting_may_affect_is_named(sql: str, shown: str) -> None:
    assert part(sql) == shown


def test_part_that_becomes_a_literal_is_not_unsettled() -> None:
    sql = "UPDATE us SET current_date = current_date() WHERE user = current_user()"
    one, other, context = readings(sql)
    calls = [n for n in one.analyzed.walk() if n.cls in ("CurrentDate", "CurrentUser")]  # type: ignore[union-attr]
    places = [each.place for each in calls if each.place is not None]
    assert len(places) == 2
    assert unsettled(one, other, context, places) is None
    assert unsettled(one, other, context, places[:1]) == "current_user()"


@pytest.mark.parametrize("field", ["value", "type", "cls"])
def test_readings_that_differ_in_anything_but_node_ids_are_not_alike(field: str) -> None:
    one, other, context = readings("DELETE FROM odd WHERE b = 'now()' AND a = 9")
    assert alike(one, other) and unsettled(one, other, context) is None
    for node in other.analyzed.walk():  # type: ignore[union-attr]
        node.id = 9999 if node.id is not None else None
    assert alike(one, other)
    (literal,) = [n for n in other.analyzed.walk() if n.value == "9"]  # type: ignore[union-attr]
    setattr(literal, field, "other")
    assert not alike(one, other)
    assert unsettled(one, other, context) == "b = 'now()' AND a = 9"


def test_expression_in_only_one_of_the_readings_is_named() -> None:
    one, _, context = readings("UPDATE t SET a = 1")
    other, _, _ = readings("MERGE INTO t USING t AS s ON t.a = s.a WHEN MATCHED THEN DELETE")
    all_rows, without, _ = readings("DELETE FROM t")
    assert unsettled(one, other, context) == "1"
    assert without.analyzed is not None and without.analyzed.fields.pop("condition")
    assert unsettled(all_rows, without, context) == "the statement"
    assert unsettled(without, all_rows, context) == "the statement"


# -- what becomes of a write -------------------------------------------------------------------


def judged(kind: Kind, *, computes: bool = False) -> Judged:
    return Judged(kind, frozenset({"t"}), Treatment.REPLICATE, "…", computes=computes)


def test_own_settings_stay_in_the_session_and_the_others_travel() -> None:
    assert own_of(OWN) == ((NAME, "true"),)
    assert travelling(OWN) == Settings(confs=(TRAVELS,))
    assert reasons(OWN) == (f"the session has its own {NAME}",)
    assert reasons(travelling(OWN)) == own_of(travelling(OWN)) == ()


def test_reason_names_a_few_settings_and_counts_the_others() -> None:
    confs = tuple((f"spark.sql.x{number}", "1") for number in range(9))
    (reason,) = reasons(Settings(confs=confs))
    assert "spark.sql.x4 and 4 other settings" in reason and "x5" not in reason


def test_refusal_names_the_setting_and_the_way_to_continue() -> None:
    error = refusal(OWN, "compute size(a)")
    assert NAME in error.message and "compute size(a)" in error.message
    assert error.hint.startswith(f"RESET {NAME} first")


@pytest.mark.parametrize("kind", [Kind.INSERT, Kind.CREATE_TABLE_AS, Kind.MERGE])
def test_write_with_a_query_is_replaced_by_its_rows_or_refused(kind: Kind) -> None:
    with pytest.raises(RefusedError, match=NAME):  # none could be cut out of this one
        with_own(judged(kind), OWN)
    made = replace(judged(kind), cut=Cut("INSERT INTO t ", "SELECT 1", "", 14, 22))
    found = with_own(made, OWN)
    assert (found.treatment, found.reasons) == (Treatment.MATERIALISE, reasons(OWN))
    assert with_own(made, travelling(OWN)) == made


@pytest.mark.parametrize("kind", [Kind.UPDATE, Kind.DELETE])
def test_write_without_a_query_is_not_changed(kind: Kind) -> None:
    assert with_own(judged(kind), OWN) == judged(kind)


@pytest.mark.parametrize("kind", [Kind.UPDATE, Kind.DELETE, Kind.MERGE])
def test_write_that_delta_executes_is_refused_under_a_setting_of_delta(kind: Kind) -> None:
    with pytest.raises(RefusedError, match=DELTAS):
        with_own(judged(kind), Settings(confs=((DELTAS, "1"), TRAVELS)))
    check_carrying_out(Kind.INSERT, Settings(confs=((DELTAS, "1"),)))


def test_definition_that_computes_or_stores_settings_is_refused() -> None:
    check_definition(judged(Kind.CREATE_TABLE), OWN)
    for each in (judged(Kind.CREATE_TABLE, computes=True), judged(Kind.CREATE_VIEW)):
        with pytest.raises(RefusedError, match=NAME):
            check_definition(each, OWN)
    with pytest.raises(RefusedError, match=DELTAS):
        check_definition(judged(Kind.VACUUM), Settings(confs=((DELTAS, "1"),)))
