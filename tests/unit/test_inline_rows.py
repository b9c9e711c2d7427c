"""Items of VALUES, which Spark computes before it shows a plan."""

from __future__ import annotations

import pytest

from haproc.pin.scan import Scan
from haproc.witness.inline import made_items, may_make_text, shown
from haproc.witness.probes import UnclearError


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
        ("INSERT INTO t VALUES 1, 'a', NULL", []),
        ("SELECT a FROM VALUES 1, 2 AS q(a) WHERE f(a)", []),
    ],
)
def test_items_that_are_no_literals_are_asked_about(sql: str, items: list[str]) -> None:
    assert made_items(Scan(sql)) == items
    query = f"SELECT {', '.join(f'({each})' for each in items)}"
    assert shown(Scan(sql)) == ([query] if items else [])


@pytest.mark.parametrize("sql", ["SELECT * FROM VALUES f(1), 2", "INSERT INTO t TABLE VALUES (1)"])
def test_rows_without_parentheses_are_literals(sql: str) -> None:
    if "f(1)" in sql:
        with pytest.raises(UnclearError):
            made_items(Scan(sql))
    else:
        assert made_items(Scan(sql)) == []


@pytest.mark.parametrize(
    ("item", "expected"),
    [
        ("'10:00'", False),
        ("abs(-1) * 2", False),
        ("concat('10', ':00')", True),
        ("'T' || '10'", True),
        ("chr(58)", True),
        ("abs(a(1))", True),
        ("CASE WHEN 1 = 1 THEN 'a' END", True),
    ],
)
def test_item_of_numbers_makes_no_text(item: str, expected: bool) -> None:
    assert may_make_text(Scan(f"INSERT INTO t VALUES (1, {item})")) is expected
