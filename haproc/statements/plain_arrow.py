"""Types of results: in Arrow as clients read them, and by Spark's text for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from dmq import Json
from haproc.engine.arrow import as_numbers, as_numbers_type, retyped, stream_of, with_numbers
from haproc.engine.interface import Column
from haproc.statements.variant import json_of

# Spark's types by their text (``decimal(10,2)``, ``array<int>``), Arrow's types as such text.


_NAMES: Final = {
    "boolean": "BOOLEAN",
    "tinyint": "BYTE",
    "smallint": "SHORT",
    "int": "INT",
    "bigint": "LONG",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP_NTZ",
    "time": "TIME",
    "string": "STRING",
    "varchar": "STRING",
    "char": "CHAR",
    "binary": "BINARY",
    "decimal": "DECIMAL",
    "interval": "INTERVAL",
    "array": "ARRAY",
    "struct": "STRUCT",
    "map": "MAP",
    "void": "NULL",
    "variant": "VARIANT",
}
_SYNONYMS: Final = {"integer": "int", "long": "bigint", "short": "smallint", "byte": "tinyint"}
_HEAD: Final = re.compile(r"\s*([a-z_]+)")
_ARGUMENTS: Final = re.compile(r"\(\s*(\d+)\s*(?:,\s*(-?\d+)\s*)?\)")


@dataclass(frozen=True, slots=True)
class TypeHead:
    """The outermost type: its name, precision and scale where it has them, interval's fields."""

    name: str
    precision: int | None = None
    scale: int | None = None
    interval: str = ""


def head_of(type_text: str) -> TypeHead:
    """Read the outermost type of a Spark type text."""
    text = type_text.strip().lower()
    found = _HEAD.match(text)
    name = found[1] if found else text
    name = _SYNONYMS.get(name, name)
    if name == "interval":
        return TypeHead(name, interval=text.removeprefix("interval").strip().upper())
    arguments = _ARGUMENTS.match(text, found.end()) if found else None
    if name == "decimal":
        precision = int(arguments[1]) if arguments else 10
        scale = int(arguments[2]) if arguments and arguments[2] else 0
        return TypeHead(name, precision, scale)
    return TypeHead(name)


def manifest_column(column: Column, position: int) -> dict[str, Json]:
    """Return a column as ``manifest.schema.columns`` lists it."""
    head = head_of(column.type_text)
    described: dict[str, Json] = {
        "name": column.name,
        "type_name": _NAMES.get(head.name, "USER_DEFINED_TYPE"),
        "type_text": column.type_text,
        "position": position,
        "nullable": column.nullable,
    }
    if head.precision is not None:
        described["type_precision"] = head.precision
        described["type_scale"] = head.scale
    if head.interval:
        described["type_interval_type"] = head.interval
    return described


def columns_of(schema: pa.Schema) -> tuple[Column, ...]:
    """Return the columns that a result's Arrow schema stands for."""
    return tuple(Column(field.name, text_of(field.type), field.nullable) for field in schema)


_SIMPLE: Final = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
    pa.null(): "void",
    pa.duration("us"): "interval day to second",
    pa.time64("ns"): "time(6)",
}


def text_of(kind: pa.DataType) -> str:
    """Return the Spark type that an Arrow type of a result stands for."""
    simple = _SIMPLE.get(kind)
    if simple is not None:
        return simple
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_map(kind):
        return f"map<{text_of(kind.key_type)},{text_of(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{text_of(kind.value_type)}>"
    if is_variant(kind):
        return "variant"
    if pa.types.is_struct(kind):
        inner = ",".join(f"{_quoted(f.name)}:{text_of(f.type)}" for f in kind)
        return f"struct<{inner}>"
    if kind.id == pa.lib.Type_INTERVAL_MONTHS:
        return "interval year to month"
    if pa.types.is_interval(kind):
        return "interval"
    return str(kind)


def _quoted(name: str) -> str:
    plain = re.fullmatch(r"\w+", name)
    return name if plain else "`" + name.replace("`", "``") + "`"


# What of Spark's Arrow types pyarrow, or a client, does not read, in a form that it reads.
#
# A VARIANT comes as a struct of binary, known by a note in the metadata of one of its fields: it
# becomes JSON text, with a note of ours. Year-month intervals pyarrow has a type for, but no class
# of arrays.


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
