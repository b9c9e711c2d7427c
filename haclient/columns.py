"""Results as Python values: Arrow's types named as Spark names them, batches turned into rows."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa

from haclient import far
from haclient.exceptions import Failure, FailureKind, NotSupportedError

_SIMPLE = {
    pa.types.is_boolean: "BOOLEAN",
    pa.types.is_int8: "TINYINT",
    pa.types.is_int16: "SMALLINT",
    pa.types.is_int32: "INT",
    pa.types.is_int64: "BIGINT",
    pa.types.is_float32: "FLOAT",
    pa.types.is_float64: "DOUBLE",
    pa.types.is_decimal: "DECIMAL",
    pa.types.is_string: "STRING",
    pa.types.is_large_string: "STRING",
    pa.types.is_binary: "BINARY",
    pa.types.is_large_binary: "BINARY",
    pa.types.is_date: "DATE",
    pa.types.is_time: "TIME",
    pa.types.is_duration: "INTERVAL",
    pa.types.is_interval: "INTERVAL",
    pa.types.is_null: "VOID",
}

_NOTE = b"haproc.type"
"""A field's metadata say under this key what its values were: of a VARIANT they are JSON text."""


class Column(NamedTuple):
    """A column of a result, as PEP 249 describes it."""

    name: str
    type_code: str
    display_size: None
    internal_size: None
    precision: int | None
    scale: int | None
    null_ok: bool


def type_name(kind: Any) -> str:
    """Return the Spark name of an Arrow type, without parameters but for what is inside it."""
    if pa.types.is_map(kind):
        return f"MAP<{_inner(kind.key_type)}, {_inner(kind.item_type)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"ARRAY<{_inner(kind.value_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{field.name}: {_inner(field.type)}' for field in kind)}>"
    if pa.types.is_timestamp(kind):
        return "TIMESTAMP_NTZ" if kind.tz is None else "TIMESTAMP"
    return next((name for test, name in _SIMPLE.items() if test(kind)), str(kind).upper())


def _inner(kind: Any) -> str:
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return type_name(kind)


def describe(schema: Any) -> list[Column] | None:
    """Return PEP 249's ``description`` of a result; None if it has no columns."""
    return [_column(field) for field in schema] or None


def _column(field: Any) -> Column:
    digits = pa.types.is_decimal(field.type)
    return Column(
        field.name,
        "VARIANT" if (field.metadata or {}).get(_NOTE) == b"variant" else type_name(field.type),
        None,
        None,
        field.type.precision if digits else None,
        field.type.scale if digits else None,
        field.nullable,
    )


def rows(batch: Any) -> list[tuple[Any, ...]]:
    """Return a record batch's rows as plain Python values (maps as dicts, structs as dicts)."""
    try:
        columns = [_values(column) for column in batch.columns]
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, ValueError, OverflowError) as error:
        raise NotSupportedError(
            f"a value of the result has no Python form: {error}",
            Failure(
                FailureKind.CLIENT,
                f"a value of the result has no Python form: {error}",
                hint="use fetch_arrow_table(), or cast the column to STRING in the query",
            ),
        ) from error
    return list(zip(*columns, strict=True))


def _values(column: Any) -> list[Any]:
    try:
        if pa.types.is_nested(column.type):
            return column.to_pylist(maps_as_pydicts="strict")  # type: ignore[no-any-return]
        return column.to_pylist()  # type: ignore[no-any-return]
    except (OverflowError, ValueError, TypeError):  # a far date, or a key that is a dict
        return [far.value(each) for each in column]
