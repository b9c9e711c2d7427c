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


def with_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with int32 for year-month intervals, whose bytes are the same.

    pyarrow has the type, but no class for arrays of it; only through Arrow's C interface can they
    be given another one.
    """
    plain = as_numbers(batch.schema)
    return batch if plain == batch.schema else retyped(batch, plain)


def as_numbers(schema: pa.Schema) -> pa.Schema:
    """Return the schema with int32 for year-month intervals, at whatever depth."""
    return pa.schema([field.with_type(as_numbers_type(field.type)) for field in schema])


def as_numbers_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with int32 for year-month intervals, at whatever depth."""
    if kind.id == pa.lib.Type_INTERVAL_MONTHS:
        return pa.int32()
    inner = [kind.field(at) for at in range(kind.num_fields)]
    plain = [field.with_type(as_numbers_type(field.type)) for field in inner]
    if plain == inner:
        return kind  # a map's key of type void is one that pyarrow reads, and does not make
    if pa.types.is_map(kind):
        return pa.map_(as_numbers_type(kind.key_type), as_numbers_type(kind.item_type))
    return pa.list_(plain[0]) if pa.types.is_list(kind) else pa.struct(plain)


def retyped(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch's memory under another schema."""
    return batch if batch.schema == schema else pa.record_batch(_Retyped(batch, schema))


class _Retyped:
    """A batch and a schema by Arrow's PyCapsule interface."""

    def __init__(self, batch: pa.RecordBatch, schema: pa.Schema) -> None:
        self._batch, self._schema = batch, schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self._schema.__arrow_c_schema__(), self._batch.__arrow_c_array__()[1]


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
