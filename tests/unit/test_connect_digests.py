"""The digest of rows depends on the rows alone."""

from __future__ import annotations

import decimal
import io
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import compute

from haproc.doors.connect.digests import RowDigest, UnknownTypeError

DECIMALS = st.decimals(-(10**9), 10**9, places=2, allow_nan=False).map(
    lambda each: each.quantize(decimal.Decimal("0.01"))
)
LEAVES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.null(), st.none()),
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), st.floats()),
    (pa.decimal128(18, 2), DECIMALS),
    (pa.string(), st.text(max_size=5)),
    (pa.large_string(), st.text(max_size=5)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.binary(3), st.binary(min_size=3, max_size=3)),
    (pa.date32(), st.dates()),
    (pa.timestamp("us", "UTC"), st.integers(-(10**15), 10**15)),
    (pa.duration("us"), st.integers(-(10**15), 10**15)),
    (pa.month_day_nano_interval(), st.tuples(*[st.integers(-99, 99)] * 3)),
]
COLUMN = tuple[pa.DataType, st.SearchStrategy[Any]]


def nested(column: COLUMN) -> list[COLUMN]:
    kind, value = column
    maybe = st.none() | value
    return [
        (pa.list_(kind), st.lists(maybe, max_size=3)),
        (pa.list_(kind, 2), st.lists(maybe, min_size=2, max_size=2)),
        (pa.struct({"a": kind, "b": pa.int8()}), st.fixed_dictionaries({"a": maybe})),
        (pa.map_(pa.int8(), kind), st.lists(st.tuples(st.integers(0, 9), maybe), max_size=3)),
    ]


COLUMNS = st.sampled_from(LEAVES) | st.sampled_from(
    [deeper for leaf in LEAVES for deeper in nested(leaf)]
    + [deepest for leaf in LEAVES[5:7] for deeper in nested(leaf) for deepest in nested(deeper)]
)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    count = draw(st.integers(1, 12))
    arrays = []
    for _ in range(draw(st.integers(1, 3))):
        kind, value = draw(COLUMNS)
        values = draw(st.lists(st.none() | value, min_size=count, max_size=count))
        arrays.append(pa.array(values, kind))
    return pa.record_batch(arrays, [f"c{index}" for index in range(len(arrays))])


def digest(*batches: pa.RecordBatch) -> bytes:
    row_digest = RowDigest()
    for batch in batches:
        row_digest.add_batch(batch)
    return row_digest.digest()


def cut(batch: pa.RecordBatch, places: list[int]) -> Iterator[pa.RecordBatch]:
    edges = [0, *sorted(place % (batch.num_rows + 1) for place in places), batch.num_rows]
    for begin, end in itertools.pairwise(edges):
        yield batch.slice(begin, end - begin)


def sent(batch: pa.RecordBatch, compression: str | None) -> pa.RecordBatch:
    sink = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch()


@settings(max_examples=300)
@given(batches(), st.lists(st.integers(0, 12), max_size=4), st.sampled_from([None, "zstd", "lz4"]))
def test_digest_is_the_same_for_rows_cut_anywhere_and_compressed(
    batch: pa.RecordBatch, places: list[int], compression: str | None
) -> None:
    whole = digest(batch)
    assert digest(*cut(batch, places)) == whole
    assert digest(*(sent(each, compression) for each in cut(batch, places))) == whole


@settings(max_examples=300)
@given(batches(), st.data())
def test_digest_of_different_rows_is_different(batch: pa.RecordBatch, data: st.DataObject) -> None:
    rows = batch.num_rows
    order = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=rows + 1))
    other = batch.take(pa.array(order))
    assert (digest(other) == digest(batch)) == same(other, batch)


def same(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """Compare values bit by bit, also NaN and -0.0, by their text in Python."""
    return repr(one.to_pylist()) == repr(other.to_pylist())


def test_digest_ignores_the_bytes_under_nulls() -> None:
    mask = np.array([False, True, False])
    for values, hidden in (([1, 7, 3], [1, 8, 3]), (["a", "xyz", "b"], ["a", "", "b"])):
        one, other = (
            pa.record_batch({"a": pa.array(each, mask=mask)}) for each in (values, hidden)
        )
        assert digest(one) == digest(other) != digest(pa.record_batch({"a": pa.array(values)}))
    validity = pa.array([True, False, True]).buffers()[1]
    lists = [
        pa.Array.from_buffers(
            pa.list_(pa.int64()), 3, [validity, pa.py_buffer(offsets)], children=[items]
        )
        for offsets, items in (
            (np.array([0, 1, 3, 4], np.int32), pa.array([1, 8, 9, 2])),
            (np.array([0, 1, 1, 2], np.int32), pa.array([1, 2])),
        )
    ]
    assert lists[0].equals(lists[1])
    assert len({digest(pa.record_batch({"a": each})) for each in lists}) == 1


def test_digest_of_encoded_columns_equals_that_of_their_values() -> None:
    values = pa.array(["a", "a", None, "b", "b", "b"])
    plain = digest(pa.record_batch({"a": values}))
    assert digest(pa.record_batch({"a": values.dictionary_encode()})) == plain
    assert digest(pa.record_batch({"a": compute.run_end_encode(values)})) == plain
    shuffled = pa.DictionaryArray.from_arrays(pa.array([1, 1, None, 0, 0, 0]), ["b", "a"])
    assert digest(pa.record_batch({"a": shuffled})) == plain


def test_digest_depends_on_value_boundaries_column_names_and_types() -> None:
    all_digests = {
        digest(pa.record_batch({"a": ["ab", "c"]})),
        digest(pa.record_batch({"a": ["a", "bc"]})),
        digest(pa.record_batch({"b": ["a", "bc"]})),
        digest(pa.record_batch({"a": [b"a", b"bc"]})),
        digest(pa.record_batch({"a": [0.0]})),
        digest(pa.record_batch({"a": [-0.0]})),
        digest(pa.record_batch({"a": [None, 1]})),
        digest(pa.record_batch({"a": [1, None]})),
    }
    assert len(all_digests) == 8


def test_digest_of_no_rows_equals_that_of_an_empty_batch() -> None:
    empty = pa.record_batch({"a": pa.array([], pa.int8())})
    assert digest() == digest(empty)


def test_digest_of_an_unknown_type_or_changed_columns_is_refused() -> None:
    union = pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])
    with pytest.raises(UnknownTypeError):
        digest(pa.record_batch({"a": union}))
    with pytest.raises(ValueError, match="columns change"):
        digest(pa.record_batch({"a": [1]}), pa.record_batch({"a": ["x"]}))
