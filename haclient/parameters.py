"""Turns Python values into statement parameters: a set as texts, many sets as Arrow rows."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

from haclient.exceptions import DataError, ProgrammingError
from haclient.statements import ValueInsert

# Python values as statement parameters: the text and the Spark type that the server reads.
#
# | Python | Spark |
# |---|---|
# | str, UUID | STRING |
# | bool | BOOLEAN |
# | int | INT, BIGINT or DECIMAL(digits, 0), by size |
# | float | DOUBLE |
# | Decimal | DECIMAL(precision, scale), as written |
# | date, time | DATE, TIME |
# | datetime with a time zone / without | TIMESTAMP / TIMESTAMP_NTZ |
# | timedelta | INTERVAL DAY TO SECOND |
# | bytes | BINARY |
# | list, tuple | ARRAY<…> |
# | dict | MAP<…, …> |
# | None | NULL |
#
# The items of a list and the keys and values of a dict must have one type; int and Decimal are
# widened to the widest among them.


Json = dict[str, Any]
Parameters = Sequence[Any] | Mapping[str, Any]

_DECIMAL_DIGITS_MAX = 38


@dataclass(frozen=True, slots=True)
class _Type:
    name: str
    precision: int = 0
    scale: int = 0
    arguments: tuple[_Type, ...] = ()

    def __str__(self) -> str:
        if self.name == "DECIMAL":
            return f"DECIMAL({self.precision},{self.scale})"
        if self.arguments:
            return f"{self.name}<{', '.join(map(str, self.arguments))}>"
        return self.name


_VOID = _Type("VOID")
# The digits that the integer types can need, to widen them to a DECIMAL.
_INTEGER_DIGITS = {"INT": 10, "BIGINT": 19}


def encode(parameters: Parameters | None) -> list[Json] | None:
    """Return one set of parameters as JSON for a request; None for none.

    Raises ProgrammingError or DataError for a value that cannot be sent.
    """
    if parameters is None:
        return None
    if isinstance(parameters, Mapping):
        return [{"name": name, **_encode_one(v, f":{name}")} for name, v in parameters.items()]
    if isinstance(parameters, str | bytes) or not isinstance(parameters, Sequence):
        raise ProgrammingError(
            "parameters are a sequence (for ?) or a mapping (for :name), "
            f"not {type(parameters).__name__}"
        )
    return [_encode_one(value, str(at)) for at, value in enumerate(parameters, start=1)]


def _encode_one(value: Any, label: str) -> Json:
    try:
        kind, written = _written(value)
    except (ProgrammingError, DataError) as error:
        raise type(error)(f"parameter {label}: {error.message}") from None
    if written is None:
        return {"value": None}
    text = written if isinstance(written, str) else json.dumps(written, ensure_ascii=False)
    return {"value": text} if kind.name == "STRING" else {"value": text, "type": str(kind)}


def _written(value: Any) -> tuple[_Type, Any]:
    """Return a value's SQL type, and its text; for a list or dict JSON instead of the text."""
    if value is None:
        return _VOID, None
    for kind, write in _WRITERS:
        if isinstance(value, kind):
            return write(value)
    if hasattr(value, "item") and not isinstance(value.item(), type(value)):
        return _written(value.item())  # a NumPy scalar
    raise ProgrammingError(f"a {type(value).__name__} cannot be a parameter")


def _string(value: str) -> tuple[_Type, str]:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DataError("the text holds half a surrogate pair, which is no character") from None
    return _Type("STRING"), str(value)


def _integer(value: int) -> tuple[_Type, str]:
    value = int(value)
    if -(1 << 31) <= value < 1 << 31:
        return _Type("INT"), str(value)
    if -(1 << 63) <= value < 1 << 63:
        return _Type("BIGINT"), str(value)
    if abs(value) >= 10**_DECIMAL_DIGITS_MAX:
        raise DataError(f"the integer has more than {_DECIMAL_DIGITS_MAX} digits")
    return _Type("DECIMAL", len(str(abs(value)))), str(value)


def _float(value: float) -> tuple[_Type, str]:
    if value != value:
        return _Type("DOUBLE"), "NaN"
    if value in (float("inf"), float("-inf")):
        return _Type("DOUBLE"), "Infinity" if value > 0 else "-Infinity"
    return _Type("DOUBLE"), repr(float(value))


def _decimal(value: Decimal) -> tuple[_Type, str]:
    _, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise DataError(f"{value} is not a DECIMAL")
    scale = max(-exponent, 0)
    precision = max(len(digits) + max(exponent, 0), scale, 1) if value else max(scale, 1)
    if precision > _DECIMAL_DIGITS_MAX:
        raise DataError(f"the number has more than {_DECIMAL_DIGITS_MAX} digits")
    return _Type("DECIMAL", precision, scale), format(value, "f")


def _timestamp(value: datetime) -> tuple[_Type, str]:
    if value.utcoffset() is None:
        return _Type("TIMESTAMP_NTZ"), value.replace(tzinfo=None).isoformat(" ")
    try:
        return _Type("TIMESTAMP"), value.astimezone(UTC).isoformat(" ")
    except OverflowError:
        raise DataError(f"{value} lies outside the years 1 to 9999 in UTC") from None


def _time(value: time) -> tuple[_Type, str]:
    if value.tzinfo is not None:
        raise DataError("a TIME has no time zone")
    return _Type("TIME"), value.isoformat()


def _interval(value: timedelta) -> tuple[_Type, str]:
    sign = "-" if value < timedelta() else ""
    value = abs(value)
    minutes, seconds = divmod(value.seconds, 60)
    clock = f"{minutes // 60:02d}:{minutes % 60:02d}:{seconds:02d}.{value.microseconds:06d}"
    return _Type("INTERVAL DAY TO SECOND"), f"{sign}{value.days} {clock}"


def _array(value: Sequence[Any]) -> tuple[_Type, list[Any]]:
    kind, items = _common(value, "the items of a list")
    return _Type("ARRAY", arguments=(kind,)), items


def _map(value: Mapping[Any, Any]) -> tuple[_Type, list[Any]]:
    if None in value:
        raise ProgrammingError("a key of a map cannot be None")
    of_key, keys = _common(value.keys(), "the keys of a dict")
    of_value, values = _common(value.values(), "the values of a dict")
    return _Type("MAP", arguments=(of_key, of_value)), [
        list(pair) for pair in zip(keys, values, strict=True)
    ]


def _common(values: Iterable[Any], what: str) -> tuple[_Type, list[Any]]:
    kind, items = _VOID, []
    for value in values:
        of_this, written = _written(value)
        merged = _merge(kind, of_this)
        if merged is None:
            raise ProgrammingError(f"{what} have two types, {kind} and {of_this}")
        kind = merged
        items.append(written)
    return kind, items


def _merge(one: _Type, other: _Type) -> _Type | None:
    if one == other or other == _VOID:
        return one
    if one == _VOID:
        return other
    if one.arguments and one.name == other.name:
        merged = [_merge(a, b) for a, b in zip(one.arguments, other.arguments, strict=True)]
        inner = tuple(kind for kind in merged if kind is not None)
        return _Type(one.name, arguments=inner) if len(inner) == len(merged) else None
    if {one.name, other.name} == {"INT", "BIGINT"}:
        return _Type("BIGINT")
    numbers = [_as_decimal(kind) for kind in (one, other)]
    if None in numbers:
        return None
    scale = max(n.scale for n in numbers if n)
    whole = max(n.precision - n.scale for n in numbers if n)
    if whole + scale > _DECIMAL_DIGITS_MAX:
        raise DataError(f"the numbers need more than {_DECIMAL_DIGITS_MAX} digits together")
    return _Type("DECIMAL", whole + scale, scale)


def _as_decimal(kind: _Type) -> _Type | None:
    if kind.name in _INTEGER_DIGITS:
        return _Type("DECIMAL", _INTEGER_DIGITS[kind.name])
    return kind if kind.name == "DECIMAL" else None


# In this order: a bool is an int, a datetime is a date.
_WRITERS: tuple[tuple[type | tuple[type, ...], Callable[[Any], tuple[_Type, Any]]], ...] = (
    (str, _string),
    (bool, lambda value: (_Type("BOOLEAN"), "true" if value else "false")),
    (int, _integer),
    (float, _float),
    (Decimal, _decimal),
    (datetime, _timestamp),
    (date, lambda value: (_Type("DATE"), value.isoformat())),
    (time, _time),
    (timedelta, _interval),
    (
        (bytes, bytearray, memoryview),
        lambda value: (_Type("BINARY"), base64.b64encode(value).decode()),
    ),
    (UUID, lambda value: (_Type("STRING"), str(value))),
    ((list, tuple), _array),
    (dict, _map),
)


# Many sets of parameters of one INSERT as Arrow rows, where each column has one type.
#
# The server then stores the same as for the statement: it takes rows only if they fit their columns
# without loss. All other sets stay a statement.


ROWS_MIN: Final = 1000
"""Fewer parameter sets are sent as a statement: for rows a server must check the table first.

Chosen.
"""
_BATCH_ROWS: Final = 10_000


def as_rows(insert: ValueInsert, sets: Sequence[Parameters]) -> pa.Table | None:
    """Return the parameter sets of an INSERT as a table, with a column for each marker.

    None if the values of a column are not of one type.
    """
    markers = insert.markers
    if markers[0]:
        if not all(isinstance(each, Mapping) and each.keys() == set(markers) for each in sets):
            return None
        rows = [[each[name] for name in markers] for each in sets]  # type: ignore[call-overload]
    else:
        if not all(isinstance(each, list | tuple) and len(each) == len(markers) for each in sets):
            return None
        rows = list(sets)  # type: ignore[arg-type]
    arrays = [_column([row[at] for row in rows]) for at in range(len(markers))]
    if any(array is None for array in arrays):
        return None
    batch = pa.RecordBatch.from_arrays(arrays, [str(at) for at in range(len(markers))])
    return pa.Table.from_batches(
        [batch.slice(begin, _BATCH_ROWS) for begin in range(0, len(rows), _BATCH_ROWS)]
    )


def _column(values: list[Any]) -> pa.Array | None:
    """Return values of one type as an Arrow array; None if they have different types."""
    found = set(map(type, values)) - {type(None)}
    if len(found) != 1:
        return None
    make = _MAKE.get(found.pop())
    try:
        return make(values) if make is not None else None
    except (ValueError, TypeError, ArithmeticError):  # the statement's error shows their fault
        return None


def _integers(values: list[Any]) -> pa.Array:
    """Return the integers as the narrowest Arrow type that holds them: it fits most columns."""
    wide = pa.array(values, pa.int64())
    for narrow in (pa.int8(), pa.int16(), pa.int32()):
        try:
            return wide.cast(narrow)
        except pa.ArrowInvalid:
            continue
    return wide


def _moments(values: list[Any]) -> pa.Array | None:
    aware = {value.utcoffset() is not None for value in values if value is not None}
    return (
        pa.array(values, pa.timestamp("us", "UTC" if True in aware else None))
        if (len(aware) == 1)
        else None
    )


def _times(values: list[Any]) -> pa.Array | None:
    if any(value is not None and value.tzinfo is not None for value in values):
        return None
    return pa.array(values, pa.time64("us"))


_MAKE: Final[dict[type, Callable[[list[Any]], pa.Array | None]]] = {
    bool: lambda values: pa.array(values, pa.bool_()),
    int: _integers,
    float: lambda values: pa.array(values, pa.float64()),
    Decimal: pa.array,
    str: lambda values: pa.array(values, pa.string()),
    bytes: lambda values: pa.array(values, pa.binary()),
    date: lambda values: pa.array(values, pa.date32()),
    datetime: _moments,
    time: _times,
    timedelta: lambda values: pa.array(values, pa.duration("us")),
    UUID: lambda values: pa.array([None if v is None else str(v) for v in values], pa.string()),
}
