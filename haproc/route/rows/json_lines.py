"""JSON lines: each line is an object of columns by name. A missing or null value is NULL.

Values are written as in the answers of the statements' door: numbers and booleans as JSON's own,
DECIMALs as numbers or texts, DATE, TIME and TIMESTAMP in ISO 8601, BINARY in base64. Python's own
reader is used: pyarrow's was found to crash on a line that is no object.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc

from haproc.engine.interface import Column
from haproc.pin.sqltypes import SqlType
from haproc.route.rows.forms import Form, Readable, RowsError
from haproc.route.rows.lines import (
    DIGITS,
    Batches,
    about,
    blocks,
    check_nulls,
    check_range,
    decoded,
    number,
    schema_of,
)

Convert = Callable[[Any], Any]

_TAKEN_AS_IT_IS: Final[dict[str, frozenset[type]]] = {
    "BOOLEAN": frozenset({bool, type(None)}),
    **{n: frozenset({int, type(None)}) for n in ("TINYINT", "SMALLINT", "INT", "BIGINT")},
    **{n: frozenset({int, float, type(None)}) for n in ("FLOAT", "DOUBLE")},
    "STRING": frozenset({str, type(None)}),
}
_FLOATS: Final = frozenset({"FLOAT", "DOUBLE"})
_TEXTS: Final = frozenset({str, type(None)})
_OF_TEXTS: Final = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_LTZ", "TIMESTAMP_NTZ"})
_NO_NUMBERS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_SPACED: Final = re.compile('"[ \t\r]')
_FRACTION: Final = re.compile(r"[.,]\d{7}")


def json_rows(source: Readable, form: Form, columns: Sequence[Column]) -> Batches:
    """Return the columns of a body of JSON lines, and an iterator over its rows; raises RowsError.

    ``columns``: those of the table.
    """
    own = [column.name for column in columns]
    names = form.names(own)
    schema, types = schema_of(own if names is None else names, columns, form.kind)
    lines = JsonLines(schema, types, form.time_zone)
    return schema, decoded(blocks(source, _cut, form.first_line), lines, form.first_line)


class JsonLines:
    """Implements `Lines` for JSON lines."""

    def __init__(self, schema: pa.Schema, types: Sequence[SqlType], zone: str | None) -> None:
        self._schema = schema
        self._types = types
        self._zone = zone
        self._names = {name: name for name in schema.names}
        self._folded = {name.lower(): name for name in schema.names}
        exact = any(_holds_decimal(kind) for kind in types)
        of_float = Decimal if exact else float
        self._decoder = json.JSONDecoder(parse_float=of_float)
        self._careful = json.JSONDecoder(parse_float=of_float, object_pairs_hook=_unique)

    def split(self, block: bytes) -> list[bytes]:
        """See `Lines`."""
        return [line + b"\n" for line in block.removesuffix(b"\n").split(b"\n")]

    def decode(self, block: bytes) -> pa.RecordBatch:
        """See `Lines`."""
        rows = [self._row(line) for line in _text(block).split("\n") if line and not line.isspace()]
        arrays = [self._array(at, [row.get(f.name) for row in rows]) for at, f in self._fields]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        check_nulls(batch, self._schema)
        return batch

    @property
    def _fields(self) -> list[tuple[int, pa.Field]]:
        return list(enumerate(self._schema))

    def _row(self, line: str) -> dict[str, Any]:
        try:
            row = self._decoder.decode(line)
            # Only the other decoder finds a repeated name, and it takes twice the time. Each name
            # has such an end, so for most lines counting is enough.
            if type(row) is dict and (line.count('":') != len(row) or _SPACED.search(line)):
                row = self._careful.decode(line)
        except ArithmeticError as error:
            raise RowsError(["a number has an exponent that is out of range"]) from error
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
            raise RowsError([f"not JSON: {reason[:200]}"]) from error
        if type(row) is not dict:
            raise RowsError(["not a JSON object"])
        return row if row.keys() <= self._names.keys() else self._renamed(row)

    def _renamed(self, row: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in row.items():
            name = self._folded.get(key.lower())
            if name is None:
                raise RowsError([f"there is no column {key[:80]}"])
            if name in found:
                raise RowsError([f"column {name} comes twice"])
            found[name] = value
        return found

    def _array(self, at: int, values: list[Any]) -> pa.Array:
        field = self._schema.field(at)
        try:
            return _array_of(self._types[at], field.type, values, self._zone)
        except (ValueError, TypeError, ArithmeticError) as error:
            raise RowsError([about(field, error, self._zone)]) from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice[:80]} comes twice")
    return found


def _array_of(kind: SqlType, made: pa.DataType, values: list[Any], zone: str | None) -> pa.Array:
    """Return JSON values as an Arrow array of the type ``made``, which holds the SQL type ``kind``.

    Values inside lists, maps and structs are converted, too.
    """
    match kind.name:
        case "ARRAY":
            offsets, flat = _flat(values, list, list)
            items = _array_of(kind.arguments[0], made.value_type, flat, zone)
            return pa.ListArray.from_arrays(offsets, items, made)
        case "MAP":
            offsets, flat = _flat(values, dict, dict.items)
            keys = _array_of(kind.arguments[0], made.key_type, [key for key, _ in flat], zone)
            found = _array_of(kind.arguments[1], made.item_type, [item for _, item in flat], zone)
            return pa.MapArray.from_arrays(offsets, keys, found, made)
        case "STRUCT":
            return _structs(kind, made, values, zone)
        case name:
            return _leaves(name, kind, made, values, zone)


def _flat(
    values: list[Any], kind: type, inside: Callable[[Any], Iterable[Any]]
) -> tuple[pa.Array, list[Any]]:
    """Join lists or maps: return where each one begins in the joined content, and the content.

    The offset of a null is null. ``inside`` returns the content of one list or map.
    """
    offsets: list[int | None] = []
    flat: list[Any] = []
    for value in values:
        offsets.append(None if value is None else len(flat))
        if value is not None:
            flat.extend(inside(_is(value, kind)))
    return pa.array([*offsets, len(flat)], pa.int32()), flat


def _structs(kind: SqlType, made: pa.DataType, values: list[Any], zone: str | None) -> pa.Array:
    known = frozenset(kind.fields)
    for value in values:
        if value is not None and (unknown := sorted(_is(value, dict).keys() - known)):
            raise ValueError(f"it has no field {unknown[0][:80]}")
    arrays = [
        _array_of(argument, made.field(at).type, [(v or {}).get(name) for v in values], zone)
        for at, (name, argument) in enumerate(zip(kind.fields, kind.arguments, strict=True))
    ]
    mask = pa.array([value is None for value in values], pa.bool_())
    return pa.StructArray.from_arrays(arrays, fields=list(made), mask=mask)


def _leaves(
    name: str, kind: SqlType, made: pa.DataType, values: list[Any], zone: str | None
) -> pa.Array:
    found = set(map(type, values))
    if name in _OF_TEXTS and found <= _TEXTS:
        return _of_texts(values, made, zone)
    read = values
    if not found <= _TAKEN_AS_IT_IS.get(name, frozenset()):
        convert = _convert(kind, zone)
        read = [None if value is None else convert(value) for value in values]
    array = pa.array(read, made)
    if name in _FLOATS:
        check_range(array, lambda: values)
    return array


def _of_texts(values: list[str | None], kind: pa.DataType, zone: str | None) -> pa.Array:
    """Return dates or times from texts: Arrow itself reads them ten times as fast as Python."""
    texts = pa.array(values, pa.string())
    if zone is None or not pa.types.is_timestamp(kind) or not kind.tz:
        return texts.cast(kind)
    return pc.assume_timezone(texts.cast(pa.timestamp("us")), zone).cast(kind)


def _cut(data: bytes) -> int:
    return data.rfind(b"\n") + 1


def _text(block: bytes) -> str:
    try:
        return block.decode()
    except UnicodeDecodeError as error:
        raise RowsError([f"not UTF-8: {error.reason}"]) from error


def _holds_decimal(kind: SqlType) -> bool:
    return kind.name == "DECIMAL" or any(map(_holds_decimal, kind.arguments))


# -- values, other than null; each raises ValueError or TypeError ------------------------------


def _convert(kind: SqlType, zone: str | None) -> Convert:
    """Return the function that turns a JSON value into one that Arrow accepts for this SQL type."""
    match kind.name:
        case "TIMESTAMP" | "TIMESTAMP_LTZ":
            return lambda value: _instant(value, ZoneInfo(zone) if zone else None)
        case "DECIMAL":
            return lambda value: _decimal(value, kind)
        case name:
            return _CONVERTS[name]


def _is(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{str(value)[:40]!r} is no {kind.__name__}")
    return value


def _float(value: Any) -> float:
    if type(value) not in (int, float, Decimal) and value not in _NO_NUMBERS:
        raise TypeError(f"{str(value)[:40]!r} is no number")
    found = float(value)
    if type(value) is int and found != value:
        raise ValueError(f"{value} has more digits than a floating point number")
    if math.isinf(found) and type(value) is not str:
        raise ValueError(f"{str(value)[:40]!r} is out of range")
    return found


def _decimal(value: Any, kind: SqlType) -> Decimal:
    if type(value) not in (int, str, Decimal):
        raise TypeError(f"{str(value)[:40]!r} is no number")
    return number(str(value).strip(), kind.precision or DIGITS, kind.scale)


def _moment(value: Any) -> datetime:
    text: str = _is(value, str)
    if _FRACTION.search(text):
        raise ValueError(f"{text[:40]!r} is finer than microseconds")
    return datetime.fromisoformat(text)


def _instant(value: Any, zone: ZoneInfo | None) -> datetime:
    moment = _moment(value)
    if (moment.tzinfo is None) == (zone is None):
        raise ValueError(
            f"{value!r} has no time zone: give it one, or say time_zone"
            if zone is None
            else f"{value!r} has a time zone, and the request says one"
        )
    return moment if zone is None else moment.replace(tzinfo=zone)


def _local(value: Any) -> datetime:
    moment = _moment(value)
    if moment.tzinfo is not None:
        raise ValueError(f"{value!r} must have no time zone")
    return moment


def _time(value: Any) -> time:
    return _local(f"2000-01-01T{_is(value, str)}").time()


def _binary(value: Any) -> bytes:
    return base64.b64decode(_is(value, str), validate=True)


_CONVERTS: Final[dict[str, Convert]] = {
    "BOOLEAN": lambda value: _is(value, bool),
    **{n: lambda value: _is(value, int) for n in ("TINYINT", "SMALLINT", "INT", "BIGINT")},
    "FLOAT": _float,
    "DOUBLE": _float,
    "STRING": lambda value: _is(value, str),
    "DATE": lambda value: date.fromisoformat(_is(value, str)),
    "TIMESTAMP_NTZ": _local,
    "TIME": _time,
    "BINARY": _binary,
}
