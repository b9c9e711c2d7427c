"""Arrow IPC streams: looked into where that must be, and made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.ipc

_AFFECTED = ("num_affected_rows", "num_inserted_rows")


def rows(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a small result, given as Arrow IPC streams."""
    for chunk in chunks:
        with pa.ipc.open_stream(chunk) as reader:
            yield from reader.read_all().to_pylist()


def stream_of(table: pa.Table) -> bytes:
    """Return rows as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def empty_stream() -> bytes:
    """Return an Arrow IPC stream without columns and rows."""
    return stream_of(pa.table({}))


def affected_rows(chunks: Iterable[bytes]) -> int | None:
    """Return the count of rows that a write reports in its small result, if it does."""
    first = next(iter(rows(chunks)), None)
    if first is not None:
        for name in _AFFECTED:
            if isinstance(first.get(name), int):
                return int(first[name])
    return None


def rows_in(stream: bytes) -> int:
    """Return how many rows an Arrow IPC stream holds."""
    with pa.ipc.open_stream(stream) as reader:
        return sum(batch.num_rows for batch in reader)
