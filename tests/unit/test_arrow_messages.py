"""The size of an Arrow stream, computed before any of it is unpacked."""

from __future__ import annotations

import contextlib
import io
import struct
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haproc.engine.interface import Column
from haproc.engine.statement import ROWS_MAX, ArrowRows
from haproc.failure import RequestError
from haproc.replicate.queue.units import BatchLimits, row_count
from haproc.route.rows.forms import RowsError
from haproc.route.rows.reading import Extent, extent, fitted, makes_a_record, pieces, unpacked_bytes
from tests.unit.operations import insert

N = 100_000
MANY = 2 * ROWS_MAX
TABLES = {
    "numbers": pa.table({"a": pa.array([7] * N), "b": pa.array([None, True] * (N // 2))}),
    "texts": pa.table({"s": ["x" * 10, None, ""] * 1000, "l": [[1, 2], [], None] * 1000}),
    "dictionaries": pa.table(
        {"d": pa.array(["a", "bc"] * 1000).dictionary_encode(), "s": [{"n": 1}] * 2000}
    ),
    "views": pa.table({"v": pa.array(["longer than twelve", "x"] * 1000, pa.string_view())}),
    "nothing": pa.table({"a": pa.array([], pa.int64())}),
}


def stream(
    table: pa.Table, compression: str | None = None, *, old: bool = False, rows: int = 30_000
) -> bytes:
    options = pa.ipc.IpcWriteOptions(
        compression=compression, use_legacy_format=old, emit_dictionary_deltas=True
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return bytes(sink.getvalue())


def extent_of(data: bytes, batch_bytes_max: int = 1 << 30) -> Extent:
    source = io.BytesIO(data)
    found = extent(source, batch_bytes_max)
    assert source.tell() == 0
    return found


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("old", [False, True])
def test_extent_equals_the_size_of_the_unpacked_stream(
    table: pa.Table, compression: str | None, old: bool
) -> None:
    found = extent_of(stream(table, compression, old=old))
    assert found.rows == table.num_rows
    plain = len(stream(table))
    assert 0.8 * plain - 2000 <= found.size_bytes <= plain


def many_nulls(rows: int) -> bytes:
    return stream(pa.table({"a": pa.nulls(rows)}), rows=rows)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_short_stream_of_a_large_batch_is_refused_before_it_is_unpacked(compression: str) -> None:
    data = stream(TABLES["numbers"], compression)
    assert len(data) < N
    with pytest.raises(RowsError, match="100000 bytes unpacked: cut it"):
        extent_of(data, N)
    assert extent_of(data, 450_000).rows == N
    columns = [Column("a", "bigint"), Column("b", "boolean")]
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(RequestError, match="unpacked: cut it"):
        list(pieces(io.BytesIO(data), columns, N))
    assert pa.default_memory_pool().max_memory() == before


def test_rows_without_bytes_are_counted() -> None:
    data = many_nulls(MANY)
    assert len(data) < 1000 and extent_of(data).rows == MANY
    assert not makes_a_record(data, 64 << 20)
    with pytest.raises(RequestError, match=f"more than {ROWS_MAX}"):
        fitted(data, [Column("a", "bigint")], 64 << 20)
    with pytest.raises(RequestError, match="has no type"):
        list(pieces(io.BytesIO(data), [Column("a", "bigint")], 64 << 20))
    assert makes_a_record(many_nulls(ROWS_MAX), 64 << 20)


def test_arrow_rows_count_toward_the_batch_limit() -> None:
    few, many = (
        replace(insert("r", "t"), insert=None, write=ArrowRows("t", data))
        for data in (stream(TABLES["texts"]), many_nulls(N))
    )
    assert row_count(few) < row_count(many)
    assert not BatchLimits().exceeded(many, 1, row_count(many), 0)
    assert BatchLimits().exceeded(many, 100, 100 * row_count(many), 0)


@settings(max_examples=30)
@given(
    st.sampled_from(sorted(TABLES)),
    st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 2**32 - 1)), max_size=4),
)
def test_damaged_stream_is_refused_or_read(name: str, changes: list[tuple[int, int]]) -> None:
    data = bytearray(stream(TABLES[name], "lz4"))
    for at, value in changes:
        if at + 4 <= len(data):
            struct.pack_into("<I", data, at, value)
    try:
        extent_of(bytes(data))
    except RowsError as error:
        assert "not an Arrow IPC stream" in str(error) or "cut it" in str(error)


WRONG = pa.table({"a": [1, 2], "v": pa.array(["longer than twelve", "x"], pa.string_view())})


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_damage_of_any_word_of_a_stream_raises_only_request_errors(compression: str | None) -> None:
    """A buffer may begin before its batch, have any length, and so on: the stream is only
    refused.
    """
    data = stream(WRONG, compression)
    columns = [Column("a", "bigint"), Column("v", "string")]
    for at in range(0, len(data) - 8, 8):
        (word,) = struct.unpack_from("<q", data, at)
        for value in (-(1 << 40), -1, 1 << 62, word + 1 if word < 1 << 60 else 0):
            wrong = bytearray(data)
            struct.pack_into("<q", wrong, at, value)
            makes_a_record(bytes(wrong), 1 << 20)
            with contextlib.suppress(RequestError):
                fitted(bytes(wrong), columns, 1 << 20)
            with contextlib.suppress(RequestError):
                list(pieces(io.BytesIO(wrong), columns, 1 << 20))


def test_bytes_of_string_views_are_counted_without_unused_bytes_behind_them() -> None:
    views = WRONG.column("v").chunk(0)
    buffers = views.buffers()
    buffers[1] = pa.py_buffer(bytes(buffers[1]) + b"?")
    padded = pa.Array.from_buffers(pa.string_view(), 2, buffers)
    padded.validate(full=True)
    assert unpacked_bytes(padded) == unpacked_bytes(views) == len("longer than twelve") + 1
    assert unpacked_bytes(padded.slice(1)) == 1
