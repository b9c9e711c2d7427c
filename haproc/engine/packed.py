"""Rows as a relation that Spark plans quickly.

The rows of a local relation are a part of the plan, and whatever goes through a plan goes through
each of them: dozens of Catalyst's rules, one after another, on one thread. So many rows are sent as
few, each a list of some thousand, which `inline` takes apart where the statement runs: an INSERT of
12 MiB takes Spark half the processor time. Rows of many small requests come in as many batches;
these are put together before, since a list of two rows costs more than two rows do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

TOGETHER: Final = 4_096
"""So many rows are one. Measured: with 1,024 it takes a quarter more."""
FEW: Final = 1_024
"""So many go as they are, which costs the least for a statement of a few rows. Chosen."""
_COLUMN: Final = "rows"
_PLAIN: Final = frozenset(
    (
        *(pa.lib.Type_NA, pa.lib.Type_BOOL, pa.lib.Type_STRING, pa.lib.Type_BINARY),
        *(pa.lib.Type_INT8, pa.lib.Type_INT16, pa.lib.Type_INT32, pa.lib.Type_INT64),
        *(pa.lib.Type_FLOAT, pa.lib.Type_DOUBLE, pa.lib.Type_DECIMAL128),
        *(pa.lib.Type_DATE32, pa.lib.Type_TIMESTAMP, pa.lib.Type_DURATION),
    )
)


def column_names(count: int) -> list[str]:
    """Return how the columns of rows are called while they are nothing but rows."""
    return [f"c{at}" for at in range(1, count + 1)]


def make(relation: Any, rows: bytes, names: Sequence[str] | None = None) -> None:
    """Make an empty relation that of an Arrow IPC stream's rows; columns get these names if given.

    In place, since each copy of a relation is one of the rows.
    """
    schema, batches = _read(rows)
    many = sum(len(batch) for batch in batches) > FEW
    if many and len(schema) and all(map(_packs, schema.types)):
        project = relation.to_df.input.project
        project.input.local_relation.data = _packed(schema, batches)
        taken_apart = project.expressions.add().unresolved_function
        taken_apart.function_name = "inline"
        argument = taken_apart.arguments.add().unresolved_attribute
        argument.unparsed_identifier = _COLUMN
        relation.to_df.column_names.extend(schema.names if names is None else names)
    elif names is None:
        relation.local_relation.data = rows
    else:
        relation.to_df.input.local_relation.data = rows
        relation.to_df.column_names.extend(names)


def _read(rows: bytes) -> tuple[pa.Schema, Sequence[pa.RecordBatch]]:
    """Return what a stream holds; of one that can't be read, nothing: Spark says what is wrong."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(rows)) as stream:
            return stream.schema, list(stream)
    except pa.ArrowInvalid:
        return pa.schema([]), ()


def _packs(kind: pa.DataType) -> bool:
    """Whether values of a type can stand in lists: pyarrow has no arrays of some (intervals)."""
    if pa.types.is_struct(kind):
        return all(_packs(kind.field(at).type) for at in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _packs(kind.key_type) and _packs(kind.item_type)
    return _packs(kind.value_type) if pa.types.is_list(kind) else kind.id in _PLAIN


def _packed(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> bytes:
    """Return a stream of one column, of lists of the rows as structs."""
    # The names are put back behind: two columns may have one, two fields of a struct may not.
    names = column_names(len(schema))
    fields = [field.with_name(name) for field, name in zip(schema, names, strict=True)]
    element = pa.field("element", pa.struct(fields), nullable=False)
    packed = pa.schema([pa.field(_COLUMN, pa.list_(element), nullable=False)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, packed) as writer:
        for batch in _put_together(batches):
            structs = pa.StructArray.from_arrays(batch.columns, fields=fields)
            begins = pa.array([*range(0, len(batch), TOGETHER), len(batch)], pa.int32())
            lists = pa.ListArray.from_arrays(begins, structs, type=packed.types[0])
            writer.write_batch(pa.record_batch([lists], schema=packed))
    return bytes(sink.getvalue().to_pybytes())


def _put_together(batches: Sequence[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows in batches that fill a list, at least; the last one may be smaller."""
    small: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        small.append(batch)
        rows += len(batch)
        if rows >= TOGETHER:
            yield small[0] if len(small) == 1 else pa.concat_batches(small)
            small, rows = [], 0
    if small:
        yield pa.concat_batches(small)
