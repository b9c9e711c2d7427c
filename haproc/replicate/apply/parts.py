"""A write's rows: they are put together into parts, and fill the placeholder of a plan."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from haproc.engine.placeholder import append_template, plan_with_rows, sql_with_rows
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import ComputedPlan, Filling, QueryWrite, SpooledRows

# The statement that all clusters run for computed rows: a plan with a placeholder, and the rows.


logger = logging.getLogger(__name__)

OBSERVED_BYTES_MAX: Final = 64 << 10
"""The most bytes of observations' results that a record holds, a row each. Chosen."""


@dataclass(frozen=True, slots=True)
class ComputedRows:
    """A query's result: its ``rows`` if they are one part, else the offsets of its ``parts``.

    ``table``: the staging table that holds the rows, too, if there is one. ``observed``: the
    results of the observations in that run.
    """

    schema: bytes
    count: int
    rows: bytes
    parts: tuple[int, ...]
    size_bytes: int
    table: str = ""
    observed: tuple[bytes, ...] = ()


def filling_of(op: Operation, found: ComputedRows) -> Filling:
    """Return the plan of an operation for the rows that were found, and the rows."""
    match op.write:
        case QueryWrite():
            plan = sql_with_rows(op.write.head, found.schema)
        case ComputedPlan():
            plan = plan_with_rows(op.write.template, found.schema)
        case SpooledRows():
            plan = plan_with_rows(append_template(op.write.table), found.schema)
        case _:
            raise AssertionError("it has no rows to be computed")
    observed = _bounded(found.observed)
    return Filling(plan, found.rows, found.parts, found.size_bytes, observed)


def _bounded(observed: tuple[bytes, ...]) -> tuple[bytes, ...]:
    size_bytes = sum(map(len, observed))
    if size_bytes <= OBSERVED_BYTES_MAX:
        return observed
    logger.warning("a write's observations are not returned: %d bytes are too many", size_bytes)
    return ()


class Parts:
    """Puts the pieces of a result together into parts of a size that records and Sparks can hold.

    A part is one Arrow IPC stream. Types are passed on as they came: values are not read.

    ``rows`` and ``size_bytes`` count all rows that were taken in.

    A part has no more than ``bytes_max`` and ``rows_max``, unless a single row is larger.
    """

    def __init__(self, bytes_max: int, rows_max: int) -> None:
        self._bytes_max, self._rows_max = bytes_max, rows_max
        self._schema: pa.Schema | None = None
        self._batches: list[pa.RecordBatch] = []
        self._bytes = self._rows = 0
        self.rows = self.size_bytes = 0

    def add_chunk(self, chunk: bytes) -> Iterator[bytes]:
        """Take in an Arrow IPC stream; yield each part that becomes full."""
        with pa.ipc.open_stream(chunk) as reader:
            self.of(reader.schema)
            for batch in reader:
                yield from self.take(batch)

    def of(self, schema: pa.Schema) -> None:
        """Set the columns, unless they are known: a result without rows has them, too."""
        if self._schema is None:
            self._schema = schema

    def take(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """Take in rows of these columns; yield each part that becomes full."""
        self.rows += batch.num_rows
        self.size_bytes += batch.nbytes
        rows_max = self._rows_of_a_part(batch)
        for begin in range(0, batch.num_rows, rows_max):
            piece = batch.slice(begin, rows_max)
            over = self._bytes + piece.nbytes > self._bytes_max or (
                self._rows + piece.num_rows > self._rows_max
            )
            if self._batches and over:
                yield self.rest()
            self._batches.append(piece)
            self._bytes += piece.nbytes
            self._rows += piece.num_rows

    def rest(self) -> bytes:
        """Return the remaining rows as a part, perhaps an empty one; begin the next part."""
        assert self._schema is not None
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as writer:
            for batch in self._batches:
                writer.write_batch(batch)
        self._batches.clear()
        self._bytes = self._rows = 0
        return bytes(sink.getvalue().to_pybytes())

    def _rows_of_a_part(self, batch: pa.RecordBatch) -> int:
        """Return the number of a batch's rows that fit one part, if all are of one size."""
        pieces = -(-batch.nbytes // self._bytes_max) or 1
        return max(1, min(self._rows_max, -(-int(batch.num_rows) // int(pieces))))
