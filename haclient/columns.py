"""Turns Arrow results into Python values, and Arrow's types into Spark's names of them."""

from __future__ import annotations

import datetime
from typing import Any, Final, NamedTuple

import pyarrow as pa

from haclient.exceptions import Failure, FailureKind, NotSupportedError

# Single values for which pyarrow has no Python form: far dates, maps with nested keys.
#
# Spark has the years from -290,308 to 294,247, Python those from 1 to 9999. Dates and times beyond
# are text, as in HTTP's JSON (``+12024-01-02``, ``+12024-01-02T03:04:05.000Z``).


_DAYS_OF_400_YEARS: Final = 146_097
_EPOCH_DAY: Final = datetime.date(1970, 1, 1).toordinal()
_MIDNIGHT: Final = datetime.datetime(1970, 1, 1)
_DAY_US: Final = 86_400_000_000
_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000}


def value(scalar: Any) -> Any:
    """Return an Arrow scalar as a Python value; a date that Python cannot hold becomes text.

    Raises pyarrow's error if there is no Python form for it.
    """
    kind = scalar.type
    if not scalar.is_valid:
        return None
    if pa.types.is_map(kind):
        pairs = [(value(key), value(item)) for key, item in _entries(scalar)]
        return pairs if pa.types.is_nested(kind.key_type) else dict(pairs)
    if pa.types.is_struct(kind):
        return {field.name: value(scalar[at]) for at, field in enumerate(kind)}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [value(each) for each in scalar.values]
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        if pa.types.is_date32(kind):
            return date_text(scalar.value)
        if pa.types.is_timestamp(kind) and kind.unit in _PER_SECOND:
            micros = scalar.value * (1_000_000 // _PER_SECOND[kind.unit])
            return timestamp_text(micros) + ("Z" if kind.tz else "")
        raise


def date_text(days: int) -> str:
    """Return the date that is ``days`` days after 1970-01-01, as text."""
    cycles, rest = divmod(days + _EPOCH_DAY - 1, _DAYS_OF_400_YEARS)
    found = datetime.date.fromordinal(rest + 1)  # in the first 400 years
    year = found.year + 400 * cycles
    text = f"{year:04}" if 0 <= year <= 9999 else f"{year:+05}"
    return f"{text}-{found:%m-%d}"


def timestamp_text(micros: int) -> str:
    """Return the time that is ``micros`` microseconds after 1970-01-01, as text."""
    days, rest = divmod(micros, _DAY_US)
    unit = "microseconds" if micros % 1000 else "milliseconds"
    time = (_MIDNIGHT + datetime.timedelta(microseconds=rest)).time()
    return f"{date_text(days)}T{time.isoformat(timespec=unit)}"


def _entries(scalar: Any) -> list[tuple[Any, Any]]:
    entries = scalar.values
    return list(zip(entries.field(0), entries.field(1), strict=True))


# Results as Python values: Spark's names of Arrow's types, batches turned into rows.


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
"""The key in a field's metadata that names the original type: a VARIANT comes as JSON text."""


class Column(NamedTuple):
    """A column of a result, as PEP 249's ``description`` has it."""

    name: str
    type_code: str
    display_size: None
    internal_size: None
    precision: int | None
    scale: int | None
    null_ok: bool


def type_name(kind: Any) -> str:
    """Return Spark's name of an Arrow type; only types inside others have parameters."""
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
    """Return PEP 249's ``description`` of a result; None if the result has no columns."""
    return [_column(field) for field in schema] or None


def is_variant(field: Any) -> bool:
    """True if the column is a VARIANT, whose values come as JSON texts."""
    return bool((field.metadata or {}).get(_NOTE) == b"variant")


def _column(field: Any) -> Column:
    digits = pa.types.is_decimal(field.type)
    return Column(
        field.name,
        "VARIANT" if is_variant(field) else type_name(field.type),
        None,
        None,
        field.type.precision if digits else None,
        field.type.scale if digits else None,
        field.nullable,
    )


def rows(batch: Any) -> list[tuple[Any, ...]]:
    """Return a record batch's rows as plain Python values.

    Structs and maps are dicts; a map with nested keys is a list of pairs.
    """
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
        return [value(each) for each in column]
