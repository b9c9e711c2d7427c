"""What of Spark's Arrow types pyarrow, or a client, does not read, in a form that it reads.

A VARIANT comes as a struct of binary, known by a note in the metadata of one of its fields: it
becomes JSON text, with a note of ours. Year-month intervals pyarrow has a type for, but no class
of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

from haproc.engine.arrow import as_numbers, as_numbers_type, retyped, stream_of, with_numbers
from haproc.statements.variant import json_of

NOTE: Final = b"haproc.type"
"""The key of a field's metadata under which clients find what its values were."""
VARIANT: Final = b"variant"


def is_variant(kind: pa.DataType) -> bool:
    """Whether Spark's values of this type are VARIANTs."""
    return pa.types.is_struct(kind) and any((each.metadata or {}).get(VARIANT) for each in kind)


def holds(kind: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    """Whether values of a type are, or have in them, some for whose type the test holds."""
    inner = (kind.field(at).type for at in range(kind.num_fields))
    return test(kind) or any(holds(each, test) for each in inner)


def readable(data: bytes) -> bytes:
    """Return an Arrow stream with JSON text for its VARIANTs; the same one if it has none."""
    with pa.ipc.open_stream(data) as reader:
        schema = reader.schema
        if not any(holds(field.type, is_variant) for field in schema):
            return data
        told = pa.schema([_told(field) for field in schema])
        return stream_of(pa.Table.from_batches([_readable(each, told) for each in reader], told))


def _readable(batch: pa.RecordBatch, told: pa.Schema) -> pa.RecordBatch:
    columns = zip(with_numbers(batch).columns, batch.schema, told, strict=True)
    arrays = [_made(column, field.type, new.type) for column, field, new in columns]
    numbers = pa.RecordBatch.from_arrays(arrays, schema=as_numbers(told))
    return retyped(numbers, told)


def _told(field: pa.Field) -> pa.Field:
    kind = _told_type(field.type)
    if is_variant(field.type):
        return field.with_type(kind).with_metadata({NOTE: VARIANT})
    return field.with_type(kind)


def _told_type(kind: pa.DataType) -> pa.DataType:
    if is_variant(kind):
        return pa.string()
    if not holds(kind, is_variant):
        return kind
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, _told(kind.item_field))
    if pa.types.is_list(kind):
        return pa.list_(_told(kind.value_field))
    return pa.struct([_told(field) for field in kind])


def _made(array: pa.Array, kind: pa.DataType, told: pa.DataType) -> pa.Array:
    """Return an array of this type, whose months are numbers, as one of the other type."""
    if is_variant(kind):
        return pa.array(_jsons(array), pa.string())
    if kind == told:
        return array
    own, children = array.buffers()[: 1 if pa.types.is_struct(kind) else 2], _children(array)
    inner = [
        _made(child, kind.field(at).type, told.field(at).type) for at, child in enumerate(children)
    ]
    return pa.Array.from_buffers(
        as_numbers_type(told), len(array), own, array.null_count, array.offset, inner
    )


def _children(array: pa.Array) -> list[pa.Array]:
    """Return what is inside, whole: a batch of a stream begins at its arrays' beginning.

    What is inside a NULL is NULL: the bytes that stand there for a field that is never NULL are
    none of a value.
    """
    if pa.types.is_struct(array.type):
        return list(array.flatten())
    return [array.values]


def _jsons(array: pa.StructArray) -> Iterator[str | None]:
    names = [field.name for field in array.type]
    values, metadata = (array.field(names.index(name)) for name in ("value", "metadata"))
    for there, value, names_of in zip(array.is_valid(), values, metadata, strict=True):
        yield json_of(value.as_py(), names_of.as_py()) if there.as_py() else None
