"""Combining consecutive INSERTs into one table into one statement.

Only where each would mean the same alone: equal text up to the rows, equal literal types (see
`InsertShape`), equal settings; rows that came as Arrow only with an equal schema. What the
combination means if it fails is the applier's business: its halves then run, and so on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa

from haproc.classify.bounds import tokens_of
from haproc.classify.insert import combined_signature
from haproc.classify.model import Kind, OperationClass
from haproc.engine.arrow import joined, rows_in, without_rows
from haproc.engine.interface import Settings
from haproc.engine.statement import ROWS_MAX, ArrowRows, RowsInLog, SqlText
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import Write

LEFT_FROM_BYTES: Final = 1 << 20
"""Rows from this size on wait in the log. Chosen: to read them once more costs little beside what
Spark takes for them; of smaller ones thousands may be one statement."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Bounds of one combined statement: rows that came as Arrow have their own.

    Such rows lie in the cluster's driver while they are written. So of all that run side by side
    there may be twice as many bytes as of one. ``tokens_max``: of a text, as of one that a client
    sends (`haproc.classify.bounds`): Spark's heap is exhausted by a few times as many.
    """

    operations_max: int = 10_000
    rows_max: int = 20_000
    bytes_max: int = 8 << 20
    arrow_bytes_max: int = 44 << 20
    tokens_max: int = 400_000

    def exceeded(
        self,
        like: Operation,
        operations: int,
        rows: int,
        size: int,
        arrow_beside: int = 0,
        cells: int = 0,
    ) -> bool:
        """True if a statement of operations like this one would be too large.

        ``arrow_beside``: bytes of the rows in statements that run already. ``cells``: the rows'
        values.
        """
        if not isinstance(like.write, ArrowRows):
            return self.text_exceeded(operations, rows, size, cells)
        bytes_max = min(self.arrow_bytes_max, 2 * self.arrow_bytes_max - arrow_beside)
        return operations > self.operations_max or rows > ROWS_MAX or size > bytes_max

    def text_exceeded(self, operations: int, rows: int, size: int, cells: int) -> bool:
        """True if one text for so many operations would be too large."""
        return (
            operations > self.operations_max
            or rows > self.rows_max
            or size > self.bytes_max
            or tokens_of(rows, cells) > self.tokens_max
        )


@dataclass(frozen=True, slots=True)
class BatchKey:
    """The properties that operations must share to run as one statement.

    ``head``: a digest of the text before the rows, or the rows' Arrow schema. ``signature``: the
    types of the literals, in which NULL goes with any.
    """

    table: str
    settings: Settings
    head: Any
    signature: str = ""

    def joined(self, other: BatchKey | None) -> BatchKey | None:
        """Return the key of both together; None if they have to stay apart."""
        if other is None or other.head != self.head or other.settings != self.settings:
            return None
        if other.signature == self.signature:
            return self
        signature = combined_signature(self.signature, other.signature)
        return None if signature is None else replace(self, signature=signature)


def batch_key(op: Operation) -> BatchKey | None:
    """Return the key that an operation must share with its neighbours; None: it runs alone."""
    if op.operation_class is not OperationClass.ASYNCHRONOUS or op.exclusive:
        return None
    if op.reads or len(op.writes) != 1:
        return None
    (table,) = op.writes
    if isinstance(op.write, ArrowRows):
        return BatchKey(table, op.settings, _schema_of(op.write.rows))
    if op.insert is None or op.kind is not Kind.INSERT or not isinstance(op.write, SqlText):
        return None
    head = op.write.sql[: op.insert.values_at].encode(errors="surrogatepass")
    digest = hashlib.blake2b(head, digest_size=16).digest()
    return BatchKey(table, op.settings, digest, op.insert.signature)


def row_count(op: Operation) -> int:
    """Return how many rows an operation adds to a batch, as far as its record tells."""
    if isinstance(op.write, RowsInLog):
        return op.write.count
    if isinstance(op.write, ArrowRows):
        return rows_in(op.write.rows)
    return op.insert.rows if op.insert is not None else 1


def left_in_log(op: Operation) -> Operation:
    """Return what stands in the queue for an operation: one of large rows without them.

    As many as the queue may hold would be a multiple of what a HAProc takes otherwise.
    """
    if not isinstance(op.write, ArrowRows) or op.size_bytes < LEFT_FROM_BYTES:
        return op
    schema, count = without_rows(op.write.rows), rows_in(op.write.rows)
    write = RowsInLog(op.write.table, schema, size_bytes=op.size_bytes, count=count)
    return replace(op, write=write)


def cell_count(key: BatchKey | None, rows: int) -> int:
    """Return the number of values in the rows of an operation with this key."""
    if key is None:
        return 0
    return rows * (key.signature.count(",") + 1 if key.signature else len(key.head))


def combine(operations: Sequence[Operation]) -> Write:
    """Return the one write that does what these do one after another; their keys are equal."""
    first = operations[0]
    if len(operations) == 1:
        return first.write
    if any(isinstance(op.write, RowsInLog) for op in operations):
        assert isinstance(first.write, ArrowRows)
        counts, sizes = map(row_count, operations), (op.size_bytes for op in operations)
        schema = without_rows(first.write.rows)
        return RowsInLog(first.write.table, schema, size_bytes=sum(sizes), count=sum(counts))
    if isinstance(first.write, ArrowRows):
        streams = [op.write.rows for op in operations if isinstance(op.write, ArrowRows)]
        return ArrowRows(first.write.table, joined(streams))
    assert isinstance(first.write, SqlText)
    parts = [first.write.sql]
    for op in operations[1:]:
        assert op.insert is not None and isinstance(op.write, SqlText)
        parts.append(op.write.sql[op.insert.values_at :])
    # A line break, because a statement may end in a comment.
    return SqlText("\n, ".join(parts))


def _schema_of(stream: bytes) -> Any:
    return pa.ipc.read_schema(pa.py_buffer(stream)).remove_metadata()
