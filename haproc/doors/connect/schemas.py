"""The schema of an Arrow stream as Spark Connect tells it."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from haproc import protos
from haproc.statements.spark_types import text_of

_SIMPLE: Final = {
    pa.null(): "null",
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
}


def schema_of(schema: pa.Schema) -> Any:
    """Return the type of the stream's rows, a struct."""
    found = protos.data_types.DataType()
    found.struct.SetInParent()
    for field in schema:
        _add_field(found, field)
    return found


def _add_field(struct: Any, field: pa.Field) -> None:
    added = struct.struct.fields.add(name=field.name, nullable=field.nullable)
    _fill(added.data_type, field.type)


def _fill(found: Any, kind: pa.DataType) -> None:
    if (simple := _SIMPLE.get(kind)) is not None:
        getattr(found, simple).SetInParent()
    elif pa.types.is_timestamp(kind):
        (found.timestamp if kind.tz else found.timestamp_ntz).SetInParent()
    elif pa.types.is_decimal(kind):
        found.decimal.precision, found.decimal.scale = kind.precision, kind.scale
    elif pa.types.is_map(kind):
        found.map.value_contains_null = kind.item_field.nullable
        _fill(found.map.key_type, kind.key_type)
        _fill(found.map.value_type, kind.item_type)
    elif pa.types.is_list(kind):
        found.array.contains_null = kind.value_field.nullable
        _fill(found.array.element_type, kind.value_type)
    elif pa.types.is_struct(kind):
        found.struct.SetInParent()
        for field in kind:
            _add_field(found, field)
    else:
        found.unparsed.data_type_string = text_of(kind)
