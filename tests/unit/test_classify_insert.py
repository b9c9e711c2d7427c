"""INSERTs of literals: which may be combined, and that combining them changes no type."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from haproc.classify.insert import combined_signature, plain_insert
from haproc.classify.model import InsertShape
from haproc.classify.names import Context
from haproc.classify.tokens import may_write_time_of_day
from tests.readings.classified import classified

# A literal and the letter of its type.
LITERALS = {
    "1": "i",
    "-1": "i",
    "2147483647": "i",
    "-2147483648": "i",
    "2147483648": "l",
    "-2147483649": "l",
    "9223372036854775807": "l",
    "9223372036854775808": "d0",
    "5L": "l",
    "5S": "h",
    "-5Y": "y",
    "1.5": "d1",
    "-2.25": "d2",
    ".5": "d1",
    "5.": "d0",
    "007.50": "d2",
    "1.50BD": "d2",
    "1e3": "e",
    "1.5E-3": "e",
    "1D": "e",
    "1.5f": "f",
    "NULL": "n",
    "true": "b",
    "FALSE": "b",
    "'a'": "s",
    "'it''s, (x); -- y'": "s",
    "'a\\'b'": "s",
    '"x"': "s",
    "DATE'2020-01-31'": "t",
    "date '2020-01-31'": "t",
    "TIMESTAMP'2020-01-01 10:00:00.123'": "T",
    "TIMESTAMP'2020-01-01 10:00:00.123+01:00'": "z",
    "timestamp '2020-01-01 10:00:00-05:30'": "z",
    "X'00fF'": "x",
}


def shape(sql: str) -> InsertShape | None:
    found = plain_insert(sql, Context())
    return None if found is None else found.shape


def signature(*rows: str) -> str | None:
    found = shape(f"INSERT INTO t VALUES {', '.join(rows)}")
    return None if found is None else found.signature


@pytest.mark.parametrize(("literal", "letter"), LITERALS.items())
def test_signature_of_literal_is_its_type(literal: str, letter: str) -> None:
    assert signature(f"({literal})") == letter
    assert signature(f"( {literal} , 1 )") == f"{letter},i"


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (["(1)", "(NULL)"], "i"),
        (["(NULL)", "('a')", "(NULL)"], "s"),
        (["(NULL, NULL)", "(NULL, 1)"], "n,i"),
        (["(1)", "(3000000000)"], "l"),
        (["(3000000000)", "(1)"], "l"),
        (["(1.5)", "(2.25)"], "d2"),
        (["(1)", "(2.25)", "(NULL)"], "d2"),
        (["(3000000000)", "(1.5)"], "d1"),
        (["(1)", "('a')"], None),
        (["(1)", "(true)"], None),
        (["(1.5)", "(1e3)"], None),
        (["(1)", "(1S)"], None),
        (["(DATE'2020-01-01')", "(TIMESTAMP'2020-01-01')"], None),
        # By spark.sql.timestampType only one of them may be a TIMESTAMP_NTZ.
        (["(TIMESTAMP'2020-01-01')", "(TIMESTAMP'2020-01-01 00:00:00+00:00')"], None),
        (["(1)", "(1, 2)"], None),
        (["(1, 2)", "(1)"], None),
        (["(12345678901234567890123456789012345678)", "(0.5)"], None),
        (["(3000000000)", "(0.1234567890123456789)"], None),
    ],
)
def test_signature_of_rows_is_their_common_type_or_none(
    rows: list[str], expected: str | None
) -> None:
    assert signature(*rows) == expected


@pytest.mark.parametrize(
    "values",
    [
        "(1 + 1)",
        "(+1)",
        "(f(1))",
        "(current_timestamp())",
        "(DEFAULT)",
        "(a)",
        "('a' 'b')",
        "((1))",
        "((SELECT 1))",
        "(CAST(1 AS INT))",
        "(INTERVAL '1' DAY)",
        "(TIMESTAMP'now')",
        "(TIMESTAMP'2020-01-01 00:00:00 Europe/Zurich')",
        "(TIMESTAMP'2020-01-01 00:00:00+1')",
        "(TIMESTAMP'2020-01-01+01:00')",
        "(DATE'today')",
        "(1BD2)",
        "(1.5e3BD)",
        "(r'a')",
        "(?)",
        "(:a)",
        "(1 /* x */)",
        "1, 2",
        "(1) AS x(a)",
        "(1) UNION SELECT 1",
    ],
)
def test_insert_of_expressions_has_no_shape(values: str) -> None:
    assert shape(f"INSERT INTO t VALUES {values}") is None


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT OVERWRITE t VALUES (1)",
        "INSERT INTO t BY NAME VALUES (1)",
        "INSERT INTO t WITH ('a' = 'b') VALUES (1)",
        "INSERT INTO t SELECT 1",
        "INSERT INTO t TABLE u",
        "INSERT INTO IDENTIFIER('t') VALUES (1)",
        "INSERT INTO t REPLACE WHERE a = 1 VALUES (1)",
        "INSERT INTO t PARTITION (p = current_date()) VALUES (1)",
        "INSERT INTO t PARTITION (p) VALUES (1)",
    ],
)
def test_insert_of_another_form_has_no_shape(sql: str) -> None:
    assert plain_insert(sql, Context()) is None


@pytest.mark.parametrize(
    "head",
    [
        "INSERT INTO t VALUES ",
        "insert into TABLE s.t (a, `b c`)\nvalues\n",
        "INSERT /* x */ INTO cat.s.t PARTITION (p = 'x', q = 1) (a, b) VALUES ",
    ],
)
def test_shape_contains_the_position_of_the_first_row(head: str) -> None:
    sql = f"-- before\n{head}(1, 'x'), (2, ')')  ; -- behind"
    statement = classified(sql)
    assert statement.sql == f"{head}(1, 'x'), (2, ')')"
    assert statement.insert == InsertShape(values_at=len(head), rows=2, signature="i,s")


def test_shape_of_statement_followed_by_another_is_none() -> None:
    assert plain_insert("INSERT INTO t VALUES (1); DROP TABLE t", Context()) is None
    assert plain_insert("INSERT INTO t VALUES (1) x", Context()) is None


ROWS = st.lists(
    st.tuples(st.sampled_from(sorted(LITERALS)), st.sampled_from(["NULL", "1", "2.5", "'a'"])),
    min_size=1,
    max_size=3,
)


def text(rows: list[tuple[str, str]]) -> list[str]:
    return [f"({', '.join(row)})" for row in rows]


@given(ROWS, ROWS)
def test_combining_equal_signatures_keeps_the_signature(
    left: list[tuple[str, str]], right: list[tuple[str, str]]
) -> None:
    one, other = signature(*text(left)), signature(*text(right))
    if one is not None and one == other:
        assert signature(*text(left), *text(right)) == one


@given(ROWS, ROWS)
def test_combined_signature_is_that_of_all_rows(
    left: list[tuple[str, str]], right: list[tuple[str, str]]
) -> None:
    one, other = signature(*text(left)), signature(*text(right))
    if one is None or other is None:
        return
    both = combined_signature(one, other)
    if both is not None:
        assert signature(*text(left), *text(right)) == both
        assert all(
            kind in (merged, "n")
            for kind, merged in zip(one.split(","), both.split(","), strict=True)
        )


def test_combined_signature_accepts_null_with_any_type_but_no_two_types() -> None:
    assert combined_signature("i,n", "n,s") == "i,s"
    assert combined_signature("i", "l") is None
    assert combined_signature("d1", "d2") is None
    assert combined_signature("i", "i,i") is None


@given(st.text(max_size=40), st.integers(-(2**70), 2**70))
def test_insert_of_any_string_and_number_has_a_shape(string: str, number: int) -> None:
    string = string.replace("\0", "")  # refused, wherever it stands
    literal = "'" + string.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\$") + "'"
    sql = f"INSERT INTO t VALUES ({literal}, {number}), ({literal}, NULL)"
    assume(not may_write_time_of_day(sql, 0, len(sql)))
    found = shape(sql)
    assert found is not None
    assert (found.rows, found.signature[:2]) == (2, "s,")


@pytest.mark.parametrize(
    "literal", [r"'\\\\host\\share'", r"'\'quoted\''", r"'\$1'", "'noon'", "'1 a.m.'"]
)
def test_insert_of_string_that_is_no_time_of_day_has_a_shape(literal: str) -> None:
    assert shape(f"INSERT INTO t VALUES ({literal}, 1)") is not None


@pytest.mark.parametrize(
    "literal", ["'12:30'", r"'\u0031:30'", r"'\061:30'", r"'1\u003a30'", "' T12'"]
)
def test_insert_of_string_that_may_be_a_time_of_day_has_no_shape(literal: str) -> None:
    assert shape(f"INSERT INTO t VALUES ({literal}, 1)") is None
