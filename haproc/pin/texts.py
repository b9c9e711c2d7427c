"""Writes a parameter's value, given as text or JSON, as a literal of its type.

The texts are those that Spark's own CAST from STRING reads for the type. Where Spark accepts
surprising texts, this module is stricter (no ``'today'`` for a DATE, no silent truncation). BINARY
is base64, as in results in JSON.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import Any

from haproc.pin.literals import (
    LiteralError,
    array_literal,
    date_literal,
    decimal_literal,
    double_literal,
    float_literal,
    integer_literal,
    interval_literal,
    literal,
    map_literal,
    null_literal,
    string_literal,
    struct_literal,
    time_literal,
)
from haproc.pin.sqltypes import (
    DAY_TIME_UNITS,
    YEAR_MONTH_UNITS,
    SqlType,
    TypeTextError,
    parse_type,
)

_EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
_NESTED = frozenset({"ARRAY", "MAP", "STRUCT"})
_TRUE = frozenset({"true", "t", "yes", "y", "1"})
_FALSE = frozenset({"false", "f", "no", "n", "0"})
_INTEGER = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,5})?")
_SPECIAL_FLOAT = re.compile(r"nan|[+-]?inf(inity)?", re.IGNORECASE | re.ASCII)
_DATE = re.compile(r"([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})")
_TIME = re.compile(r"([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{1,6}))?)?")
_ZONE = re.compile(r"\s*(Z|UTC|GMT|[+-][0-9]{1,2}(?::?[0-9]{2})?|[A-Za-z]+(?:/[A-Za-z0-9_+-]+)+)")
_SPELT_INTERVAL = re.compile(
    r"(?:INTERVAL\s+)?(?:'([^']*)'|([+-]?[0-9.]+))\s+([A-Za-z]+?)S?(?:\s+TO\s+([A-Za-z]+?)S?)?",
    re.IGNORECASE,
)
SCALAR_CHARS_MAX = 2000
"""The most characters of a number, a date and the like; the longest DOUBLE has about 1,100."""
_MICROS = {"DAY": 86_400_000_000, "HOUR": 3_600_000_000, "MINUTE": 60_000_000, "SECOND": 1_000_000}
_LIMITS = {"HOUR": 23, "MINUTE": 59, "SECOND": 59, "MONTH": 11}


def text_literal(text: str, kind: SqlType) -> str:
    """Return the text as a literal of the type ``kind``; raises LiteralError."""
    if kind.name == "STRING":
        return literal(text, kind)
    if kind.name in _NESTED:
        try:
            return json_literal(json.loads(text), kind)
        except (json.JSONDecodeError, RecursionError) as error:
            raise LiteralError(f"the value of a {kind.text} is JSON, and this is not") from error
    read = _READERS.get(kind.name)
    if read is None:
        raise LiteralError(f"a value of type {kind.text} can only be NULL")
    if len(text) > SCALAR_CHARS_MAX and kind.name not in ("BINARY", "VARIANT"):
        raise _wrong(text, kind)
    return read(text.strip(), kind)


def json_literal(value: Any, kind: SqlType) -> str:
    """Return a JSON value as a literal of the type ``kind``; raises LiteralError.

    An ARRAY is a list, a STRUCT an object with its fields (a missing one is NULL), a MAP an object
    or a list of ``[key, value]`` pairs. Other types are a text, or a JSON number or boolean.
    """
    if value is None:
        return null_literal(kind)
    if kind.name == "ARRAY" and isinstance(value, list):
        return array_literal([json_literal(item, kind.arguments[0]) for item in value], kind)
    if kind.name == "MAP" and isinstance(value, dict | list):
        return _json_map(value, kind)
    if kind.name == "STRUCT" and isinstance(value, dict):
        surplus = sorted(value.keys() - set(kind.fields))
        if surplus:
            raise LiteralError(f"{kind.text} has no field {surplus[0]!r}")
        pairs = zip(kind.fields, kind.arguments, strict=True)
        items = [json_literal(value.get(name), of) for name, of in pairs]
        return struct_literal(kind.fields, items)
    if kind.name not in _NESTED:
        if isinstance(value, str):
            return text_literal(value, kind)
        fits = isinstance(value, bool) == (kind.name == "BOOLEAN") and kind.name in _FROM_JSON
        if fits and isinstance(value, bool | int | float):
            return text_literal(json.dumps(value), kind)
    raise LiteralError(f"{json.dumps(value)[:60]} is not a value of type {kind.text}")


def _json_map(value: dict[str, Any] | list[Any], kind: SqlType) -> str:
    of_key, of_value = kind.arguments
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise LiteralError(f"a {kind.text} is an object or a list of [key, value] pairs")
    if any(key is None for key, _ in pairs):
        raise LiteralError(f"a key of a {kind.text} cannot be NULL")
    written = [(json_literal(key, of_key), json_literal(item, of_value)) for key, item in pairs]
    if len({key for key, _ in written}) < len(written):
        raise LiteralError(f"two keys of the {kind.text} are the same")
    return map_literal(written, kind)


def _wrong(text: str, kind: SqlType, wanted: str = "") -> LiteralError:
    return LiteralError(f"{text[:60]!r} is not a value of type {kind.text}" + wanted)


def _boolean(text: str, kind: SqlType) -> str:
    lowered = text.lower()
    if lowered in _TRUE:
        return "TRUE"
    if lowered in _FALSE:
        return "FALSE"
    raise _wrong(text, kind, ": write true or false")


def _integer(text: str, kind: SqlType) -> str:
    if not _INTEGER.fullmatch(text):
        raise _wrong(text, kind)
    return integer_literal(int(text), kind.name)


def _floating(text: str, kind: SqlType) -> str:
    special = _SPECIAL_FLOAT.fullmatch(text)
    if not (special or _NUMBER.fullmatch(text)):
        raise _wrong(text, kind)
    value = float(text)
    if not special and math.isinf(value):
        raise LiteralError(f"{text[:60]} is out of range for {kind.text}")
    return float_literal(value) if kind.name == "FLOAT" else double_literal(value)


def _decimal(text: str, kind: SqlType) -> str:
    if not _NUMBER.fullmatch(text):
        raise _wrong(text, kind)
    try:
        return decimal_literal(Decimal(text), kind)
    except InvalidOperation as error:
        raise _wrong(text, kind) from error


def _binary(text: str, kind: SqlType) -> str:
    try:
        return f"X'{base64.b64decode(text, validate=True).hex().upper()}'"
    except (binascii.Error, ValueError) as error:
        raise _wrong(text, kind, ": write the bytes in base64") from error


def _days(text: str, kind: SqlType, wanted: str = ": write yyyy-mm-dd") -> int:
    match = _DATE.fullmatch(text)
    try:
        if match is not None:
            return date(*map(int, match.groups())).toordinal() - _EPOCH_ORDINAL
    except ValueError as error:
        raise _wrong(text, kind, f": {error}") from error
    raise _wrong(text, kind, wanted)


def _date(text: str, kind: SqlType) -> str:
    return date_literal(_days(text, kind))


def _time_micros(text: str, kind: SqlType) -> int:
    match = _TIME.fullmatch(text)
    if match is None:
        raise _wrong(text, kind, ": write hh:mm:ss[.ffffff]")
    hour, minute, second = (int(part or 0) for part in match.groups()[:3])
    if hour > 23 or minute > 59 or second > 59:
        raise _wrong(text, kind, ": there is no such time of day")
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + int((match[4] or "").ljust(6, "0"))


def _time(text: str, kind: SqlType) -> str:
    return time_literal(_time_micros(text, kind), kind)


def _timestamp(text: str, kind: SqlType) -> str:
    """Return the literal of a time; without a zone, a TIMESTAMP is in the session's time zone."""
    wanted = ": write yyyy-mm-dd hh:mm:ss[.ffffff] and, if need be, a zone or offset"
    day, _, rest = text.replace("T", " ", 1).partition(" ")
    days = _days(day, kind, wanted)
    clock = re.match(r"\s*([0-9:.]*)", rest)
    assert clock is not None  # the pattern matches anything
    micros = _time_micros(clock.group(1), kind) if clock.group(1) else 0
    zone = rest[clock.end() :]
    if zone and (kind.name == "TIMESTAMP_NTZ" or not _ZONE.fullmatch(zone)):
        raise _wrong(text, kind, wanted)
    day_text = date_literal(days)[6:-1]
    time_text = time_literal(micros, SqlType("TIME"))[6:-1]
    gap = " " if zone and zone.strip()[0].isalpha() else ""
    return f"{kind.name} '{day_text} {time_text}{gap}{zone.strip()}'"


def _interval(text: str, kind: SqlType) -> str:
    spelt = _SPELT_INTERVAL.fullmatch(text)
    if spelt is not None:
        last = f" TO {spelt[4]}" if spelt[4] else ""
        try:
            own = parse_type(f"INTERVAL {spelt[3]}{last}")
        except TypeTextError as error:
            raise _wrong(text, kind) from error
        kind, text = own if kind.units is None else kind, spelt[1] or spelt[2]
        if own.units != kind.units:
            raise _wrong(text, kind)
    if kind.units is None:
        raise _wrong(text, kind, ": name the units, as in INTERVAL '1 02:03:04' DAY TO SECOND")
    return interval_literal(_interval_value(text.strip(), kind), kind)


def _interval_value(text: str, kind: SqlType) -> int:
    """Return the months or microseconds of a text such as ``1 02:03:04.5`` in the type's units.

    Raises LiteralError.
    """
    assert kind.units is not None
    family = DAY_TIME_UNITS if kind.units[0] in DAY_TIME_UNITS else YEAR_MONTH_UNITS
    units = family[family.index(kind.units[0]) : family.index(kind.units[1]) + 1]
    pattern = r"([+-]?)([0-9]{1,19})"
    for before, _ in pairwise(units):
        pattern += {"DAY": " +", "YEAR": "-"}.get(before, ":") + "([0-9]{1,2})"
    pattern += r"(?:\.([0-9]{1,6}))?" if units[-1] == "SECOND" else "()"
    match = re.fullmatch(pattern, text)
    if match is None:
        raise _wrong(text, kind)
    fields = [int(field) for field in match.groups()[1:-1]]
    for unit, field in list(zip(units, fields, strict=True))[1:]:
        if field > _LIMITS[unit]:
            raise _wrong(text, kind, f": a {unit} is at most {_LIMITS[unit]} here")
    scale = _MICROS if units[0] in _MICROS else {"YEAR": 12, "MONTH": 1}
    value = sum(scale[unit] * field for unit, field in zip(units, fields, strict=True))
    value += int((match.groups()[-1] or "").ljust(6, "0")) if units[-1] == "SECOND" else 0
    return -value if match[1] == "-" else value


def _variant(text: str, kind: SqlType) -> str:
    return f"parse_json({string_literal(text)})"


_READERS: Mapping[str, Callable[[str, SqlType], str]] = {
    "BOOLEAN": _boolean,
    "TINYINT": _integer,
    "SMALLINT": _integer,
    "INT": _integer,
    "BIGINT": _integer,
    "FLOAT": _floating,
    "DOUBLE": _floating,
    "DECIMAL": _decimal,
    "BINARY": _binary,
    "DATE": _date,
    "TIME": _time,
    "TIMESTAMP": _timestamp,
    "TIMESTAMP_LTZ": _timestamp,
    "TIMESTAMP_NTZ": _timestamp,
    "INTERVAL": _interval,
    "VARIANT": _variant,
}
_FROM_JSON = frozenset(
    {"BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL"}
)
