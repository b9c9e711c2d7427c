"""Statements that are too large or nested too deeply are refused before they are parsed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from haproc.classify.bounds import COLUMNS_MAX, Bounds
from haproc.classify.classifier import Unparsed, classify
from haproc.classify.model import Classified, RefusedError
from haproc.classify.names import Context
from haproc.classify.rules import Rules
from haproc.pin.parameters import bind, parse_parameters

DEEP: dict[str, Callable[[int], str]] = {
    "parentheses": lambda n: "INSERT INTO t VALUES (" + "(" * n + "1" + ")" * n + ")",
    "calls": lambda n: "SELECT " + "abs(" * n + "1" + ")" * n,
    "case": lambda n: "UPDATE t SET a = " + "CASE WHEN b THEN " * n + "1" + " END" * n,
    "subqueries": lambda n: "SELECT * FROM " + "(SELECT * FROM " * n + "t" + ")" * n,
    "operators": lambda n: "SELECT 1" + " + 1" * n,
    "between_brackets": lambda n: "SELECT " + "1 + (" * n + "1" + ")" * n,
    "prefixes": lambda n: "SELECT " + "NOT " * n + "true",
    "signs": lambda n: "SELECT " + "- " * n + "1",
    "casts": lambda n: "SELECT 1" + "::int" * n,
    "fields": lambda n: "SELECT a" + ".b" * n,
    "subscripts": lambda n: "SELECT a" + "[0]" * n,
    "unions": lambda n: "INSERT INTO t SELECT 1" + " UNION ALL SELECT 1" * n,
    "joins": lambda n: "SELECT 1 FROM t" + " JOIN u USING (a)" * n,
    "commas": lambda n: "SELECT 1 FROM t" + ", u" * n,
    "values_joined": lambda n: "SELECT 1 FROM VALUES (1)" + ", u" * n,
    "lateral_views": lambda n: "SELECT 1 FROM t" + " LATERAL VIEW explode(a) x AS y" * n,
    "pipes": lambda n: "FROM t" + " |> WHERE true" * n,
    "types": lambda n: "CREATE TABLE t (a " + "array<" * n + "int" + ">" * n + ")",
    "lambdas": lambda n: "SELECT transform(a, " + "x -> " * n + "1)",
    "common_tables": lambda n: "WITH a AS (SELECT 1)" + ", b AS (SELECT 1)" * n + " TABLE a",
    "explains": lambda n: "EXPLAIN " * n + "SELECT 1",
    "hints": lambda n: "SELECT /*+ h(" + "f(" * n + ")" * n + ") */ 1",
    "comments": lambda n: "SELECT 1 " + "/* " * n + "*/" * n,
}
FLAT: dict[str, Callable[[int], str]] = {
    "in": lambda n: f"SELECT 1 FROM t WHERE a IN ({', '.join(['1'] * n)})",
    "alternatives": lambda n: "SELECT 1 FROM t WHERE a = 1" + " OR a = 2 AND b = 3" * n,
    "branches": lambda n: "SELECT CASE" + " WHEN a = 1 THEN 2" * n + " END FROM t",
    "columns": lambda n: f"SELECT {', '.join(['a + 1 AS b'] * n)} FROM t",
    "values": lambda n: f"SELECT * FROM VALUES {', '.join(['(1, 2)'] * n)} AS v",
    "plain_values": lambda n: f"INSERT INTO t VALUES {', '.join(['(1, 2)'] * n)}",
    "assignments": lambda n: f"UPDATE t SET {', '.join(['a = a + 1'] * n)}",
    "definitions": lambda n: f"CREATE TABLE t ({', '.join(['a ARRAY<INT>'] * n)})",
    "arguments": lambda n: f"SELECT concat({', '.join(['(a)'] * n)}) FROM t",
    "fields": lambda n: f"SELECT {', '.join(['a.b.c.d'] * n)} FROM a",
    "conditions": lambda n: "SELECT 1 FROM t WHERE" + " a.b < 1 AND" * n + " true",
}


def classified(sql: str, bounds: Bounds | None = None) -> Classified | Unparsed:
    return classify(sql, Context(), Rules.builtin(), None, bounds or Bounds())


def refused(sql: str, bounds: Bounds | None = None) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        classified(sql, bounds)
    return caught.value


@pytest.mark.parametrize("name", DEEP)
def test_classify_of_a_too_deep_statement_refuses_it(name: str) -> None:
    error = refused(DEEP[name](1500))
    if name == "comments":
        assert error.error_class == "HAPROC_SYNTAX"
    else:
        assert error.error_class == "HAPROC_STATEMENT_TOO_COMPLEX"
        assert "limits.statement_depth_max" in error.message
    assert classified(DEEP[name](15))


@pytest.mark.parametrize("name", FLAT)
def test_classify_of_long_flat_statement_accepts_it(name: str) -> None:
    assert classified(FLAT[name](3000))


@pytest.mark.parametrize("name", FLAT)
def test_classify_of_too_many_tokens_refuses_the_statement(name: str) -> None:
    error = refused(FLAT[name](300), Bounds(tokens_max=299))
    assert error.error_class == "HAPROC_STATEMENT_TOO_COMPLEX"
    assert "limits.statement_tokens_max" in error.message


def test_classify_of_a_select_of_too_many_columns_refuses_it() -> None:
    """Spark reserves thousands of values for each column at once, and ends: on every cluster."""

    def listed(count: int) -> str:
        return ", ".join(["'a'"] * count)

    for sql in (
        "SELECT {}",
        "INSERT INTO t SELECT f(a, b), {} FROM u",
        "SELECT * FROM (SELECT {})",
    ):
        assert refused(sql.format(listed(COLUMNS_MAX + 1))).error_class == (
            "HAPROC_STATEMENT_TOO_COMPLEX"
        )
    for sql in (
        f"SELECT {listed(COLUMNS_MAX)} FROM t WHERE a IN ({listed(COLUMNS_MAX + 1)})",
        f"SELECT array({listed(COLUMNS_MAX + 1)})",
        f"SELECT a FROM t ORDER BY {listed(COLUMNS_MAX + 1)}",
        " UNION ALL ".join([f"SELECT {listed(3_000)} FROM t"] * 5),
    ):
        assert isinstance(classified(sql), Classified)


def test_classify_counts_the_tokens_of_bound_parameters() -> None:
    value = {"name": "a", "type": "ARRAY<INT>", "value": "[" + "1," * 300 + "1]"}
    sql = bind("SELECT :a", parse_parameters([value]))
    assert refused(sql, Bounds(tokens_max=500)).error_class == "HAPROC_STATEMENT_TOO_COMPLEX"


def test_classify_of_too_long_text_refuses_it_for_any_content() -> None:
    for sql in ("SELECT 1 /* xxx */", "INSERT INTO t VALUES ('xxx')"):
        assert classified(sql, Bounds(chars_max=len(sql)))
        error = refused(sql, Bounds(chars_max=len(sql) - 1))
        assert error.error_class == "HAPROC_STATEMENT_TOO_COMPLEX"
        assert "limits.statement_bytes_max" in error.message


@pytest.mark.parametrize(
    "sql",
    ["SELECT 1\0", "SELECT 'a\0b'", "INSERT INTO t VALUES ('a\0b')", "SELECT 1 -- \0", "\0"],
)
def test_classify_of_a_nul_character_refuses_it(sql: str) -> None:
    error = refused(sql)
    assert (error.error_class, error.message) == (
        "HAPROC_SYNTAX",
        f"character {sql.index(chr(0))} of the statement is NUL, which SQL does not know",
    )


def test_classify_of_a_bound_nul_character_accepts_it() -> None:
    sql = bind("SELECT :a", parse_parameters([{"name": "a", "value": "x\0"}]))
    assert classified(sql).sql == r"SELECT 'x\u0000'"
