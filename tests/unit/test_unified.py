"""Texts that become TIMESTAMPs in functions that Spark shows without the conversion in them."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyspark
import pytest

from haproc.pin.inline import Rows
from haproc.witness.columns import Type
from haproc.witness.completed import is_completed, may_convert
from haproc.witness.findings import Facts, findings
from haproc.witness.plan import Plan, read_plan

SCHEMA = {
    "ts": "timestamp",
    "b": "string",
    "c": "varchar(9)",
    "n": "int",
    "f": "double",
    "d": "date",
    "tags": "map<string,string>",
    "ats": "array<timestamp>",
    "astr": "array<string>",
    "sts": "struct<a:timestamp>",
}
TABLE = "spark_catalog.s.t"
COLUMNS = ",".join(f"{name}#{at}" for at, name in enumerate(SCHEMA))
IDS = {name: f"{name}#{at}" for at, name in enumerate(SCHEMA)}


def selected(expression: str, *below: str) -> Plan:
    """Return the plan of a SELECT; columns are written as ``{name}``."""
    lines = [f"Project [{expression} AS x#90]", *below, f"Relation {TABLE}[{COLUMNS}] parquet"]
    shown = [f"{'   ' * (at - 1)}{'+- ' if at else ''}{line}" for at, line in enumerate(lines)]
    text = "\n".join(each.format_map(IDS) for each in shown)
    plan = read_plan(
        f"== Parsed Logical Plan ==\nx\n\n== Analyzed Logical Plan ==\n{text}\n\n"
        "== Optimized Logical Plan ==\ny\n\n== Physical Plan ==\nz"
    )
    assert isinstance(plan, Plan)
    return plan


def completes(plan: Plan, rows: Sequence[Rows] | None = None, **known: Any) -> bool:
    return any(
        "today" in each for each in findings(plan, Facts({TABLE: SCHEMA}, rows=rows, **known))
    )


@pytest.mark.parametrize(
    "expression",
    [
        "between({ts}, 09:00, 10:00)",
        "between(2026-11-25 09:30:00, 09:00, 10:00)",
        "between({b}, 2026-11-25 09:00:00, 2026-11-25 11:00:00)",
        "between(2026-11-25 09:30:00, {b}, {b})",
        "between(cast({b} - INTERVAL '01' HOUR as string), {ts}, {ts})",
        "nvl({ts}, 10:00)",
        "nvl({ts}, {c})",
        "nvl(cast(null as timestamp), {b})",
        "ifnull({ts}, now)",
        "ifnull({d}, today)",
        "nvl2(1, {b}, {ts})",
        "nvl2({b}, {b}, {ts})",
        "nullif(2026-11-25 10:00:00, {b})",
        "equal_null({ts}, 10:00)",
        "decode({ts}, 10:00, 1, 2)",
        "decode({b}, A, {ts}, {c})",
        "decode({n}, 1, {ts}, 2, 10:00)",
        "decode({b}, x, 1, {ts}, 2)",
        "nvl(spark_catalog.s.at({n}), {b})",
        "try_add(INTERVAL '1' DAY, {b})",
        "try_subtract({b}, {ts})",
        "(1 + nvl(max({ts}), T12))",
        "nvl({ats}, {astr})",
        "nvl({sts}, named_struct(a, {b}))",
        "nvl(named_struct(a, {ts}), named_struct(a, 12:30))",
        "nvl({ats}[0], {b})",
        "nvl(element_at({ats}, 1, None, true), {b})",
        "nvl({sts}.a, {b})",
        "nvl(date_trunc(DAY, {ts}, Some(UTC)), {b})",
        "extract(HOUR, {b})",
        "date_part(MINUTE, {b})",
        "cast({b} - INTERVAL '1' DAY as string)",
    ],
)
def test_text_beside_what_may_be_a_moment_is_completed(expression: str) -> None:
    assert completes(selected(expression))


@pytest.mark.parametrize(
    "expression",
    [
        "between({n}, 1, 10)",
        "between({b}, a, 12:30)",
        "between({b}, 2024-01-01, 2024-12-31)",
        "between({ts}, 2026-01-01, 2026-02-01 00:00:00)",
        "between({d}, 2026-01-01, 2026-02-01)",
        "between(to_date({b}, None, Some(UTC), true), 2026-01-01, {d})",
        "between(year({ts}), 2020, 2024)",
        "nvl({b}, 12:30)",
        "nvl({b}, {c})",
        "nvl({b}, )",
        "nvl({b}, 555-1234)",
        "nvl({f}, 0.0)",
        "nvl(upper({b}), {c})",
        "nvl(date_format({ts}, HH:mm, Some(UTC)), 00:00)",
        "nvl(cast({ts} as string), {b})",
        "nvl(get_json_object({b}, $.a), )",
        "nvl({tags}[k], {b})",
        "nvl(element_at(split({b}, /, -1), 1, None, true), {c})",
        "nvl(CASE WHEN ({n} > 1) THEN {b} END, {c})",
        "nvl2({ts}, {b}, active)",
        "nvl2({ts}, 1, 0)",
        "nullif({b}, 000-000-0000)",
        "decode({n}, 1, one, other)",
        "decode({b}, A, {ts}, B, 2026-01-01 00:00:00, {ts})",
        "decode({ts}, 2026-01-01 00:00:00, A, {b})",
        "nvl(static_invoke(CharVarcharCodegenUtils.readSidePadding({b}, 5)), {c})",
        "decode({b}, 1-800, us, {c})",
        "ifnull({b}, today)",
        "try_add({n}, 1)",
        "try_subtract({ts}, 2026-01-01 00:00:00)",
        "extract(HOUR, {ts})",
        "extract(YEAR, {b})",
        "cast({ts} - INTERVAL '1' DAY as timestamp)",
        "cast(({n} - 1) as string)",
    ],
)
def test_what_is_no_text_or_stands_beside_no_moment_is_not(expression: str) -> None:
    assert not completes(selected(expression))


@pytest.mark.parametrize(
    ("below", "expected"),
    [
        ("trim({b}, None) AS q#20", False),
        ("coalesce({b}, {c}) AS q#20", False),
        ("{d} AS q#20", False),
        ("{ts} AS q#20", True),
        ("max({ts}) AS q#20", True),
        ("CASE WHEN ({n} > 1) THEN {ts} END AS q#20", True),
    ],
)
def test_what_a_column_is_computed_from_tells_whether_it_is_a_moment(
    below: str, expected: bool
) -> None:
    assert completes(selected("nvl(q#20, {b})", f"Project [{below}, {{b}}]")) is expected


MERGE = (
    "MergeIntoCommand SubqueryAlias s, SubqueryAlias t, `spark_catalog`.`s`.`t`, x.Y, "
    "Delta[version=0, file:/w/t], (k#1L = k#2L), [Update [actions: [`x` = {}]]], false"
)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("nvl(a#3, b#4)", False),
        ("between(n#5, k#1L, k#2L)", False),
        ("nvl(ts#6, b#4)", True),
        ("nvl(both#7, b#4)", True),
        ("nvl(unknown#8, b#4)", True),
        ("nvl(of two words#9, b#4)", True),
    ],
)
def test_columns_of_a_merge_are_known_by_name(expression: str, expected: bool) -> None:
    """Its plan is one line, in which no column is defined."""
    merged = {"a": ["string"], "b": ["string", "string"], "n": ["int"], "ts": ["timestamp"]}
    merged |= {"k": ["bigint", "int"], "both": ["string", "timestamp"]}
    merged |= {"words": ["string"], "of two words": ["timestamp"]}
    plan = read_plan(
        "== Parsed Logical Plan ==\nx\n\n== Analyzed Logical Plan ==\n"
        f"{MERGE.format(expression)}\n\n== Optimized Logical Plan ==\ny"
    )
    assert isinstance(plan, Plan)
    found = findings(plan, Facts({}, merged=merged))
    assert any("today" in each for each in found) is expected


@pytest.mark.parametrize("shown", ["nvl(TS#2, V#1)", "nvl(a b#2, a b#1)", "nvl(my-ts#2, my-v#1)"])
def test_columns_that_cannot_be_told_may_be_moments(shown: str) -> None:
    plan = read_plan(
        "== Parsed Logical Plan ==\nx\n\n== Analyzed Logical Plan ==\n"
        f"{MERGE.format(shown)}\n\n== Optimized Logical Plan ==\ny"
    )
    assert isinstance(plan, Plan)
    assert completes(plan)


def test_column_is_the_same_however_it_is_spelt() -> None:
    """Spark shows each as the query spells it there."""
    leaf = f"Relation {TABLE}[TS#0,b#1,C#2] parquet"
    for shown, expected in (("nvl(ts#0, B#1)", True), ("nvl(c#2, B#1)", False)):
        plan = read_plan(
            "== Parsed Logical Plan ==\nx\n\n== Analyzed Logical Plan ==\n"
            f"Project [{shown} AS x#9]\n+- Project [ts#0, B#1, c#2]\n   +- {leaf}\n\n"
            "== Optimized Logical Plan ==\ny"
        )
        assert isinstance(plan, Plan)
        assert completes(plan) is expected


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("(timestampFormat,yyyy)", False),
        ("(timestampFormat,yyyy), (enableDateTimeParsingFallback,true)", True),
        ("(mode,PERMISSIVE)", True),
    ],
)
def test_format_counts_unless_another_parser_may_come_behind_it(
    options: str, expected: bool
) -> None:
    shown = f"from_json(StructField(x,TimestampType,true), {options}, {{b}}, Some(UTC), false)"
    assert completes(selected(shown)) is expected


def test_many_arguments_are_looked_at_once() -> None:
    """Each beside each other would take minutes."""
    many = ", ".join(["{ts}", *(f"{{b}}, {at}" for at in range(20_000))])
    assert completes(selected(f"decode({many})"))
    assert not completes(selected(f"decode({many.replace('{ts}', '{b}', 1)})"))


def test_rows_of_the_statement_are_moments_only_if_it_writes_any() -> None:
    plan = selected("nvl(v#31, {b})", "Join Inner", "LocalRelation [k#30, v#31]")
    nothing, second = frozenset[int](), frozenset({1})
    assert completes(plan) and completes(plan, [Rows(2, nothing, second)])
    assert not completes(plan, [Rows(2, second, nothing)])
    assert completes(plan, [Rows(2, nothing, nothing), Rows(2, nothing, second)])
    assert completes(plan, [Rows(-1, nothing, nothing)])  # one item, which may be two columns
    assert completes(plan, [Rows(3, nothing, frozenset({0}))])


def test_text_of_a_row_is_converted_only_where_it_may_be_a_time_of_day() -> None:
    plan = selected("cast(v#31 as timestamp)", "Join Inner", "LocalRelation [k#30, v#31]")
    nothing = frozenset[int]()
    assert completes(plan) and completes(plan, [Rows(2, frozenset({1}), nothing)])
    assert not completes(plan, [Rows(2, frozenset({0}), frozenset({1}))])


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("cast(trim({b}, )) as timestamp)", ")"),
        ("cast(trim({b}, ) as int) as timestamp)", ") as int"),
        ("nvl(trim({b}, ))), {ts})", "))"),
        ("nvl(replace({b}, ], [{ts} AS y#9, ), {ts})", "], [{ts} AS y#9"),
        ("nvl(concat({b}, , , {b}), {ts})", ", "),
    ],
)
def test_text_that_looks_like_a_part_of_a_plan_hides_nothing(expression: str, text: str) -> None:
    """Spark shows it without quotes. What the statement writes is known, other brackets count."""
    plan = selected(expression)
    assert completes(plan, misleading=frozenset({text.format_map(IDS)}))
    if text == ")":
        assert completes(plan)
    assert not completes(selected("concat({b}, ))"), misleading=frozenset({")"}))
    assert completes(selected("cast({d} as timestamp)"), misleading=frozenset(map(str, range(101))))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cast(§2 - INTERVAL '1' DAY as string)", True),
        ("cast(§2 as timestamp)", True),
        ("cast((§3 - 1) as string)", False),
        ("cast( as timestamp)", False),
    ],
)
def test_conversion_that_is_shown_is_looked_at(text: str, expected: bool) -> None:
    types = {"2": Type.TEXT, "3": Type.INTEGER}
    assert (may_convert(text) and is_completed(text, types)) is expected


def test_functions_that_hide_conversions_are_all_known() -> None:
    """After an upgrade of PySpark: `unified` says which may make a TIMESTAMP of a text."""
    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("spark-catalyst_*.jar")
    with zipfile.ZipFile(jar) as classes:
        found = {
            name.rpartition("/")[2].removesuffix(".class")
            for name in classes.namelist()
            if name.startswith("org/apache/spark/sql/catalyst/expressions/")
            and "$" not in name
            and b"InheritAnalysisRules" in classes.read(name)
        }
    looked_into = {
        *("Between", "DatetimeSub", "Decode", "EqualNull", "Extract", "NullIf", "Nvl", "Nvl2"),
        *("TryAdd", "TrySubtract"),
    }
    of_no_moments = {
        *("AssertTrue", "NullIfZero", "StringTrimBoth", "TryAesDecrypt", "TryDivide", "TryMod"),
        *("TryElementAt", "TryMakeInterval", "TryMakeTimestamp", "TryMakeTimestampFromDateTime"),
        *("TryMultiply", "TryParseUrl", "TryReflect", "TryToBinary", "TryUrlDecode", "ZeroIfNull"),
    }
    assert found - {"InheritAnalysisRules"} == looked_into | of_no_moments
