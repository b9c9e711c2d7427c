"""Items of VALUES, which Spark computes before it shows a plan."""

from __future__ import annotations

import pytest

from haproc.pin.inline import UnclearError, doubtful, made_items, rows_in, shown
from haproc.pin.scan import Scan


@pytest.mark.parametrize(
    ("sql", "items"),
    [
        ("INSERT INTO t VALUES (1, -2.5, 'a' 'b', NULL, DATE '2024-01-01', X'00', DEFAULT)", []),
        ("INSERT INTO t VALUES (1, f(x, (2))), (f(x, (2)), 1 + 1)", ["f(x, (2))", "1 + 1"]),
        ("INSERT INTO t (a) VALUES ('a' || 'b')", ["'a' || 'b'"]),
        ("SELECT * FROM VALUES (1), (abs(2)) AS q(a), VALUES (g()) r", ["abs(2)", "g()"]),
        ("INSERT INTO t SELECT 'VALUES (f())', `values`, values FROM values v", []),
        (
            "MERGE INTO t USING s ON a = b WHEN NOT MATCHED THEN INSERT (a, b) VALUES (s.a, f(b))",
            [],
        ),
        ("MERGE INTO t USING s ON a = b WHEN NOT MATCHED THEN INSERT VALUES (s.a, f(b))", []),
        ("INSERT INTO insert (a) VALUES (f())", ["f()"]),
        ("INSERT INTO t VALUES (1 AS a, f(1) AS `b c`, 'x' AS c)", ["f(1)"]),
        ("INSERT INTO t VALUES 1, 'a', NULL", []),
        ("SELECT a FROM VALUES 1, 2 AS q(a) WHERE f(a)", []),
    ],
)
def test_items_that_are_no_literals_are_asked_about(sql: str, items: list[str]) -> None:
    assert made_items(Scan(sql)) == items
    query = f"SELECT {', '.join(f'({each})' for each in items)}"
    assert shown(Scan(sql)) == ([query] if items else [])


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM VALUES f(1), 2",
        "INSERT INTO t VALUES concat('10', ':00')",
        "INSERT INTO t VALUES CASE WHEN true THEN '10:00' END",
        "INSERT INTO t VALUES INTERVAL 1 HOUR",
        "INSERT INTO t VALUES ('10') || ':00'",
        "INSERT INTO t VALUES '10' || ':00'",
        "INSERT INTO t VALUES (1, 'a'), struct(2, concat('10', ':00'))",
        "INSERT INTO t VALUES ('10') COLLATE UTF8_LCASE",
        "INSERT INTO t VALUES ('a'), (b)['c']",
    ],
)
def test_row_that_does_not_stand_in_parentheses_as_a_whole_is_a_literal(sql: str) -> None:
    with pytest.raises(UnclearError):
        made_items(Scan(sql))


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t TABLE VALUES (1)",
        "SELECT values, values.a, f(values), -values FROM values v",
        "SELECT a FROM t ORDER BY values DESC",
        "SELECT values * 2, values IS NULL FROM t WHERE values NOT IN (f(1))",
        "SELECT * FROM (VALUES 1, 2) JOIN VALUES ('a') AS q(a) ON f(a)",
    ],
)
def test_name_and_literals_are_no_rows_to_ask_about(sql: str) -> None:
    assert made_items(Scan(sql)) == []


def test_rows_within_rows_are_shown_with_them() -> None:
    deep = "INSERT INTO t VALUES ((SELECT * FROM VALUES (f('a'), 1)))"
    assert made_items(Scan(deep)) == ["(SELECT * FROM VALUES (f('a'), 1))"]


def test_arguments_of_range_are_asked_about() -> None:
    sql = (
        "WITH range (x) AS (SELECT 1) SELECT * FROM range(0, 10), "
        "system.builtin.range(f(a(), b())) JOIN (range(g(1))) AS range(d) JOIN range"
    )
    assert made_items(Scan(sql)) == ["f(a(), b())", "g(1)"]


NONE = frozenset[int]()


@pytest.mark.parametrize(
    ("item", "may_be"),
    [
        ("'10:00'", "text"),
        ("abs(-1) * 2", ""),
        ("TIMESTAMP '2024-01-01 10:00:00'", "moment"),
        ("DATE '2024-01-01'", ""),
        ("concat('10', ':00')", "text moment"),
        ("'T' || '10'", "text moment"),
        ("chr(58)", "text moment"),
        ("abs(a(1))", "text moment"),
        ("CASE WHEN 1 = 1 THEN 'a' END", "text moment"),
        ("DATE '2024-01-01' + INTERVAL 1 HOUR", "text moment"),
    ],
)
def test_columns_of_rows_may_hold_what_their_items_are(item: str, may_be: str) -> None:
    """And no others: a computed item says nothing of the one beside it."""
    (rows,) = rows_in(Scan(f"INSERT INTO t VALUES ('2024-01-01 10:00:00', {item}), ('a', 1)"))
    second = frozenset({1})
    assert rows.width == 2
    assert rows.texts == (second if "text" in may_be else NONE)
    assert rows.moments == (second if "moment" in may_be else NONE)


def test_rows_are_told_from_others_by_their_width() -> None:
    scan = Scan("SELECT * FROM VALUES ('10:00', 1) AS q(a, b), VALUES (1, 2, 3) AS r(a, b, c)")
    assert doubtful(rows_in(scan), 2).texts == {0}
    assert doubtful(rows_in(scan), 3).texts == NONE
    assert doubtful(rows_in(scan), 4).texts == {0, 1, 2, 3}
    assert doubtful(None, 2).moments == {0, 1}
    for row in ("(struct(1, f()))", "((1, f()))"):  # each of them is two columns
        assert doubtful(rows_in(Scan(f"INSERT INTO t VALUES {row}")), 2).texts == {0, 1}
    assert doubtful(rows_in(Scan("INSERT INTO t VALUES ((1 + 2) * 3)")), 1).texts == NONE
