"""Tests of Parts: pieces of a result become parts of a bounded size, none lost or repeated."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.replicate.apply.materialise import Parts


def stream(*batches: pa.RecordBatch) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def batch(values: list[str]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.string())], ["c"])


def values(part: bytes) -> list[str]:
    with pa.ipc.open_stream(part) as reader:
        return [str(value) for value in reader.read_all().column(0).to_pylist()]


@given(
    st.lists(st.lists(st.text("ab", max_size=30), max_size=12), min_size=1, max_size=8),
    st.integers(1, 400),
    st.integers(1, 9),
)
def test_parts_contain_all_rows_in_order_and_keep_their_limits(
    chunks: list[list[str]], bytes_max: int, rows_max: int
) -> None:
    parts = Parts(bytes_max, rows_max)
    found = [part for chunk in chunks for part in parts.add_chunk(stream(batch(chunk)))]
    found.append(parts.rest())
    assert [value for part in found for value in values(part)] == [v for c in chunks for v in c]
    assert parts.rows == sum(map(len, chunks))
    assert all(len(values(part)) <= rows_max for part in found)
    assert all(values(part) for part in found[:-1]), "only the last one may be empty"


def test_parts_of_a_result_without_rows_are_one_part_with_its_columns() -> None:
    parts = Parts(100, 100)
    assert list(parts.add_chunk(stream(batch([])))) == []
    rest = parts.rest()
    assert values(rest) == [] and pa.ipc.read_schema(pa.py_buffer(rest)).names == ["c"]


@pytest.mark.parametrize(("bytes_max", "rows_max"), [(8_000, 1_000_000), (1_000_000, 100)])
def test_parts_split_a_batch_that_is_too_large(bytes_max: int, rows_max: int) -> None:
    parts = Parts(bytes_max, rows_max)
    whole = batch(["x" * 96] * 1_000)
    found = [*parts.add_chunk(stream(whole)), parts.rest()]
    assert sum(len(values(part)) for part in found) == 1_000
    assert all(len(part) <= bytes_max + 1_000 for part in found)
    assert len(found) >= 10
