"""Tests of the session's journal: it holds effects, and grows only with them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc import protos
from haproc.engine.interface import Settings
from haproc.sessions.durable import RECORDS, Numbered, Written
from haproc.sessions.effects import (
    as_made,
    declared,
    dropped_variable,
    effect_of_plan,
    effect_of_sql,
    superseded,
    with_columns,
)
from haproc.sessions.journal import (
    Effect,
    Kept,
    PlanEntry,
    SqlEntry,
    StateEntry,
    Variable,
    VariablesEntry,
)

UNDER = Settings(schema="s")


@pytest.mark.parametrize(
    ("sql", "name", "removes"),
    [
        ("CREATE TEMPORARY VIEW v AS SELECT 1", "view v", False),
        ("create or replace temp view `V 1` as select 1", "view v 1", False),
        ("CREATE TEMPORARY VIEW IF NOT EXISTS v AS SELECT 1", "", False),
        ("CREATE TEMP VIEW v USING csv OPTIONS (path 'x')", "view v", False),
        ("DROP VIEW IF EXISTS v", "view v", True),
        ("DROP VIEW v -- CREATE", "view v", True),
        ("CREATE TEMPORARY FUNCTION f(x INT) RETURNS INT RETURN x", "function f", False),
        ("DROP TEMPORARY FUNCTION IF EXISTS f", "function f", True),
        ("CACHE LAZY TABLE c AS SELECT 1", "view c", False),
        ("ALTER VIEW v AS SELECT 2", "", False),
        ("CREATE TEMPORARY VIEW IDENTIFIER('a' || 'b') AS SELECT 1", "", False),
        ("", "", False),
        ("'", "", False),
    ],
)
def test_effect_of_a_statement_is_found_by_its_first_words(
    sql: str, name: str, removes: bool
) -> None:
    assert effect_of_sql(sql) == Effect(name, removes)


@pytest.mark.parametrize(
    ("sql", "made"),
    [
        ("ALTER VIEW v AS SELECT 2", "CREATE OR REPLACE TEMPORARY VIEW `v` AS SELECT 2"),
        (
            "alter view session.`V``1` as(SELECT 2)",
            "CREATE OR REPLACE TEMPORARY VIEW `v``1` AS(SELECT 2)",
        ),
        ("ALTER VIEW v RENAME TO w", "ALTER VIEW v RENAME TO w"),
        ("ALTER VIEW IDENTIFIER('v') AS SELECT 2", "ALTER VIEW IDENTIFIER('v') AS SELECT 2"),
        ("DROP VIEW v", "DROP VIEW v"),
    ],
)
def test_altered_view_is_stored_as_a_created_one(sql: str, made: str) -> None:
    assert as_made(sql) == made


@pytest.mark.parametrize(
    ("sql", "query"),
    [
        ("CREATE TEMP VIEW v AS SELECT *, 1 AS h FROM t;", "SELECT *, 1 AS h FROM t"),
        (
            "create or replace temporary view session.v COMMENT 'AS x' "
            "TBLPROPERTIES ('as' = 'AS', as = 'b') AS WITH q AS (SELECT 1) FROM q -- end",
            "WITH q AS (SELECT 1) FROM q",
        ),
        ("CACHE LAZY TABLE v OPTIONS ('a' = 'b') AS TABLE t", "TABLE t"),
        ("CACHE TABLE v SELECT * FROM t", "SELECT * FROM t"),
        ("CACHE TABLE v (SELECT * FROM t)", "(SELECT * FROM t)"),
        ("CREATE TEMP VIEW v (a, b) AS SELECT * FROM t", ""),
        ("CREATE TEMP VIEW v USING csv OPTIONS (path 'x')", ""),
        ("DROP VIEW v", ""),
        ("", ""),
    ],
)
def test_view_of_a_query_is_created_with_some_of_its_columns(sql: str, query: str) -> None:
    made = f"CREATE TEMPORARY VIEW `v` AS SELECT `a``b`, `c` FROM ({query})" if query else ""
    assert with_columns(sql, "v", ("a`b", "c")) == made


def test_effect_of_a_plan_is_the_effect_of_its_command() -> None:
    plan = protos.base.Plan()
    plan.command.create_dataframe_view.name = "V"
    assert effect_of_plan(plan.SerializeToString()).name == "view v"
    dropped = protos.base.Plan()
    dropped.root.catalog.drop_temp_view.view_name = "V"
    assert effect_of_plan(dropped.SerializeToString()) == Effect("view v", True)
    assert effect_of_plan(b"\xff") == Effect()


@pytest.mark.parametrize(
    ("sql", "names", "default"),
    [
        ("DECLARE a INT DEFAULT 1", ("a",), "1"),
        (
            "DECLARE OR REPLACE VARIABLE `A b`, c DECIMAL(3, 1) = f(1 = 1);",
            ("a b", "c"),
            "f(1 = 1)",
        ),
        ("DECLARE VAR session.a MAP<STRING, INT>", ("a",), ""),
        ("SET VAR a = 1", (), ""),
    ],
)
def test_declared_returns_names_and_default(sql: str, names: tuple[str, ...], default: str) -> None:
    assert declared(sql) == (names, default)


def test_dropped_variable_differs_from_a_dropped_view() -> None:
    assert dropped_variable("DROP TEMPORARY VARIABLE IF EXISTS session.a") == "a"
    assert dropped_variable("DROP TEMP VAR a") == "a"
    assert dropped_variable("DROP VIEW a") == ""


def test_entries_are_decoded_as_they_were_encoded() -> None:
    columns = (("id", "int"), ("ü", "decimal(3,1)"))
    entries: list[Kept] = [
        StateEntry(UNDER, (("haproc.consistency", "any"),)),
        SqlEntry("CREATE TEMP VIEW v AS SELECT 1", Effect("view v", False, UNDER, columns)),
        PlanEntry(b"\x00", Effect()),
        VariablesEntry((Variable("a", "int", b"123", "7"), Variable("b", "string", b"4567"))),
        VariablesEntry(()),
    ]
    for entry in entries:
        written = Written(entry, ("r1", "r2"), 3)
        assert RECORDS.from_bytes(RECORDS.to_bytes(written)) == written


def recorded(entries: list[Numbered], entry: Kept) -> list[Numbered]:
    """Return the journal after an entry."""
    ordinal = entries[-1].ordinal + 1 if entries else 0
    gone = superseded(entries, entry)
    return [*(each for each in entries if each not in gone), Numbered(ordinal, "n", entry, 1)]


def sql(text: str) -> SqlEntry:
    return SqlEntry(text, effect_of_sql(text))


def journal(*texts: str) -> list[str]:
    entries: list[Numbered] = []
    for text in texts:
        entries = recorded(entries, sql(text))
    return [each.entry.text for each in entries if isinstance(each.entry, SqlEntry)]


def test_view_replaced_a_thousand_times_is_one_entry() -> None:
    made = [f"CREATE OR REPLACE TEMP VIEW v AS SELECT {n}" for n in range(1000)]
    assert journal(*made) == made[-1:]


def test_entry_that_others_rest_on_stays_in_its_place() -> None:
    first, over = "CREATE TEMP VIEW v AS SELECT 1", "CREATE TEMP VIEW o AS SELECT * FROM v"
    second, third = (f"CREATE OR REPLACE TEMP VIEW v AS SELECT {n}" for n in (2, 3))
    assert journal(first, over, second, third) == [first, over, third]
    hidden = "CREATE TEMP VIEW o AS SELECT * FROM IDENTIFIER('V')"
    assert journal(first, hidden, second) == [first, hidden, second]
    assert journal(first, over, "DROP VIEW v", second) == [first, over, "DROP VIEW v", second]


def framed(name: str, query: str) -> PlanEntry:
    plan = protos.base.Plan()
    plan.command.create_dataframe_view.name = name
    plan.command.create_dataframe_view.input.sql.query = query
    data = bytes(plan.SerializeToString())
    return PlanEntry(data, effect_of_plan(data))


def test_entry_that_a_dataframe_resolved_through_another_view_stays() -> None:
    """A view by SQL resolves names at each use, a DataFrame over it once and for all."""
    first, over = sql("CREATE TEMP VIEW bb AS SELECT 1"), sql("CREATE TEMP VIEW aa AS TABLE bb")
    second, third = (sql(f"CREATE OR REPLACE TEMP VIEW bb AS SELECT {n}") for n in (2, 3))
    for behind in ([framed("bb", "TABLE aa")], [framed("cc", "TABLE aa"), third]):
        entries: list[Numbered] = []
        for each in (first, over, second, *behind):
            entries = recorded(entries, each)
        assert [each.entry for each in entries] == [first, over, second, *behind]


def test_view_that_was_altered_and_dropped_leaves_no_entry_that_could_fail() -> None:
    made = ("CREATE TEMP VIEW v AS SELECT 1", as_made("ALTER VIEW v AS SELECT * FROM gone"))
    assert journal(*made) == [made[1]]
    assert journal(*made, "DROP VIEW v", "CREATE TEMP VIEW x AS SELECT 1")[:-1] == []


def test_dropped_view_leaves_at_most_the_drop() -> None:
    made, drop = "CREATE TEMP VIEW v AS SELECT 1", "DROP VIEW v"
    other = "CREATE TEMP VIEW x AS SELECT 1"
    assert journal(made, drop) == [drop]
    assert journal(made, drop, other) == [other]
    assert journal(*[made, drop] * 50) == [drop]


NAMES = st.sampled_from(["aa", "bb", "cc"])
STEPS = st.one_of(
    st.tuples(st.just("sql"), NAMES, st.integers(0, 9), st.none() | NAMES),
    st.tuples(st.just("frame"), NAMES, st.integers(0, 9), st.none() | NAMES),
    st.tuples(st.just("drop"), NAMES, st.just(0), st.none()),
)


def entry_of(step: tuple[str, str, int, str | None]) -> Kept:
    kind, name, number, base = step
    if kind == "drop":
        return sql(f"DROP VIEW IF EXISTS {name}")
    if kind == "sql":
        source = f" FROM {base}" if base else ""
        return sql(f"CREATE OR REPLACE TEMP VIEW {name} AS SELECT {number}{source}")
    return framed(name, f"{number} {base or ''}")


def shown_by(entries: list[Kept]) -> dict[str, object]:
    """Return each view's content: SQL resolves names at each use, a DataFrame once and for all."""
    views: dict[str, tuple[str, int, object]] = {}

    def value(name: str, deep: int = 0) -> object:
        if name not in views or deep > 9:
            return None
        kind, number, base = views[name]
        return (number, value(str(base), deep + 1) if kind == "sql" and base else base)

    for entry in entries:
        assert isinstance(entry, SqlEntry | PlanEntry)
        name = entry.effect.name.partition(" ")[2]
        if entry.effect.removes:
            views.pop(name, None)
            continue
        if isinstance(entry, SqlEntry):
            words = entry.text.partition(" SELECT ")[2].split(" FROM ")
            views[name] = ("sql", int(words[0]), words[1] if len(words) > 1 else "")
        else:
            plan = protos.base.Plan.FromString(entry.plan)
            number, _, base = plan.command.create_dataframe_view.input.sql.query.partition(" ")
            views[name] = ("frame", int(number), value(base))
    return {name: value(name) for name in views}


@given(st.lists(STEPS, max_size=30))
def test_journal_of_any_program_gives_the_same_views_as_the_whole_program(
    steps: list[tuple[str, str, int, str | None]],
) -> None:
    entries: list[Numbered] = []
    for step in steps:
        entries = recorded(entries, entry_of(step))
    whole = shown_by([entry_of(step) for step in steps])
    assert shown_by([each.entry for each in entries]) == whole
