"""Reading analyzed plans, as Spark 4.2.1 with Delta 4.4.0 printed them."""

from __future__ import annotations

import pickle

import pytest

from haproc.classify.classifier import classify
from haproc.classify.model import Kind, RefusedError
from haproc.classify.names import Context
from haproc.classify.rules import Rules
from haproc.pin.inline import UnclearError
from haproc.pin.scan import Scan
from haproc.witness.findings import Facts, findings, findings_of_root, subqueries_shown
from haproc.witness.plan import Failure, Plan, UnreadableError, read_plan
from haproc.witness.probes import Function, described_function, function_query
from haproc.witness.shape import shape, writes_floats
from haproc.witness.targets import tables_named, written

U = "Relation spark_catalog.s.u[a#3L,b#4,i#5] parquet"
SCHEMAS = {"spark_catalog.s.u": {"a": "bigint", "b": "string", "i": "int"}}
T = "Relation spark_catalog.s.t[a#1L,c#2,m#6] parquet"
SCHEMAS |= {"spark_catalog.s.t": {"a": "bigint", "c": "double", "m": "decimal(10,2)"}}


def explained(*lines: str, behind: str = "") -> str:
    section = "\n".join(lines)
    return (
        f"== Parsed Logical Plan ==\n'Project [*]\n\n== Analyzed Logical Plan ==\n{section}\n\n"
        f"== Optimized Logical Plan ==\n{behind}Project\n\n== Physical Plan ==\n*(1) Project\n"
    )


def plan_of(*lines: str) -> Plan:
    plan = read_plan(explained(*lines))
    assert isinstance(plan, Plan)
    return plan


def reasons(*lines: str, decimals: bool = True) -> str:
    return "; ".join(findings(plan_of(*lines), Facts(SCHEMAS, decimals=decimals)))


INSERT = "AppendData RelationV2[a#8L, b#9, i#10] spark_catalog.s.u, false, false"


def test_plan_is_read_as_a_tree_with_its_inputs() -> None:
    plan = plan_of(
        "a: bigint, exists(a): boolean",
        "Project [a#3L, exists#6 [a#3L] AS exists(a)#13]",
        ":  +- Project [1 AS 1#99]",
        ":     +- OneRowRelation",
        "+- SubqueryAlias spark_catalog.s.u",
        f"   +- {U}",
    )
    assert plan.types == "a: bigint, exists(a): boolean"
    assert [node.name for node in plan.nodes] == [
        "Project",
        "Project",
        "OneRowRelation",
        "SubqueryAlias",
        "Relation",
    ]
    assert [node.name for node in plan.root.inputs] == ["SubqueryAlias"]
    assert tables_named(plan) == (frozenset({"spark_catalog.s.u"}), True)


@pytest.mark.parametrize(
    ("root", "table"),
    [
        (INSERT, "spark_catalog.s.u"),
        ("OverwriteByExpression RelationV2[a#1L] c.s.`o.d`, true, false", "c.s.`o.d`"),
        ("UpdateCommand Delta[version=0, file:/w/t], `c`.`s`.`T`, x.Y, [x]", "c.s.t"),
        ("DeleteCommand x.DeltaLog@1, `c`.`s`.`t`, x.Y, true", "c.s.t"),
        ("UpdateCommand Delta[version=0, file:/w/t], [a#1L], (a#1L = 1)", None),
    ],
)
def test_written_table_is_told(root: str, table: str | None) -> None:
    assert written(plan_of(root, f"+- {U}")) == table


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("Project [a#1]", "no node"),
        ("'Project ['a]", "+- OneRowRelation"),
        ("Project [a#1L, ... 5 more fields]", f"+- {U}"),
        ("Project [a#1]", "+- lower case"),
        ("== Analyzed Logical Plan ==", "Project [a#1]"),
        ("Project [x\n== Optimized Logical Plan ==\ny AS b#5]", "+- OneRowRelation"),
    ],
)
def test_text_that_is_no_plan_is_unreadable(lines: tuple[str, ...]) -> None:
    with pytest.raises(UnreadableError):
        read_plan(explained(*lines))


def test_command_that_is_an_object_of_scala_is_read() -> None:
    assert plan_of("ClearCacheCommand$").root.name == "ClearCacheCommand"


def test_column_called_like_an_operator_is_no_root() -> None:
    plan = plan_of("AppendDat a: int", "Project [1 AS AppendDat a#5]", "+- OneRowRelation")
    assert plan.root.name == "Project"


def test_failure_has_spark_s_codes() -> None:
    text = explained(
        "org.apache.spark.sql.AnalysisException: [TABLE_OR_VIEW_NOT_FOUND] The table `x` cannot "
        "be found.",
        "Search path: […]. SQLSTATE: 42P01; line 1 pos 31;",
        "'Project [*]",
    )
    failure = read_plan(text)
    assert isinstance(failure, Failure)
    assert (failure.error_class, failure.sqlstate) == ("TABLE_OR_VIEW_NOT_FOUND", "42P01")
    assert failure.java_class == "org.apache.spark.sql.AnalysisException"
    legacy = read_plan(explained("org.apache.spark.sql.AnalysisException: Not supported: a.b.c"))
    assert isinstance(legacy, Failure)
    assert (legacy.error_class, legacy.message) == ("", "Not supported: a.b.c")
    planning = read_plan("Error occurred during query planning: \n[CAST_INVALID_INPUT] The value.")
    assert isinstance(planning, Failure)
    assert planning.error_class == "CAST_INVALID_INPUT"


def test_functions_are_known_or_differ() -> None:
    project = "Project [a#3L, {} AS b#11, i#5]"
    for harmless in ("upper(b#4)", "RLIKE(b#4, a)", "cast(a#3L as string)", "knownnotnull(i#5)"):
        assert reasons(INSERT, f"+- {project.format(harmless)}", f"   +- {U}") == ""
    for differs in ("uuid(Some(7))", "rand(3)", "s.f(b#4)", "nobody_knows(b#4)", "current_user()"):
        name = differs.partition("(")[0]
        assert name in reasons(INSERT, f"+- {project.format(differs)}", f"   +- {U}")


CHARS = "Relation spark_catalog.s.w[k#404,c#405,v#406] parquet"


def _update_of_chars(called: str) -> str:
    return reasons(
        "UpdateCommand Delta[version=1, file:/w/w], `spark_catalog`.`s`.`w`, x.Y, "
        "[k#404, c#409, v#406], (c#409 = rpad(a, 5,  ))",
        "   +- SubqueryAlias spark_catalog.s.w",
        f"      +- Project [k#404, {called}(c#405, 5)) AS c#409, v#406]",
        f"         +- {CHARS}",
    )


@pytest.mark.parametrize(
    "method", ["readSidePadding", "charTypeWriteSideCheck", "varcharTypeWriteSideCheck"]
)
def test_column_of_chars_is_read_and_written_the_same_everywhere(method: str) -> None:
    assert _update_of_chars(f"static_invoke(CharVarcharCodegenUtils.{method}") == ""


@pytest.mark.parametrize(
    "called",
    [
        "static_invoke(com.example.CharVarcharCodegenUtils.readSidePadding",
        "static_invoke(CharVarcharCodegenUtils.nanoTime",
        "static_invoke(OtherUtils.readSidePadding",
        "(spark_catalog.charvarcharcodegenutils.readsidepadding",
    ],
)
def test_static_invoke_of_anything_else_differs(called: str) -> None:
    assert "not one of Spark's own" in _update_of_chars(called)


def test_columns_that_look_like_functions_are_columns() -> None:
    leaf = "Relation spark_catalog.s.us[uuid()#3,a b#4] parquet"
    assert reasons(INSERT, "+- Project [uuid()#3 AS a#49, a b#4 AS b#50]", f"   +- {leaf}") == ""
    assert "uuid" in reasons(INSERT, "+- Project [uuid(None) AS uuid()#11]", f"   +- {leaf}")


def test_subquery_whose_plan_is_not_printed_is_found() -> None:
    """Spark prints none below a command of Delta's."""
    update = "UpdateCommand Delta[version=0, x], `s`.`u`, [a#3L, scalar-subquery#9 [], list#5]"
    plan = plan_of(update, f"   +- {U}")
    assert any("subquery" in each for each in findings(plan, Facts(SCHEMAS)))
    assert findings(plan, Facts(SCHEMAS, subqueries=1)) == []
    head = (INSERT, "+- Project [scalar-subquery#9 [a#3L] AS a#11, exists#10 [] AS b#12]")
    below = ("   :  :- Project [1 AS x#13]", "   :  :  +- OneRowRelation")
    last = ("   :  +- Project [2 AS y#14]", "   :     +- OneRowRelation", f"   +- {U}")
    assert reasons(*head, *below, *last) == ""
    assert "subquery" in reasons(*head, *last)


def test_subqueries_are_counted_where_a_query_has_them_itself() -> None:
    plan = plan_of(
        "Project [scalar-subquery#9 [a#3L] AS a#11, scalar-subquery#10 [] AS b#12]",
        ":  :- Aggregate [max(scalar-subquery#20 []) AS x#13]",
        ":  :  +- OneRowRelation",
        ":  +- OneRowRelation",
        "+- Filter exists#14 []",
        "   :  +- OneRowRelation",
        f"   +- {U}",
    )
    assert subqueries_shown(plan) == 3


def test_rows_stand_for_what_differs_below_a_write_and_not_for_what_differs_in_it() -> None:
    below = ("+- Project [rand(3) AS a#11]", f"   +- {U}")
    own = "OverwriteByExpression RelationV2[d#3] spark_catalog.s.u, (d#3 >= cast({} as date))"
    for root, differs in (
        (INSERT, False),
        (own.format("2026-01-01"), False),
        (own.format("concat(to, day)"), True),
    ):
        assert bool(findings_of_root(plan_of(root, *below), Facts(SCHEMAS))) is differs
    query = plan_of("Project [rand(3) AS a#11]", f"+- {U}")
    assert findings(query, Facts(SCHEMAS)) and not findings_of_root(query, Facts(SCHEMAS))


def test_plan_of_any_depth_is_read_and_travels() -> None:
    lines = [f"{'   ' * at}+- Project [a#3L]" for at in range(3_000)]
    plan = plan_of(INSERT, *lines, f"{'   ' * len(lines)}+- {U}")
    there = pickle.loads(pickle.dumps(plan))
    assert [(node.name, node.text) for node in there.nodes] == [
        (node.name, node.text) for node in plan.nodes
    ]
    assert tables_named(there) == (frozenset({"spark_catalog.s.u"}), True)
    assert findings(there, Facts(SCHEMAS)) == []


def test_text_that_opens_a_bracket_makes_a_plan_unreadable_and_no_error() -> None:
    plan = "+- Project [cast(concat(((, b#4) as date) AS d#9]"
    assert "cannot be read" in reasons(INSERT, plan, f"   +- {U}")


def test_old_parser_of_dates_reads_by_the_clock() -> None:
    plan = plan_of(INSERT, "+- Project [to_date(b#4, yy, Some(UTC), true) AS d#9]", f"   +- {U}")
    assert findings(plan, Facts(SCHEMAS)) == []
    assert any("LEGACY" in each for each in findings(plan, Facts(SCHEMAS, legacy=True)))


@pytest.mark.parametrize(
    ("expression", "differs"),
    [
        ("cast(today as date)", True),
        ("cast(concat(to, day) as date)", True),
        ("to_date(today, None, Some(UTC), true)", True),
        ("cast(cast(0x746F as string) as timestamp)", True),
        ("cast(2024-01-01 as date)", False),
        ("to_date(2024, Some(yyyy), Some(UTC), true)", False),
        ("cast(concat(b#4, day) as date)", False),
        ("concat(today, b#4)", False),
    ],
)
def test_constant_that_may_be_a_moment_differs(expression: str, differs: bool) -> None:
    found = reasons(INSERT, f"+- Project [{expression} AS b#11]", f"   +- {U}")
    assert ("moment" in found) is differs


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("Relation [value#1] text", "no table"),
        ("View (`c`.`s`.`v`, [a#1])", "view"),
        ("Sample 0.0, 0.1, false, Bernoulli", "TABLESAMPLE"),
        ("Deduplicate [a#1]", "Deduplicate"),
        ("Project [_metadata#8.file_name AS b#9]", "_metadata"),
        ("Aggregate [collect_list(b#4, 0, 0) AS b#9]", "collect_list"),
        ("Aggregate [max(collate(b#4, UTF8_LCASE)) AS b#9]", "floating"),
    ],
)
def test_what_is_not_known_as_harmless_differs(line: str, reason: str) -> None:
    found = reasons(INSERT, f"+- {line}", f"   +- {U}")
    assert (reason in found) is (reason != "floating")
    assert found


def test_collection_that_is_sorted_is_the_same_everywhere() -> None:
    sorted_ = "+- Aggregate [array_join(sort_array(collect_list(b#4, 0, 0), true), ,) AS b#9]"
    assert reasons(INSERT, sorted_, f"   +- {U}") == ""
    both = (
        "+- Aggregate [sort_array(collect_list(b#4, 0), true) AS b#9, collect_list(b#4, 0) AS c#9]"
    )
    assert "collect_list" in reasons(INSERT, both, f"   +- {U}")


@pytest.mark.parametrize(
    ("sql", "neutral"),
    [
        (
            "UPDATE t SET a = 5, b = 'it''s' WHERE c IN (1, 2, 30) AND e = 1.50 AND f <> -3L",
            "UPDATE t SET a = 1, b = 'a' WHERE c IN (1) AND e = 1.11 AND f <> -1L",
        ),
        ("DELETE FROM t WHERE b = 'to' 'day'", "DELETE FROM t WHERE b = 'to' 'day'"),
        ("DELETE FROM t WHERE b = 'Now'", "DELETE FROM t WHERE b = 'Now'"),
        ("DELETE FROM t WHERE d < DATE '2024-05-06'", "DELETE FROM t WHERE d < DATE '2001-01-01'"),
        (
            "SELECT upper('x') FROM t GROUP BY 1 LIMIT 5",
            "SELECT upper('a') FROM t GROUP BY 1 LIMIT 5",
        ),
        (
            "SELECT * FROM t WITH ('versionAsOf' = '1')",
            "SELECT * FROM t WITH ('versionAsOf' = '1')",
        ),
        ("SELECT a, 'x\\n#1 (y', 'z' FROM t", "SELECT a, 'a', 'z' FROM t"),
        ("SELECT CAST(a AS DECIMAL(10,2)), from_json(b, 'a INT')", None),
        ("INSERT INTO t PARTITION (p = 'x') SELECT 'lit', round(a, 2) FROM u LIMIT 7", None),
    ],
)
def test_shape_has_neutral_literals_where_values_have_no_say(sql: str, neutral: str | None) -> None:
    assert shape(Scan(sql)) == (sql if neutral is None else neutral)


def test_floats_are_told_from_decimals() -> None:
    assert not writes_floats(Scan("SELECT 1.5, 2BD, 3L, 1.5BD").tokens)
    for text in ("1e3", "1.5D", "2F", "1.5E-3"):
        assert writes_floats(Scan(f"SELECT {text}").tokens)


def test_described_function_is_read() -> None:
    rows = [
        "Function:      c.s.f",
        "Type:          SCALAR",
        "Input:         x INT",
        "               y STRING",
        "Returns:       INT",
        "Configs:       a=b",
        "               c=d",
        "Body:          (SELECT 1)",
        "               + x",
    ]
    function = described_function(rows)
    assert function.parameters == (("x", "INT"), ("y", "STRING"))
    assert function_query(Function((), "SELECT x")) == "SELECT (EXISTS (SELECT x\n)\n)"
    assert "CAST(NULL AS STRING) AS `y`" in function_query(function)
    with pytest.raises(UnclearError):
        described_function(["Function:      f", "Class:         a.b.C"])


def test_kinds_have_roots() -> None:
    from haproc.witness.known import is_root_of

    assert is_root_of("AppendData", Kind.INSERT)
    assert not is_root_of("AppendData", Kind.SELECT)
    assert not is_root_of("Union", Kind.INSERT)
    with pytest.raises(RefusedError):
        classify("SELECT reflect('a')", Context(), Rules.builtin())
