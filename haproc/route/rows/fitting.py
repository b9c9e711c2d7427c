"""The check that Arrow rows fit a table without loss, and the rows in Spark's plain form.

`fits` looks at the types alone. `converted` rewrites what Spark's Arrow reader does not accept
(dictionaries, compressed or large buffers, other time units, unsigned numbers), and checks the
values: a null in a column without nulls, a nanosecond that would be cut off. A stream's own
statement about nulls is not passed on. The table decides about nulls, and so rows of two requests
that differ in nothing else can run as one statement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from haproc.engine.arrow import stream_of
from haproc.engine.interface import Column
from haproc.pin.sqltypes import DAY_TIME_UNITS, SqlType, TypeTextError, parse_type
from haproc.route.rows.forms import RowsError

_INTEGER_BITS: Final = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_FLOAT_BITS: Final = {"FLOAT": 24, "DOUBLE": 53}
"""How many bits a whole number may have so that a FLOAT or DOUBLE holds it exactly."""
_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 19}


def fits(schema: pa.Schema, columns: Sequence[Column]) -> list[str]:
    """Return why rows of this schema do not fit a table with ``columns``; empty if they fit."""
    table = {column.name.lower(): column for column in columns}
    seen: set[str] = set()
    problems: list[str] = []
    for field in schema:
        name = field.name.lower()
        column = table.get(name)
        if name in seen:
            problems.append(f"column {field.name} comes twice")
        elif column is None:
            problems.append(f"the table has no column {field.name}")
        else:
            problems.extend(_column_problems(field, column))
        seen.add(name)
    problems.extend(
        f"column {column.name} is missing and must not be null"
        for column in columns
        if not column.nullable and column.name.lower() not in seen
    )
    return problems


def _column_problems(field: pa.Field, column: Column) -> Iterator[str]:
    try:
        wanted = parse_type(column.type_text)
    except TypeTextError:
        yield f"column {column.name} has the type {column.type_text}, which takes no rows here"
        return
    if pa.types.is_null(field.type) and not column.nullable:
        yield f"column {column.name} must not be null"
    elif not _fits(field.type, wanted):
        hint = _hint(field.type, wanted)
        given = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        yield f"column {column.name} is {column.type_text}: {given} does not fit{hint}"


def _hint(kind: pa.DataType, wanted: SqlType) -> str:
    if pa.types.is_timestamp(kind) and wanted.name == "TIMESTAMP" and not kind.tz:
        return " (give it a time zone)"
    if pa.types.is_timestamp(kind) and wanted.name == "TIMESTAMP_NTZ" and kind.tz:
        return " (it must have no time zone)"
    return ""


def _fits(kind: pa.DataType, wanted: SqlType) -> bool:
    """True if the Spark type ``wanted`` can hold all values of the Arrow type, unchanged."""
    types = pa.types
    if types.is_dictionary(kind):
        return _fits(kind.value_type, wanted)
    if types.is_null(kind):
        return True
    if types.is_integer(kind):
        return _integer_fits(kind, wanted)
    if types.is_floating(kind):
        return wanted.name == "DOUBLE" or (wanted.name == "FLOAT" and bool(kind.bit_width <= 32))
    if types.is_decimal(kind):
        return _digits_fit(kind.precision - kind.scale, kind.scale, wanted)
    if types.is_timestamp(kind):
        return wanted.name in (("TIMESTAMP", "TIMESTAMP_LTZ") if kind.tz else ("TIMESTAMP_NTZ",))
    if types.is_duration(kind):
        return wanted.name == "INTERVAL" and wanted.units == (DAY_TIME_UNITS[0], DAY_TIME_UNITS[-1])
    if types.is_nested(kind):
        return _nested_fits(kind, wanted)
    name = _simple_name(kind)
    return name is not None and wanted.name == name


def _simple_name(kind: pa.DataType) -> str | None:
    types = pa.types
    if types.is_boolean(kind):
        return "BOOLEAN"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "STRING"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return "BINARY"
    if types.is_fixed_size_binary(kind):
        return "BINARY"
    if types.is_date(kind):
        return "DATE"
    return "TIME" if types.is_time(kind) else None


def _integer_fits(kind: pa.DataType, wanted: SqlType) -> bool:
    unsigned = pa.types.is_unsigned_integer(kind)
    bits: int = kind.bit_width + unsigned
    if bits > 64:
        return False
    if wanted.name in _INTEGER_BITS:
        return bits <= _INTEGER_BITS[wanted.name]
    if wanted.name in _FLOAT_BITS:
        return bits <= _FLOAT_BITS[wanted.name]
    return _digits_fit(_DIGITS[kind.bit_width], 0, wanted)


def _digits_fit(whole: int, scale: int, wanted: SqlType) -> bool:
    if wanted.name != "DECIMAL":
        return False
    precision = wanted.precision or 10
    return scale <= wanted.scale and whole <= precision - wanted.scale


def _nested_fits(kind: pa.DataType, wanted: SqlType) -> bool:
    types = pa.types
    if types.is_map(kind):
        return wanted.name == "MAP" and all(
            _fits(part, argument)
            for part, argument in zip(
                (kind.key_type, kind.item_type), wanted.arguments, strict=True
            )
        )
    if types.is_struct(kind):
        given = {field.name.lower(): field.type for field in kind}
        names = [name.lower() for name in wanted.fields]
        return (
            wanted.name == "STRUCT"
            and len(given) == kind.num_fields
            and given.keys() == set(names)
            and all(_fits(given[n], a) for n, a in zip(names, wanted.arguments, strict=True))
        )
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return wanted.name == "ARRAY" and _fits(kind.value_type, wanted.arguments[0])
    return False


def untyped(schema: pa.Schema) -> Iterator[str]:
    """Yield a problem for each column whose type is null: a staging table needs a type."""
    for field in schema:
        if _has_null(field.type):
            yield f"column {field.name} has no type (null), which many rows must have"


def _has_null(kind: pa.DataType) -> bool:
    if pa.types.is_null(kind):
        return True
    if pa.types.is_dictionary(kind):
        return _has_null(kind.value_type)
    return any(_has_null(kind.field(at).type) for at in range(kind.num_fields))


def converted(table: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """Convert rows that `fits` accepted to types that Spark reads.

    Raises RowsError if a value would lose something, or if a column that must not be null has a
    null.
    """
    nullable = {column.name.lower(): column.nullable for column in columns}
    problems = [
        f"column {name} must not be null"
        for name, values in zip(table.column_names, table.columns, strict=True)
        if values.null_count and not nullable.get(name.lower(), True)
    ]
    if problems:
        raise RowsError(problems)
    if table.num_rows and not table.num_columns:
        raise RowsError([f"{table.num_rows} rows have no columns"])  # Arrow itself loses them
    schema = pa.schema([pa.field(f.name, _plain_type(f.type)) for f in table.schema])
    try:
        return table.cast(schema)
    except pa.ArrowException as error:
        raise RowsError([f"a value would lose something: {str(error)[:200]}"]) from error


def encoded(table: pa.Table) -> bytes:
    """Return rows as one Arrow IPC stream with a single batch.

    Each batch costs time, on the event loops of this host and in Spark.
    """
    return stream_of(table.combine_chunks())


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the Arrow type that holds the same values as ``kind`` and that Spark can read."""
    types = pa.types
    if types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if types.is_unsigned_integer(kind):
        return {8: pa.int16(), 16: pa.int32()}.get(kind.bit_width, pa.int64())
    if types.is_float16(kind):
        return pa.float32()
    if types.is_decimal(kind):
        # Spark knows no negative scale; that many digits more are zeros in front of the point.
        return pa.decimal128(kind.precision - min(kind.scale, 0), max(kind.scale, 0))
    if types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if types.is_duration(kind):
        return pa.duration("us")
    if types.is_time(kind):
        return pa.time64("ns")
    if types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(f.name, _plain_type(f.type)) for f in kind])
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    simple = {"STRING": pa.string(), "BINARY": pa.binary(), "DATE": pa.date32()}
    return simple.get(_simple_name(kind) or "", kind)
