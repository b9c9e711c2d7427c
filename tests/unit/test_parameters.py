"""Tests of parameters: bound to markers, typed, and refused with the parameter's name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.classify.model import RefusedError
from haproc.classify.tokens import Token, TokenKind, tokenize
from haproc.pin import parameters
from haproc.pin.parameters import Parameter, Parameters, bind, expand_rows, parse_parameters


def positional(*values: tuple[Any, str | None]) -> Parameters:
    return tuple(Parameter(None, value, kind) for value, kind in values)


def named(**values: tuple[Any, str | None]) -> Parameters:
    return tuple(Parameter(name, value, kind) for name, (value, kind) in values.items())


def literal_of(value: Any, kind: str | None) -> str:
    return bind("SELECT ?", positional((value, kind))).removeprefix("SELECT ")


LITERALS = [
    ("abc", None, "'abc'"),
    ("it's", "STRING", r"'it\'s'"),
    ("back\\slash", "STRING", r"'back\\slash'"),
    ("line\nfeed\r\t", "STRING", r"'line\nfeed\r\t'"),
    ("nul\0", "STRING", r"'nul\u0000'"),
    ("${env:HOME}", "STRING", r"'\u0024{env:HOME}'"),
    ("costs $5", "STRING", "'costs $5'"),
    ("😀 ü", "STRING", "'😀 ü'"),
    ("12", "INT", "12"),
    (" -12 ", "INT", "-12"),
    ("12", "BIGINT", "12L"),
    ("12", "LONG", "12L"),
    ("-9223372036854775808", "BIGINT", "-9223372036854775808L"),
    ("1", "TINYINT", "1Y"),
    ("1", "BYTE", "1Y"),
    ("1", "SMALLINT", "1S"),
    ("true", "BOOLEAN", "TRUE"),
    ("F", "BOOLEAN", "FALSE"),
    ("1.50", "DECIMAL(3,2)", "1.50"),
    ("1.5", "DECIMAL(3,2)", "1.50"),
    ("1.5", "DECIMAL(10,2)", "CAST(1.50 AS DECIMAL(10,2))"),
    ("12.50", "DECIMAL", "12.50"),
    ("7", "DECIMAL(1,0)", "7BD"),
    ("-0.05", "DECIMAL(2,2)", "-0.05"),
    ("1e3", "DECIMAL(4,0)", "1000BD"),
    ("0", "DECIMAL(10,2)", "CAST(0.00 AS DECIMAL(10,2))"),
    ("1.5", "DOUBLE", "1.5D"),
    ("-0.0", "DOUBLE", "-0.0D"),
    ("1e300", "DOUBLE", "1E300D"),
    ("5e-324", "DOUBLE", "5E-324D"),
    ("NaN", "DOUBLE", "CAST('NaN' AS DOUBLE)"),
    ("-Infinity", "DOUBLE", "CAST('-Infinity' AS DOUBLE)"),
    ("0.1", "FLOAT", "0.1F"),
    ("3.4028234663852886e38", "FLOAT", "3.4028234663852886E38F"),
    ("2026-01-01", "DATE", "DATE '2026-01-01'"),
    ("0001-01-01", "DATE", "DATE '0001-01-01'"),
    ("9999-12-31", "DATE", "DATE '9999-12-31'"),
    ("2026-01-01 10:11:12", "TIMESTAMP", "TIMESTAMP '2026-01-01 10:11:12'"),
    ("2026-01-01T10:11:12.5Z", "TIMESTAMP", "TIMESTAMP '2026-01-01 10:11:12.500000 Z'"),
    ("2026-01-01 10:11:12+02:00", "TIMESTAMP_LTZ", "TIMESTAMP_LTZ '2026-01-01 10:11:12+02:00'"),
    ("2026-01-01", "TIMESTAMP_NTZ", "TIMESTAMP_NTZ '2026-01-01 00:00:00'"),
    ("AP8=", "BINARY", "X'00FF'"),
    ("", "BINARY", "X''"),
    ("1 02:03:04.5", "INTERVAL DAY TO SECOND", "INTERVAL '1 02:03:04.500000' DAY TO SECOND"),
    ("-1-2", "INTERVAL YEAR TO MONTH", "INTERVAL '-1-2' YEAR TO MONTH"),
    ("3", "INTERVAL MONTH", "CAST(INTERVAL '0-3' YEAR TO MONTH AS INTERVAL MONTH)"),
    ("INTERVAL '3' DAY", "INTERVAL", "CAST(INTERVAL '3 00:00:00' DAY TO SECOND AS INTERVAL DAY)"),
    ("3 hours", "INTERVAL", "CAST(INTERVAL '0 03:00:00' DAY TO SECOND AS INTERVAL HOUR)"),
    (None, None, "NULL"),
    (None, "VOID", "NULL"),
    (None, "INT", "CAST(NULL AS INT)"),
    ([1, None], "ARRAY<INT>", "array(1, CAST(NULL AS INT))"),
    ("[1, 2]", "ARRAY<INT>", "array(1, 2)"),
    ([], "ARRAY<INT>", "CAST(array() AS ARRAY<INT>)"),
    ({"a": 1}, "MAP<STRING,INT>", "map('a', 1)"),
    ([[1, "x"]], "MAP<INT,STRING>", "map(1, 'x')"),
    ({}, "MAP<STRING,INT>", "CAST(map() AS MAP<STRING, INT>)"),
    ({"a": "1.5"}, "STRUCT<a: DECIMAL(2,1)>", "named_struct('a', 1.5)"),
    ({"a": "x"}, "STRUCT<a: STRING, b: INT>", "named_struct('a', 'x', 'b', CAST(NULL AS INT))"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "kind", "expected"), LITERALS)
def test_bind_value_of_each_type_gives_its_plainest_literal(
    value: Any, kind: str | None, expected: str
) -> None:
    assert literal_of(value, kind) == expected


WRONG = [
    ("twelve", "INT"),
    ("1.0", "INT"),
    ("١٢", "INT"),
    ("128", "TINYINT"),
    ("2147483648", "INT"),
    ("9223372036854775808", "LONG"),
    ("maybe", "BOOLEAN"),
    ("1.234", "DECIMAL(10,2)"),
    ("100", "DECIMAL(2,0)"),
    ("1e400", "DOUBLE"),
    ("1e39", "FLOAT"),
    ("NaN", "DECIMAL(3,2)"),
    ("2026-02-30", "DATE"),
    ("today", "DATE"),
    ("0000-01-01", "DATE"),
    ("2026-01-01 25:00:00", "TIMESTAMP"),
    ("now", "TIMESTAMP"),
    ("2026-01-01 00:00:00Z", "TIMESTAMP_NTZ"),
    ("2026-01-01 00:00:00' OR '1'='1", "TIMESTAMP"),
    ("not base64!", "BINARY"),
    ("25:00", "INTERVAL MINUTE"),
    ("1 25:00:00", "INTERVAL DAY TO SECOND"),
    ("5", "INTERVAL"),
    ("106751992 00:00:00", "INTERVAL DAY TO SECOND"),
    ("\ud800", "STRING"),
    ("x", "VOID"),
    ("x", "STRUCT<a INT"),
    ("x", "INT); DROP TABLE t; --"),
    ("[1", "ARRAY<INT>"),
    (["x"], "ARRAY<INT>"),
    ({"b": 1}, "STRUCT<a: INT>"),
    ([[None, 1]], "MAP<STRING,INT>"),
    ([["a", 1], ["a", 2]], "MAP<STRING,INT>"),
    (True, "BOOLEAN"),
    (12, "INT"),
]


@pytest.mark.parametrize(("value", "kind"), WRONG)
def test_bind_value_that_does_not_fit_its_type_is_refused_by_name(value: Any, kind: str) -> None:
    with pytest.raises(RefusedError, match="parameter 'limit'") as caught:
        bind("SELECT :limit", named(limit=(value, kind)))
    assert caught.value.error_class == "HAPROC_PARAMETERS"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT ?", "SELECT 7"),
        ("SELECT '?', \"?\", `?`, ? -- ?\n /* ? */", "SELECT '?', \"?\", `?`, 7 -- ?\n /* ? */"),
        ("SELECT /*+ BROADCAST(?) */ ?", "SELECT /*+ BROADCAST(?) */ 7"),
        ("SELECT r'\\?', ?", "SELECT r'\\?', 7"),
        ("SELECT x::int, ?::string", "SELECT x::int, 7::string"),
        ("SELECT 5-?", "SELECT 5- 7"),
        ("SELECT?FROM t", "SELECT 7 FROM t"),
        ("SELECT * FROM t LIMIT ?", "SELECT * FROM t LIMIT 7"),
        ("CREATE TABLE t (a INT DEFAULT ?)", "CREATE TABLE t (a INT DEFAULT 7)"),
    ],
)
def test_bind_positional_parameter_replaces_only_markers(sql: str, expected: str) -> None:
    assert bind(sql, positional(("7", "INT"))) == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT :x, ':x', `:x` /* :x */", "SELECT 7, ':x', `:x` /* :x */"),
        ("SELECT a FROM t WHERE a=:x AND b = :x", "SELECT a FROM t WHERE a=7 AND b = 7"),
        ("SELECT col:path, :x", "SELECT col:path, 7"),
        ("SELECT CAST(:x AS STRUCT<a :INT>)", "SELECT CAST(7 AS STRUCT<a :INT>)"),
        ("SELECT a < :x, struct < :x FROM t", "SELECT a < 7, struct < 7 FROM t"),
        ("SELECT IDENTIFIER(:x)", "SELECT IDENTIFIER(7)"),
    ],
)
def test_bind_named_parameter_replaces_only_markers(sql: str, expected: str) -> None:
    assert bind(sql, named(x=("7", "INT"))) == expected


@pytest.mark.parametrize(
    ("sql", "parameters", "message"),
    [
        ("SELECT ?", (), "1 markers"),
        ("SELECT :x", (), ":x was not given"),
        ("SELECT ?, ?", positional(("1", "INT")), "2 markers"),
        ("SELECT ?", positional(("1", "INT"), ("2", "INT")), "1 markers"),
        ("SELECT 1", positional(("1", "INT")), "0 markers"),
        ("SELECT :a", named(b=("1", "INT")), ":a was not given"),
        ("SELECT :a", named(a=("1", "INT"), b=("1", "INT")), "'b' is not in the statement"),
        ("SELECT 1", named(a=("1", "INT")), "'a' is not in the statement"),
        ("SELECT ?, :a", named(a=("1", "INT")), "both"),
        ("SELECT ?", named(a=("1", "INT")), "have names"),
        ("SELECT :a", positional(("1", "INT")), "no names"),
        (
            "SELECT :a",
            (Parameter("a", "1"), Parameter(None, "2")),
            "some have none",
        ),
        ("SELECT :a", (Parameter("a", "1"), Parameter("a", "2")), "same name"),
        ("SELECT 'open, ?", positional(("1", "INT")), "not closed"),
    ],
)
def test_bind_parameters_that_do_not_fit_the_statement_are_refused(
    sql: str, parameters: Parameters, message: str
) -> None:
    with pytest.raises(RefusedError, match=re.escape(message)) as caught:
        bind(sql, parameters)
    assert caught.value.error_class == "HAPROC_PARAMETERS"


def test_bind_without_markers_returns_the_statement() -> None:
    assert bind("SELECT a:b, x::int FROM t", ()) == "SELECT a:b, x::int FROM t"


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_bind_any_text_stays_one_string_token(text: str) -> None:
    bound = bind("SELECT ? , 1", positional((text, "STRING")))
    kinds = [token.kind for token in tokenize(bound)]
    assert kinds == [
        TokenKind.WORD,
        TokenKind.STRING,
        TokenKind.SYMBOL,
        TokenKind.NUMBER,
    ]
    assert "${" not in bound


@given(
    st.sampled_from(["INT", "DOUBLE", "DECIMAL(10,2)", "DATE", "TIMESTAMP", "BINARY", "INTERVAL"]),
    st.text(),
)
def test_bind_hostile_value_is_refused_or_stays_a_value(kind: str, text: str) -> None:
    try:
        bound = bind("SELECT ? , 1", positional((text, kind)))
    except RefusedError:
        return
    assert not {"FROM", "SELECT", "DROP"} & {t.upper for t in list(tokenize(bound))[1:]}
    assert bound.endswith(" , 1")


@pytest.mark.parametrize(
    "body",
    [
        {"name": "x"},
        ["x"],
        [{"name": "x", "value": "1", "kind": "INT"}],
        [{"name": "", "value": "1"}],
        [{"name": "x", "value": 1, "type": "INT"}],
        [{"name": "x", "value": "1", "type": 5}],
        [{"name": "x", "value": "1", "type": "WHATEVER"}],
    ],
)
def test_parse_parameters_of_a_wrong_body_is_refused(body: Any) -> None:
    with pytest.raises(RefusedError) as caught:
        parse_parameters(body)
    assert caught.value.error_class == "HAPROC_PARAMETERS"


def test_parse_parameters_accepts_the_documented_form() -> None:
    body = [{"name": "a", "value": "1", "type": "INT"}, {"name": "b", "value": None}, {"name": "c"}]
    assert bind("SELECT :a, :b, :c", parse_parameters(body)) == "SELECT 1, NULL, NULL"
    assert parse_parameters(None) == ()


def test_expand_rows_repeats_the_row_for_each_parameter_set() -> None:
    rows = [positional((str(i), "INT"), (f"n{i}", None)) for i in range(3)]
    expanded = "(0, upper('n0')), (1, upper('n1')), (2, upper('n2'))"
    assert (
        expand_rows("INSERT INTO t (a, b) VALUES (?, upper(?)); -- end", rows)
        == f"INSERT INTO t (a, b) VALUES {expanded}; -- end"
    )


def test_expand_rows_accepts_a_repeated_named_parameter() -> None:
    rows = [named(a=("1", "INT")), named(a=("2", "INT"))]
    assert expand_rows("insert into t values(:a, :a)", rows) == (
        "insert into t values(1, 1), (2, 2)"
    )


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (?), (?)",
        "INSERT INTO t SELECT ?",
        "INSERT INTO t VALUES (?) LIMIT 1",
        "INSERT INTO t PARTITION (p = ?) VALUES (1)",
        "INSERT INTO t VALUES ?",
        "UPDATE t SET a = ?",
        "VALUES (?)",
        "",
        "INSERT INTO t FROM s SELECT ?",
        "INSERT INTO t VALUES (?",
        "INSERT INTO t VALUES (?); DROP TABLE t",
    ],
)
def test_expand_rows_of_other_statements_is_refused(sql: str) -> None:
    with pytest.raises(RefusedError) as caught:
        expand_rows(sql, [positional(("1", "INT"))])
    assert caught.value.error_class == "HAPROC_PARAMETERS"


def test_expand_rows_names_the_row_with_a_wrong_value() -> None:
    with pytest.raises(RefusedError, match="parameter 1 in row 2"):
        expand_rows(
            "INSERT INTO t VALUES (?)", [positional(("1", "INT")), positional(("x", "INT"))]
        )
    with pytest.raises(RefusedError, match="no rows"):
        expand_rows("INSERT INTO t VALUES (?)", [])


def test_expand_rows_reads_its_statement_equally_often_for_any_number_of_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise thousands of rows would take as long as thousands of statements."""
    texts: list[str] = []

    def counted(sql: str) -> Iterator[Token]:
        texts.append(sql)
        return tokenize(sql)

    monkeypatch.setattr(parameters, "tokenize", counted)
    row = positional(("1", "INT"), ("name", "STRING"), ("1.50", "DECIMAL(3,2)"))
    counts = []
    for rows in (1, 1000):
        texts.clear()
        expand_rows("INSERT INTO t VALUES (?, ?, ?)", [row] * rows)
        counts.append(len(texts))
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("kind", ["DECIMAL(38,2)", "DOUBLE", "INT", "DATE", "TIMESTAMP", "BOOLEAN"])
def test_bind_number_with_very_many_digits_is_refused(kind: str) -> None:
    value = {"value": "1" * 10_000, "type": kind}
    with pytest.raises(RefusedError, match="is not a value of type"):
        bind("SELECT ?", parse_parameters([value]))


@pytest.mark.parametrize("text", ["now", "today 12:00", "2026-01-31 12:00 x"])
def test_bind_invalid_timestamp_is_refused_with_the_expected_form(text: str) -> None:
    with pytest.raises(RefusedError, match=r"TIMESTAMP: write yyyy-mm-dd hh:mm:ss\[\.ffffff\] and"):
        literal_of(text, "TIMESTAMP")


@pytest.mark.parametrize(
    ("sql", "bound"),
    [
        ("SELECT :`x`", "SELECT 1"),
        ("INSERT INTO t SELECT :`x`, a", "INSERT INTO t SELECT 1, a"),
        ("SELECT j:`x` FROM t WHERE a = :x", "SELECT j:`x` FROM t WHERE a = 1"),
        ("SELECT ':`x`', `:x`, :`x` -- :`x`", "SELECT ':`x`', `:x`, 1 -- :`x`"),
    ],
)
def test_marker_name_may_be_quoted(sql: str, bound: str) -> None:
    assert bind(sql, named(x=("1", "INT"))) == bound


def test_quoted_marker_name_may_contain_any_character() -> None:
    quoted_name = (Parameter("a b`c", "1", "INT"),)
    assert bind("SELECT :`a b``c`", quoted_name) == "SELECT 1"
