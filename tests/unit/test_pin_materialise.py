"""Rows of a query as the text of an equivalent query."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from haproc.classify.model import RefusedError
from haproc.pin.materialise import Limits, QueryColumn, fetch_query, materialised, query_of_rows
from haproc.pin.model import Source

DAY_MICROS = 86_400_000_000


def one_column(values: list[Any], arrow: pa.DataType, type_text: str) -> str:
    """Return the rows of a table of one column as they are written."""
    table = pa.table([pa.array(values, arrow)], ["a"])
    text = query_of_rows(table, [QueryColumn("a", type_text)], Limits())
    return text.partition(" FROM VALUES ")[2].removesuffix(" AS q(c1)")


@pytest.mark.parametrize(
    ("values", "arrow", "type_text", "expected"),
    [
        ([1, None], pa.int32(), "int", "(1), (NULL)"),
        ([1], pa.int64(), "bigint", "(1L)"),
        ([Decimal("1.50")], pa.decimal128(10, 2), "decimal(10,2)", "(1.50)"),
        (["a'b"], pa.string(), "string", r"('a\'b')"),
        ([b"\x00"], pa.binary(), "binary", "(X'00')"),
        ([True], pa.bool_(), "boolean", "(TRUE)"),
        ([0.1], pa.float32(), "float", "(0.1F)"),
        ([date(1, 1, 1)], pa.date32(), "date", "(DATE '0001-01-01')"),
        (
            [datetime(2026, 1, 1, 1)],
            pa.timestamp("us", "Europe/Berlin"),
            "timestamp",
            "(TIMESTAMP '2026-01-01 01:00:00+00:00')",
        ),
        (
            [datetime(2026, 1, 1, 1)],
            pa.timestamp("us"),
            "timestamp_ntz",
            "(TIMESTAMP_NTZ '2026-01-01 01:00:00')",
        ),
        (
            [timedelta(days=1, microseconds=5)],
            pa.duration("us"),
            "interval day to second",
            "(INTERVAL '1 00:00:00.000005' DAY TO SECOND)",
        ),
        (
            ["INTERVAL '-1-2' YEAR TO MONTH"],
            pa.string(),
            "interval year to month",
            "(INTERVAL '-1-2' YEAR TO MONTH)",
        ),
        (['{"a":1}'], pa.string(), "variant", "('{\"a\":1}')"),
        ([[1, None]], pa.list_(pa.int32()), "array<int>", "(array(1, CAST(NULL AS INT)))"),
        (
            [[date(2026, 1, 1)]],
            pa.list_(pa.date32()),
            "array<date>",
            "(array(DATE '2026-01-01'))",
        ),
        ([[("a", 1)]], pa.map_(pa.string(), pa.int32()), "map<string,int>", "(map('a', 1))"),
        ([{"x y": 1}], pa.struct([("x y", pa.int32())]), "struct<x y:int>",
         "(named_struct('x y', 1))"),
        ([None], pa.null(), "void", "(NULL)"),
    ],
)  # fmt: skip
def test_query_of_rows_each_type_gives_typed_literals(
    values: list[Any], arrow: pa.DataType, type_text: str, expected: str
) -> None:
    assert one_column(values, arrow, type_text) == expected


def test_query_of_rows_years_beyond_python_are_written() -> None:
    days = pa.array([2_932_897, -800_000], pa.int32()).cast(pa.date32())
    table = pa.table([days], ["a"])
    text = query_of_rows(table, [QueryColumn("a", "date")], Limits())
    assert "(DATE '+10000-01-01'), (DATE '-0221-09-04')" in text


def test_query_of_rows_nested_years_beyond_python_are_refused() -> None:
    micros = pa.array([2_932_897 * DAY_MICROS], pa.int64()).cast(pa.timestamp("us", "UTC"))
    table = pa.table([pa.ListArray.from_arrays([0, 1], micros)], ["a"])
    with pytest.raises(RefusedError) as caught:
        query_of_rows(table, [QueryColumn("a", "array<timestamp>")], Limits())
    assert caught.value.error_class == "HAPROC_CANNOT_MATERIALISE"


def test_materialised_keeps_head_names_and_types() -> None:
    rows = pa.table([pa.array([1]), pa.array([None], pa.string())], ["x", "y"])
    columns = [QueryColumn("a `b`", "int"), QueryColumn("c", "string")]
    text = materialised(Source("INSERT INTO t BY NAME ", "SELECT …"), rows, columns)
    assert text == (
        "INSERT INTO t BY NAME SELECT CAST(c1 AS INT) AS `a ``b```, CAST(c2 AS STRING) AS `c` "
        "FROM VALUES (1, NULL) AS q(c1, c2)"
    )


def test_materialised_no_rows_keeps_names_and_types() -> None:
    rows = pa.table([pa.array([], pa.int32())], ["a"])
    text = materialised(Source("CREATE TABLE t AS ", "…"), rows, [QueryColumn("a", "int")])
    assert text == (
        "CREATE TABLE t AS SELECT CAST(c1 AS INT) AS `a` FROM VALUES (NULL) AS q(c1) WHERE FALSE"
    )


@pytest.mark.parametrize("limits", [Limits(rows_max=2), Limits(bytes_max=20), Limits(bytes_max=60)])
def test_materialised_too_much_is_refused(limits: Limits) -> None:
    rows = pa.table([pa.array(["''''''''''"] * 3)], ["a"])
    with pytest.raises(RefusedError) as caught:
        materialised(Source("INSERT INTO t ", "…"), rows, [QueryColumn("a", "string")], limits)
    assert caught.value.error_class == "HAPROC_TOO_LARGE_TO_MATERIALISE"


@pytest.mark.parametrize("type_text", ["interval", "geography", "struct<", "map<int>"])
def test_materialised_type_without_literals_is_refused(type_text: str) -> None:
    rows = pa.table([pa.array(["x"])], ["a"])
    with pytest.raises(RefusedError) as caught:
        materialised(Source("INSERT INTO t ", "…"), rows, [QueryColumn("a", type_text)])
    assert caught.value.error_class == "HAPROC_CANNOT_MATERIALISE"


def test_fetch_query_asks_for_text_where_arrow_has_no_type() -> None:
    columns = [
        QueryColumn("a", "int"),
        QueryColumn("b", "interval year"),
        QueryColumn("c", "variant"),
    ]
    assert fetch_query("SELECT 1", columns[:1]) == "SELECT 1"
    assert fetch_query("SELECT …", columns) == (
        "SELECT c1, CAST(c2 AS STRING) AS c2, to_json(c3) AS c3 "
        "FROM (\nSELECT …\n) AS q(c1, c2, c3)"
    )
