"""JSON_ARRAY: every Arrow type's values as text."""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.engine.arrow import retyped
from haproc.engine.interface import Column
from haproc.statements.json_rows import dumps, rows_of, texts
from haproc.statements.plain_arrow import columns_of, manifest_column, text_of
from haproc.statements.store import _json_joined
from tests.unit.test_haclient_values import YEAR_MONTHS

UTC = dt.UTC
D = decimal.Decimal


@pytest.mark.parametrize(
    ("kind", "values", "written"),
    [
        (pa.int8(), [1, None, -128], ["1", None, "-128"]),
        (pa.int64(), [2**63 - 1], ["9223372036854775807"]),
        (pa.bool_(), [True, False, None], ["true", "false", None]),
        (pa.float64(), [1.0, 0.1, 1e300, None], ["1.0", "0.1", "1e+300", None]),
        (
            pa.float64(),
            [float("nan"), float("inf"), -float("inf")],
            ["NaN", "Infinity", "-Infinity"],
        ),
        (pa.float32(), [0.1], ["0.1"]),
        (pa.string(), ['ü\n"\\', "", None], ['ü\n"\\', "", None]),
        (pa.large_string(), ["x"], ["x"]),
        (pa.binary(), [b"\x00\xff", None], ["AP8=", None]),
        (
            pa.decimal128(20, 7),
            [D("1.1"), D("0"), D("-0.0000001")],
            ["1.1000000", "0.0000000", "-0.0000001"],
        ),
        (pa.date32(), [dt.date(2026, 1, 31), None], ["2026-01-31", None]),
        (
            pa.timestamp("us", "Europe/Zurich"),
            [dt.datetime(2026, 1, 1, 12, tzinfo=UTC), dt.datetime(1, 1, 1, 0, 0, 0, 5, UTC)],
            ["2026-01-01T12:00:00.000Z", "0001-01-01T00:00:00.000005Z"],
        ),
        (
            pa.timestamp("us"),
            [dt.datetime(2026, 1, 1, 12, 0, 0, 120000), None],
            ["2026-01-01T12:00:00.120", None],
        ),
        (
            pa.duration("us"),
            [dt.timedelta(days=1, seconds=2), dt.timedelta(microseconds=-1)],
            ["1 00:00:02.000000", "-0 00:00:00.000001"],
        ),
        (pa.null(), [None, None], [None, None]),
        (pa.list_(pa.int32()), [[1, None], [], None], ["[1,null]", "[]", None]),
        (pa.list_(pa.float64()), [[1.5, float("nan")]], ['[1.5,"NaN"]']),
        (
            pa.list_(pa.timestamp("us", "UTC")),
            [[dt.datetime(2026, 1, 1, tzinfo=UTC)]],
            ['["2026-01-01T00:00:00.000Z"]'],
        ),
        (
            pa.struct({"a": pa.int32(), "b": pa.string()}),
            [{"a": 1, "b": "x"}, None],
            ['{"a":1,"b":"x"}', None],
        ),
        (pa.struct({"d": pa.decimal128(4, 2)}), [{"d": D("1.5")}], ['{"d":"1.50"}']),
        (pa.map_(pa.string(), pa.int32()), [[("k", 1)], [], None], ['{"k":1}', "{}", None]),
        (pa.map_(pa.int32(), pa.list_(pa.bool_())), [[(1, [True])]], ['{"1":[true]}']),
        (
            pa.list_(pa.struct({"b": pa.binary()})),
            [[{"b": b"\xff"}, None]],
            ['[{"b":"/w=="},null]'],
        ),
    ],
)
def test_values_of_every_arrow_type_have_their_text(
    kind: pa.DataType, values: list[Any], written: list[Any]
) -> None:
    array = pa.array(values, kind)
    assert texts(array, kind) == written
    padded = pa.concat_arrays([pa.nulls(2, kind), array, pa.nulls(1, kind)])
    assert texts(padded.slice(2, len(values)), kind) == written


def test_values_of_a_year_month_interval_have_their_text() -> None:
    # pyarrow reads the type, but has no function to make it.
    kind = pa.ipc.open_stream(base64.b64decode(YEAR_MONTHS)).schema.field("a").type
    months = pa.array([14, None, -1], pa.int32())
    nested = pa.array([[1], None, [12, None]], pa.list_(pa.int32()))
    names = ["m", "l"]
    plain = pa.RecordBatch.from_arrays([months, nested], names)
    schema = pa.schema([pa.field("m", kind), pa.field("l", pa.list_(kind))])
    batch = retyped(plain, schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch)
    rows = rows_of(sink.getvalue().to_pybytes())[1]
    assert rows == [("1-2", '["0-1"]'), (None, None), ("-0-1", '["1-0",null]')]
    assert text_of(kind) == "interval year to month"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("bigint", "LONG"),
        ("tinyint", "BYTE"),
        ("varchar(5)", "STRING"),
        ("array<int>", "ARRAY"),
        ("struct<a:int>", "STRUCT"),
        ("map<string,int>", "MAP"),
        ("timestamp_ntz", "TIMESTAMP_NTZ"),
        ("string collate UNICODE", "STRING"),
        ("void", "NULL"),
        ("interval year", "INTERVAL"),
        ("something_new", "USER_DEFINED_TYPE"),
        ("", "USER_DEFINED_TYPE"),
    ],
)
def test_manifest_column_has_the_type_name_of_databricks(text: str, name: str) -> None:
    assert manifest_column(Column("c", text), 0)["type_name"] == name


@pytest.mark.parametrize(
    ("text", "digits"),
    [("decimal", (10, 0)), ("DECIMAL(5)", (5, 0)), ("decimal( 7 , -2 )", (7, -2)), ("int", None)],
)
def test_manifest_decimal_has_its_digits_or_sparks_default(
    text: str, digits: tuple[int, int] | None
) -> None:
    shown = manifest_column(Column("c", text), 0)
    found = (shown["type_precision"], shown["type_scale"]) if "type_scale" in shown else None
    assert found == digits


def test_manifest_interval_has_its_units() -> None:
    shown = manifest_column(Column("c", "interval day to second"), 0)
    assert shown["type_interval_type"] == "DAY TO SECOND"
    assert "type_interval_type" not in manifest_column(Column("c", "interval"), 0)


def test_columns_of_an_arrow_schema_have_type_texts_of_spark() -> None:
    schema = pa.schema(
        {
            "a b": pa.struct({"x y": pa.list_(pa.int8()), "z": pa.map_(pa.string(), pa.date32())}),
            "d": pa.decimal128(38, 18),
            "t": pa.timestamp("us", "UTC"),
            "n": pa.timestamp("us"),
        }
    )
    texts_found = [column.type_text for column in columns_of(schema)]
    assert texts_found == [
        "struct<`x y`:array<tinyint>,z:map<string,date>>",
        "decimal(38,18)",
        "timestamp",
        "timestamp_ntz",
    ]


def test_rows_of_a_table_without_columns_are_counted() -> None:
    batch = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    assert rows_of(sink.getvalue().to_pybytes())[1] == [(), ()]


_TEXT = st.none() | st.text(max_size=8)


@given(st.lists(st.lists(st.tuples(_TEXT, _TEXT), max_size=4), min_size=1, max_size=4))
def test_joined_json_parts_are_one_array(parts: list[list[tuple[str | None, str | None]]]) -> None:
    whole = json.loads(_json_joined([dumps(part) for part in parts]))
    assert whole == [list(row) for part in parts for row in part]
