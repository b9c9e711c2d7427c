"""Cutting a result at the client's row and byte limits.

Bytes are those of the values as Arrow holds them, without what frames a stream. Chunks go in, whole
Arrow streams come out; after the limit, None. Pure.
"""

from __future__ import annotations

import pyarrow as pa

from haproc.engine.arrow import stream_of
from haproc.engine.interface import Chunk


class Cutter:
    """Takes a result's chunks in order; ``truncated`` tells whether something was left out."""

    def __init__(self, rows_max: int | None, bytes_max: int | None) -> None:
        self._rows_left = rows_max
        self._bytes_left = bytes_max
        self._first = True
        self.truncated = False

    def take(self, chunk: Chunk) -> Chunk | None:
        """Return what of the chunk is within the limits; None if that is nothing."""
        rows = chunk.rows
        if self._rows_left is not None:
            rows = min(rows, self._rows_left)
        if self._bytes_left is not None:
            rows = self._rows_that_fit(chunk, rows)
        if rows < chunk.rows:
            self.truncated = True
        if rows == 0 and not self._first:
            return None  # the schema got through with the first one
        taken = chunk if rows == chunk.rows else _head(chunk, rows)
        self._first = False
        if self._rows_left is not None:
            self._rows_left -= rows
        if self._bytes_left is not None:
            self._bytes_left -= _table(taken.data).nbytes
        return taken

    @property
    def done(self) -> bool:
        """Whether nothing more of the result is wanted."""
        return self.truncated

    def _rows_that_fit(self, chunk: Chunk, rows: int) -> int:
        assert self._bytes_left is not None
        table = _table(chunk.data)
        if rows == chunk.rows and table.nbytes <= self._bytes_left:
            return rows
        low, high = 0, rows
        while low < high:
            middle = (low + high + 1) // 2
            if table.slice(0, middle).nbytes <= self._bytes_left:
                low = middle
            else:
                high = middle - 1
        return low


def _head(chunk: Chunk, rows: int) -> Chunk:
    return Chunk(stream_of(_table(chunk.data).slice(0, rows)), rows)


def _table(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
