"""What comes out differently if rows come in another order: sums, lists, windows, limits."""

from __future__ import annotations

import pytest

from haproc.witness.findings import Facts, findings
from tests.unit.test_witness import INSERT, SCHEMAS, T, U, plan_of, reasons


@pytest.mark.parametrize(
    ("expression", "exact"),
    [
        ("sum(a#1L)", True),
        ("sum(m#6)", True),
        ("avg(m#6)", True),
        ("sum((m#6 * 1.5))", True),
        ("sum(cast(c#2 as decimal(20,3)))", True),
        ("sum(distinct (a#1L + cast(1 as bigint)))", True),
        ("sum(CASE WHEN (c#2 > cast(1 as double)) THEN 1 ELSE 0 END)", True),
        ("sum(a#1L) FILTER (WHERE (c#2 > cast(3 as double)))", True),
        ("avg(a#1L)", False),
        ("sum(c#2)", False),
        ("sum(CASE WHEN (a#1L > 1) THEN 1.5 ELSE c#2 END)", False),
        ("sum(cast(m#6 as double))", False),
        ("sum(length(concat(x, y)))", True),
    ],
)
def test_sums_are_exact_by_types(expression: str, exact: bool) -> None:
    aggregate = f"+- Aggregate [a#1L], [a#1L AS a#20L, {expression} AS sum(x)#21]"
    assert ("floating point" in reasons(INSERT, aggregate, f"   +- {T}")) is not exact


@pytest.mark.parametrize(
    ("expression", "ansi", "differs"),
    [
        ("sum(m#6)", True, False),
        ("sum(m#6)", False, True),
        ("sum(a#1L)", False, False),
        ("try_sum(a#1L)", True, True),
        ("try_avg(m#6)", True, True),
    ],
)
def test_sum_that_may_overflow_to_null_depends_on_the_order(
    expression: str, ansi: bool, differs: bool
) -> None:
    aggregate = f"+- Aggregate [a#1L], [a#1L AS a#20L, {expression} AS x#21]"
    plan = plan_of(INSERT, aggregate, f"   +- {T}")
    found = findings(plan, Facts(SCHEMAS, decimals=True, ansi=ansi))
    assert any("overflow" in each for each in found) is differs


@pytest.mark.parametrize(
    ("expression", "differs"),
    [
        ("sort_array(collect_list(b#4), true)", False),
        (
            "array_sort(collect_list(b#4), lambdafunction((l(x) - l(y)), x, y, false))",
            True,
        ),
        ("concat(sort_array(collect_list(b#4), true), collect_list(b#4))", True),
        ("listagg(b#4, ,, b#4 ASC NULLS FIRST)", False),
        ("listagg(b#4, ,, i#5 ASC NULLS FIRST)", True),
        (
            "concat(listagg(b#4, ,, i#5 ASC NULLS FIRST), listagg(b#4, , b#4 ASC NULLS LAST))",
            True,
        ),
    ],
)
def test_list_in_an_order_of_its_own_is_the_same_everywhere(expression: str, differs: bool) -> None:
    aggregate = f"+- Aggregate [a#3L], [a#3L AS a#20L, {expression} AS x#21]"
    assert bool(reasons(INSERT, aggregate, f"   +- {U}")) is differs


def test_numbers_with_a_point_may_be_floats() -> None:
    aggregate = "+- Aggregate [a#1L], [sum((m#6 * 1.5)) AS sum(x)#21]"
    assert "floating" in reasons(INSERT, aggregate, f"   +- {T}", decimals=False)


ROW_NUMBER = (
    "Window [row_number() windowspecdefinition(a#3L, b#4 ASC NULLS FIRST, {more}"
    "specifiedwindowframe(RowFrame, unboundedpreceding$(), currentrow$())) AS rn#30], [a#3L], "
    "[b#4 ASC NULLS FIRST]"
)


def test_row_number_over_a_total_order_is_the_same_everywhere() -> None:
    head = (INSERT, "+- Project [a#3L, b#4, rn#30]")
    total = ROW_NUMBER.format(more="i#5 ASC NULLS FIRST, ")
    tied = ROW_NUMBER.format(more="")
    assert reasons(*head, f"   +- {total}", f"      +- {U}") == ""
    assert "ties" in reasons(*head, f"   +- {tied}", f"      +- {U}")
    grouped = "Aggregate [a#3L], [a#3L, max(b#33) AS b#4, count(1) AS n#34L]"
    leaf = "Relation spark_catalog.s.u[a#3L,b#33] parquet"
    assert reasons(*head, f"   +- {tied}", f"      +- {grouped}", f"         +- {leaf}") == ""


def test_limit_of_a_total_order_is_the_same_everywhere() -> None:
    def limited(keys: str, *below: str) -> str:
        sort = f"      +- Sort [{keys}], true"
        return reasons(INSERT, "+- GlobalLimit 3", "   +- LocalLimit 3", sort, *below)

    every = "a#3L ASC NULLS FIRST, b#4 DESC NULLS LAST, i#5 ASC NULLS FIRST"
    assert limited(every, f"         +- {U}") == ""
    assert "LIMIT" in limited("a#3L ASC NULLS FIRST", f"         +- {U}")
    assert "LIMIT" in reasons(INSERT, "+- GlobalLimit 3", f"   +- {U}")
    for by in ("b#4 LIKE x%", "b#4 IN (x,y)", "i#5 + INTERVAL '1' MONTH"):
        keys = every.replace(by.split(" ")[0], by)
        assert "LIMIT" in limited(keys, f"         +- {U}")
    floats = "Relation spark_catalog.s.t[a#1L,c#2] parquet"
    assert "LIMIT" in limited("a#1L ASC NULLS FIRST, c#2 ASC NULLS FIRST", f"         +- {floats}")
