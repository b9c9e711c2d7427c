"""Tests of every type of Spark's results: as JSON, as Arrow that clients can read, as a digest."""

from __future__ import annotations

import base64
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from haproc.doors.connect.digests import RowDigest
from haproc.doors.connect.messages import schema_of
from haproc.engine.arrow import as_numbers, retyped, stream_of
from haproc.failure import RequestError
from haproc.statements.json_rows import rows_of
from haproc.statements.plain_arrow import (
    NOTE,
    date_text,
    json_of,
    readable,
    text_of,
    timestamp_text,
)
from tests.unit.test_haclient_values import YEAR_MONTHS as STREAM

YEAR_MONTHS = pa.ipc.open_stream(base64.b64decode(STREAM)).schema.field("a").type
"""pyarrow can read this type, but has no function to create it."""

SIMPLE = [
    *(pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32()),
    *(pa.float64(), pa.decimal128(38, 10), pa.string(), pa.large_string(), pa.binary()),
    *(pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.duration("us")),
    *(pa.time64("ns"), pa.month_day_nano_interval(), YEAR_MONTHS),
]
VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), False),
        pa.field("metadata", pa.binary(), False, {"variant": "true"}),
    ]
)
KINDS = st.recursive(
    st.sampled_from([*SIMPLE, VARIANT]),
    lambda inner: (
        inner.map(pa.list_)
        | inner.map(lambda kind: pa.map_(pa.string(), kind))
        | st.lists(inner, max_size=3).map(
            lambda kinds: pa.struct([(f"f{at}", each) for at, each in enumerate(kinds)])
        )
    ),
    max_leaves=6,
)


def variant(value: bytes, metadata: bytes) -> dict[str, bytes]:
    return {"value": value, "metadata": metadata}


OBJECT = variant(b"\x02\x01\x00\x00\x10\x03\x03\x00\x02\x08\n\x0c\x01 \x01\x19\x00\x00\x00\x05x",
                 b"\x01\x01\x00\x01a")  # fmt: skip
"""Spark's result of parse_json('{"a":[1,2.5,"x"]}')."""


def filled(kind: pa.DataType) -> Any:
    """Return a value of a type; None for a simple type."""
    if kind == VARIANT:
        return OBJECT
    if pa.types.is_map(kind):
        return [("k", filled(kind.item_type))]
    if pa.types.is_list(kind):
        return [filled(kind.value_type), None]
    if pa.types.is_struct(kind):
        return {field.name: filled(field.type) for field in kind}
    return None


def batch_of(kind: pa.DataType) -> pa.RecordBatch:
    schema = pa.schema([("c", kind)])
    plain = as_numbers(schema)
    array = pa.array([filled(kind), None], plain.types[0])
    return retyped(pa.RecordBatch.from_arrays([array], schema=plain), schema)


@given(KINDS)
@example(pa.struct([("f0", VARIANT)]))
@example(pa.list_(pa.struct([("f0", VARIANT)])))
@settings(max_examples=60, deadline=None)
def test_type_of_any_kind_is_converted_at_any_depth(kind: pa.DataType) -> None:
    batch = batch_of(kind)
    stream = stream_of(pa.Table.from_batches([batch]))
    _, rows = rows_of(readable(stream))
    assert len(rows) == 2 and rows[1] == (None,)
    assert text_of(kind) and schema_of(batch.schema).struct.fields[0].name == "c"
    digest = RowDigest()
    digest.add_batch(batch)
    assert digest.rows == 2
    with pa.ipc.open_stream(readable(stream)) as reader:
        assert reader.read_all().num_rows == 2


def test_variant_becomes_json_text_at_any_depth_and_is_marked_in_the_metadata() -> None:
    kind = pa.struct([("v", VARIANT), ("l", pa.list_(VARIANT)), ("m", YEAR_MONTHS)])
    schema = pa.schema([("c", kind)])
    value = {"v": OBJECT, "l": [OBJECT, None], "m": 14}
    plain = pa.record_batch([pa.array([value], as_numbers(schema).types[0])], as_numbers(schema))
    stream = readable(stream_of(pa.Table.from_batches([retyped(plain, schema)])))
    with pa.ipc.open_stream(stream) as reader:
        found = reader.schema.field("c").type
    assert found.field("v").metadata == {NOTE: b"variant"} and found.field("m").type == YEAR_MONTHS
    text = '{"a":[1,2.5,"x"]}'
    (row,) = rows_of(stream)[1]
    assert json.loads(row[0] or "") == {"v": text, "l": [text, None], "m": "1-2"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"\x00", "null"),
        (b"\x04", "true"),
        (b"\x0c\xff", "-1"),
        (b"\x1c\x00\x00\x00\x00\x00\x00\xf0\x3f", "1.0"),
        (b"\x1c\x00\x00\x00\x00\x00\x00\xf0\x7f", '"Infinity"'),
        (b" \x02\xcd\xff\xff\xff", "-0.51"),
        (b",\x00\x00\x00\x00", '"1970-01-01"'),
        (b"0" + bytes(8), '"1970-01-01T00:00:00.000Z"'),
        (b"8\xcd\xcc\xcc\x3d", "0.1"),
        (b"<\x01\x00\x00\x00\xff", '"/w=="'),
        (b"@\x02\x00\x00\x00hi", '"hi"'),
        ("\x09ü".encode(), '"ü"'),
    ],
)
def test_values_of_a_variant_are_written_as_json(value: bytes, text: str) -> None:
    assert json_of(value, b"\x01\x00\x00") == text


@given(st.binary(max_size=12), st.binary(max_size=6))
def test_any_bytes_are_read_as_a_variant_or_raise_value_error(
    value: bytes, metadata: bytes
) -> None:
    try:
        json_of(value, metadata)
    except ValueError as error:
        assert not isinstance(error, RequestError)


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (0, "1970-01-01"),
        (3_672_149, "+12024-01-02"),
        (-735_525, "-0044-03-15"),
        (-719_528, "0000-01-01"),
    ],
)
def test_years_outside_pythons_range_are_written_as_spark_writes_them(days: int, text: str) -> None:
    assert date_text(days) == text
    assert timestamp_text(days * 86_400_000_000 + 1, "Z") == f"{text}T00:00:00.000001Z"


def test_type_without_a_json_form_is_refused_with_its_columns_name() -> None:
    fixed_binaries = pa.table({"c": pa.array([[b"x"]], pa.list_(pa.binary(1)))})
    with pytest.raises(RequestError, match="column c is array"):
        rows_of(stream_of(fixed_binaries))
