"""Converts Arrow values to the format JSON_ARRAY: every value is a string or null.

Numbers are written in full, timestamps as ISO 8601 (TIMESTAMP in UTC with ``Z``, TIMESTAMP_NTZ
without), binary as base64, intervals as Spark writes them. Nested values are JSON text: integers,
floats and booleans in them are JSON's own, and all others are written as at the top level.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from haproc.engine.arrow import with_numbers
from haproc.failure import ErrorClass, refused
from haproc.statements.plain_arrow import date_text, text_of, timestamp_text

_SECOND_US: Final = 1_000_000
_AS_PYTHON_HAS_THEM: Final = (
    *(pa.types.is_null, pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating),
    *(pa.types.is_decimal, pa.types.is_time, pa.types.is_string, pa.types.is_large_string),
    *(pa.types.is_string_view, pa.types.is_binary, pa.types.is_large_binary),
    pa.types.is_binary_view,
)


class UnknownTypeError(Exception):
    """An Arrow type that has no form in JSON."""


def rows_of(data: bytes) -> tuple[pa.Schema, list[tuple[str | None, ...]]]:
    """Return the schema of an Arrow IPC stream, and its rows as texts."""
    with pa.ipc.open_stream(data) as reader:
        schema = reader.schema
        rows: list[tuple[str | None, ...]] = []
        for batch in reader:
            rows.extend(_batch_rows(batch))
        return schema, rows


def dumps(rows: Sequence[Sequence[str | None]]) -> bytes:
    """Return rows of texts as JSON."""
    return json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _batch_rows(batch: pa.RecordBatch) -> Iterator[tuple[str | None, ...]]:
    if batch.num_columns == 0:
        return iter([()] * batch.num_rows)
    columns = zip(with_numbers(batch).columns, batch.schema, strict=True)
    return zip(*(_column(values, field) for values, field in columns), strict=True)


def _column(values: pa.Array, field: pa.Field) -> list[str | None]:
    try:
        return texts(values, field.type)
    except UnknownTypeError as error:
        raise refused(
            ErrorClass.RESULT_TYPE,
            f"column {field.name} is {text_of(field.type)}: {error} has no form in JSON",
            "cast it to STRING in the query, or ask for the Arrow stream",
        ) from error


def texts(array: pa.Array, kind: pa.DataType) -> list[str | None]:
    """Return a column's values as texts; ``kind``: its type in the result's schema.

    Raises UnknownTypeError.
    """
    if kind.id == pa.lib.Type_INTERVAL_MONTHS:
        return list(_values(array, kind))
    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return list(array.to_pylist())
    if types.is_integer(kind) or types.is_boolean(kind):
        return list(pc.cast(array, pa.string()).to_pylist())
    if types.is_floating(kind):
        written = pc.cast(array, pa.string()).to_pylist()
        return [None if value is None else _float(value) for value in written]
    if types.is_null(kind):
        return [None] * len(array)
    return [_text(value) for value in _values(array, kind)]


def _values(array: pa.Array, kind: pa.DataType) -> list[Any]:
    """Return a column's values as Python values, or as texts if Python would lose a part of them.

    Raises UnknownTypeError.
    """
    if pa.types.is_date32(kind):
        days = array.view(pa.int32()).to_pylist()
        return [None if v is None else date_text(v) for v in days]
    if pa.types.is_timestamp(kind):
        micros = pc.cast(array, pa.timestamp("us", kind.tz), safe=False).view(pa.int64())
        zone = "Z" if kind.tz else ""
        return [None if v is None else timestamp_text(v, zone) for v in micros.to_pylist()]
    if pa.types.is_duration(kind):
        micros = pc.cast(array, pa.duration("us"), safe=False).view(pa.int64()).to_pylist()
        return [None if v is None else _day_time(v) for v in micros]
    if kind.id == pa.lib.Type_INTERVAL_MONTHS:
        return [None if v is None else _year_month(v) for v in array.to_pylist()]
    if pa.types.is_interval(kind):
        return [None if v is None else _calendar(v) for v in array.to_pylist()]
    if pa.types.is_map(kind):
        return _maps(array, kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _lists(array, kind)
    if pa.types.is_struct(kind):
        return _structs(array, kind)
    if pa.types.is_float32(kind):
        written = pc.cast(array, pa.string()).to_pylist()
        return [None if value is None else float(value) for value in written]
    if not any(test(kind) for test in _AS_PYTHON_HAS_THEM):
        raise UnknownTypeError(str(kind))
    return list(array.to_pylist())


def _lists(array: pa.ListArray, kind: pa.DataType) -> list[Any]:
    items = _values(array.flatten(), kind.value_type)
    lengths = pc.list_value_length(array).to_pylist()
    result: list[Any] = []
    position = 0
    for length in lengths:
        result.append(None if length is None else items[position : position + length])
        position += length or 0
    return result


def _maps(array: pa.MapArray, kind: pa.DataType) -> list[Any]:
    offsets = array.offsets.to_pylist()
    keys = _values(array.keys, kind.key_type)
    items = _values(array.items, kind.item_type)
    # If the array is a slice, `keys` and `items` are whole or begin at its first offset: the length
    # shows which.
    first = offsets[0] if len(keys) != (offsets[-1] if offsets else 0) else 0
    result: list[Any] = []
    for (start, end), valid in zip(pairwise(offsets), array.is_valid().to_pylist(), strict=True):
        here = slice(start - first, end - first)
        pairs = zip(keys[here], items[here], strict=True)
        result.append({_key(k): v for k, v in pairs} if valid else None)
    return result


def _key(value: Any) -> str:
    return _text(value) or ""


def _structs(array: pa.StructArray, kind: pa.DataType) -> list[Any]:
    parts = zip(array.flatten(), kind, strict=True)
    fields = [_values(column, field.type) for column, field in parts]
    names = [field.name for field in kind]
    valid = array.is_valid().to_pylist()
    return [
        {name: column[i] for name, column in zip(names, fields, strict=True)} if there else None
        for i, there in enumerate(valid)
    ]


def _text(value: Any) -> str | None:
    """Return the text of one value of a column; None for NULL."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        plain = _plain(value)
        return json.dumps(plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float):
        return _float(repr(value))
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value)


def _plain(value: Any) -> Any:
    """Convert a nested value to JSON's own types where they lose nothing, else to texts."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else _float(repr(value))
    if value is None or isinstance(value, bool | int | str):
        return value
    return _text(value)


def _float(written: str) -> str:
    """Return a float's text as in Spark: ``NaN``, ``Infinity``, ``1.0`` for whole numbers.

    ``written``: its text as Arrow or Python writes it.
    """
    special = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(written)
    if special is not None:
        return special
    return written if "." in written or "e" in written else f"{written}.0"


def _day_time(micros: int) -> str:
    sign = "-" if micros < 0 else ""
    seconds, fraction = divmod(abs(micros), _SECOND_US)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{sign}{days} {hour:02}:{minute:02}:{second:02}.{fraction:06}"


def _year_month(months: int) -> str:
    sign = "-" if months < 0 else ""
    years, month = divmod(abs(months), 12)
    return f"{sign}{years}-{month}"


def _calendar(value: pa.MonthDayNano) -> str:
    """Return an interval of months, days and nanoseconds as Spark writes it."""
    years, months = _divided(value.months, 12)
    micros = value.nanoseconds // 1000
    seconds, fraction = _divided(micros, _SECOND_US)
    minutes, seconds = _divided(seconds, 60)
    hours, minutes = _divided(minutes, 60)
    parts = [
        (years, "years"),
        (months, "months"),
        (value.days, "days"),
        (hours, "hours"),
        (minutes, "minutes"),
    ]
    words = [f"{number} {unit}" for number, unit in parts if number]
    if seconds or fraction:
        sign = "-" if micros < 0 else ""
        whole = f"{sign}{abs(seconds)}.{abs(fraction):06}".rstrip("0").rstrip(".")
        words.append(f"{whole} seconds")
    return " ".join(words) or "0 seconds"


def _divided(number: int, by: int) -> tuple[int, int]:
    """Divide; return the quotient and the remainder, both with the sign of ``number``."""
    quotient, rest = divmod(abs(number), by)
    return (-quotient, -rest) if number < 0 else (quotient, rest)


def schema_of(data: bytes) -> pa.Schema:
    """Return the schema of an Arrow IPC stream."""
    with pa.ipc.open_stream(data) as reader:
        return reader.schema
