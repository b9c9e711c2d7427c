"""Writes values as SQL literals of exactly the wanted type, also those of now() and the session."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import StrEnum
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from haproc.classify.model import RefusedError
from haproc.classify.tokens import SPECIAL_DATETIME
from haproc.failure import ErrorClass
from haproc.pin.sqltypes import DAY_TIME_UNITS, DECIMAL_DIGITS_MAX, SqlType

# The treatment of a statement, and the moment to which its changing parts are fixed.


class Treatment(StrEnum):
    """What must be done with a statement so that it has the same result on every cluster."""

    REPLICATE = "replicate"
    """Nothing more: its text means the same on every cluster."""
    MATERIALISE = "materialise"
    """Its query is run once, and the rows are put into the log instead."""
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Moment:
    """The values that now(), current_user() and similar functions have in one statement.

    ``now`` has the time zone UTC; ``time_zone``, ``catalog`` and ``schema`` are the session's.
    """

    now: datetime
    time_zone: str
    user: str
    catalog: str
    schema: str


# A `Moment` as literals: the values of the clock and the session for one statement.
#
# Instants are written in the session's time zone with their offset, so that they mean the same in
# any zone.


_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{2}))?(?::?([0-9]{2}))?")
_DAYS_FROM_TODAY = {"now": 0, "today": 0, "tomorrow": 1, "yesterday": -1}


def zone_of(name: str) -> tzinfo:
    """Return the time zone of this name, in any spelling that Spark accepts.

    Raises RefusedError.
    """
    match = _OFFSET.fullmatch(name)
    if match is not None:
        hours, minutes, seconds = (int(part or 0) for part in match.groups()[1:])
        size = timedelta(hours=hours, minutes=minutes, seconds=seconds)
        if size < timedelta(hours=24):
            return timezone(-size if match[1] == "-" else size)
    if name.upper() in ("Z", "UTC", "GMT", "UT"):
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise RefusedError(
            ErrorClass.TIME_ZONE,
            f"the session's time zone {name!r} is unknown here",
            "set spark.sql.session.timeZone to a name such as Europe/Berlin or an offset",
        ) from error


def local_time(moment: Moment) -> datetime:
    """Return the moment's ``now`` in the session's time zone; raises RefusedError."""
    return moment.now.astimezone(zone_of(moment.time_zone))


def _wall(at: datetime) -> str:
    return at.replace(tzinfo=None).isoformat(sep=" ")


def date_text(day: date) -> str:
    """Return a day as a DATE literal."""
    return f"DATE '{day.isoformat()}'"


def instant_text(at: datetime, type_name: str = "TIMESTAMP", *, plain: bool = False) -> str:
    """Return a time as a TIMESTAMP literal, or as one of the type ``type_name``.

    The literal has the offset of its zone. With ``plain`` it has none, unless the session's clocks
    show this time twice: INSERTs of literals without an offset can be combined, and the session's
    time zone is in the log with the statement.
    """
    offset = at.utcoffset() or timedelta()
    if plain and at.replace(fold=0).utcoffset() == at.replace(fold=1).utcoffset():
        return f"{type_name} '{_wall(at)}'"
    if offset.total_seconds() % 60:
        at = at.astimezone(UTC)  # Spark's offsets have minutes at the finest
    return f"{type_name} '{at.isoformat(sep=' ')}'"


def clock_literal(name: str, moment: Moment, *, plain: bool = False) -> str:
    """Return the value of the clock function ``name`` at the moment, as a literal.

    ``name``: a function without arguments. ``plain``: as in `instant_text`. Raises RefusedError.
    """
    now = local_time(moment)
    if name in ("current_date", "curdate"):
        return date_text(now.date())
    if name == "current_time":
        return f"TIME '{now.time().isoformat()}'"
    if name == "localtimestamp":
        return f"TIMESTAMP_NTZ '{_wall(now)}'"
    if name == "unix_timestamp":
        return f"{math.floor(moment.now.timestamp())}L"
    return instant_text(now, plain=plain)


def identity_literal(name: str, moment: Moment) -> str:
    """Return the value of current_user, current_schema or a similar ``name`` as a literal."""
    if name in ("current_user", "user", "session_user"):
        return string_literal(moment.user)
    if name == "current_catalog":
        return string_literal(moment.catalog)
    if name == "current_timezone":
        return string_literal(moment.time_zone)
    return string_literal(moment.schema)


def special_datetime_literal(text: str, type_name: str, moment: Moment) -> str | None:
    """Return the literal that ``'now'``, ``'today'``, ``'tomorrow'`` or ``'yesterday'`` stands for.

    None for any other text, also if a zone follows the word. Raises RefusedError.
    """
    match = SPECIAL_DATETIME.fullmatch(text)
    if match is None or match[2].strip():
        return None
    word = match[1].lower()
    now = local_time(moment)
    day = now.date() + timedelta(days=_DAYS_FROM_TODAY[word])
    if type_name == "DATE":
        return date_text(day)
    midnight = datetime(day.year, day.month, day.day, tzinfo=now.tzinfo)
    at = now if word == "now" else midnight
    if type_name == "TIMESTAMP_NTZ":
        return f"TIMESTAMP_NTZ '{_wall(at)}'"
    return instant_text(at, type_name)


# Values as SQL text: literals that Spark reads back as equal values of exactly the wanted type.
#
# The plainest form that has the type is chosen (``12``, ``12L``, ``'abc'``, ``1.50``,
# ``DATE '2026-01-01'``), because INSERTs of plain literals can be combined; a CAST is written only
# where no literal has the type. Nothing depends on the session: instants carry an offset, and the
# text is right with ANSI mode on and off.
#
# Strings are written with backslash escapes. Control characters are escaped too, and so is the
# ``$`` of ``${``: Spark replaces ``${name}`` in the whole text of a statement, inside strings as
# well, by a setting, and by nothing where there is none.


_ESCAPED = re.compile(r"[\\'\x00-\x1f\x7f-\x9f\u2028\u2029]|\$(?=\{)")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NAMED_ESCAPES = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_INTEGERS = {
    "TINYINT": (8, "Y"),
    "SMALLINT": (16, "S"),
    "INT": (32, ""),
    "BIGINT": (64, "L"),
}
_MICROS_PER_S = 1_000_000
_MICROS_PER_DAY = 86_400 * _MICROS_PER_S
_FLOAT_MAX = 3.4028234663852886e38


class LiteralError(ValueError):
    """A value cannot be written as a literal of the wanted type."""


def _escape(match: re.Match[str]) -> str:
    character = match.group()
    return _NAMED_ESCAPES.get(character) or f"\\u{ord(character):04x}"


def string_literal(text: str) -> str:
    """Return the text as a string literal; raises LiteralError for half a surrogate pair."""
    if _SURROGATE.search(text):
        raise LiteralError("the text holds half a surrogate pair, which is no character")
    return f"'{_ESCAPED.sub(_escape, text)}'"


def integer_literal(value: int, type_name: str) -> str:
    """Return a literal of TINYINT, SMALLINT, INT or BIGINT; raises LiteralError if out of range."""
    bits, suffix = _INTEGERS[type_name]
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise LiteralError(f"{value} is out of range for {type_name}")
    return f"{value}{suffix}"


def double_literal(value: float) -> str:
    """Return a DOUBLE literal that Spark reads as exactly this value (as some NaN for a NaN)."""
    if math.isnan(value) or math.isinf(value):
        return f"CAST({_special_float(value)} AS DOUBLE)"
    return f"{_exponent_form(repr(value))}D"


def float_literal(value: float) -> str:
    """Return a FLOAT literal: the shortest decimal that Spark reads as this value.

    Raises LiteralError if it is out of range.
    """
    if math.isnan(value) or math.isinf(value):
        return f"CAST({_special_float(value)} AS FLOAT)"
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        raise LiteralError(f"{value!r} is out of range for FLOAT") from None
    for digits in (6, 7, 8, 9):
        text = f"{value:.{digits}g}"
        if abs(float(text)) <= _FLOAT_MAX and struct.pack("<f", float(text)) == packed:
            return f"{_exponent_form(text)}F"
    return f"{_exponent_form(repr(struct.unpack('<f', packed)[0]))}F"


def _special_float(value: float) -> str:
    return "'NaN'" if math.isnan(value) else "'Infinity'" if value > 0 else "'-Infinity'"


def _exponent_form(text: str) -> str:
    return text.replace("e+", "E").replace("e", "E")


def decimal_literal(value: Decimal, kind: SqlType) -> str:
    """Return a literal of DECIMAL(p,s); raises LiteralError if the value does not fit.

    If the type has no p and s, those of the value's digits are taken.
    """
    if not value.is_finite():
        raise LiteralError(f"{value} is not a DECIMAL")
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    if kind.precision is None and -exponent > DECIMAL_DIGITS_MAX:
        raise LiteralError(f"a DECIMAL has at most {DECIMAL_DIGITS_MAX} digits")
    scale = max(-exponent, 0) if kind.precision is None else kind.scale
    unscaled = int("".join(map(str, digits)))
    shift = exponent + scale
    if shift < 0:
        unscaled, lost = divmod(unscaled, 10 ** min(-shift, len(digits) + 1))
        if lost:
            raise LiteralError(f"{value} has more than {scale} digits behind the point")
    elif unscaled:
        if shift > DECIMAL_DIGITS_MAX:
            raise LiteralError(f"{value} is out of range for {kind.text}")
        unscaled *= 10**shift
    plain = str(unscaled)
    natural = max(len(plain), scale)
    if natural > (kind.precision or DECIMAL_DIGITS_MAX):
        raise LiteralError(f"{value} is out of range for {kind.text}")
    if scale:
        padded = plain.zfill(scale + 1)
        plain = f"{padded[:-scale]}.{padded[-scale:]}"
    else:
        plain += "BD"
    if sign and unscaled:
        plain = f"-{plain}"
    return plain if natural == (kind.precision or natural) else f"CAST({plain} AS {kind.text})"


def _date_text(days: int) -> str:
    """Return the date so many days after 1970-01-01 as text, for any year.

    The calendar is the proleptic Gregorian one.
    """
    # Howard Hinnant's civil_from_days: exact where datetime.date ends at year 9999.
    shifted = days + 719_468
    era, day_of_era = divmod(shifted, 146_097)
    year_of_era = (
        day_of_era - day_of_era // 1_460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_index = (5 * day_of_year + 2) // 153
    day = day_of_year - (153 * month_index + 2) // 5 + 1
    month = month_index + 3 if month_index < 10 else month_index - 9
    year = year_of_era + era * 400 + (month <= 2)
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{month:02d}-{day:02d}"


def _clock_text(micros: int) -> str:
    seconds, fraction = divmod(micros, _MICROS_PER_S)
    minutes, second = divmod(seconds, 60)
    text = f"{minutes // 60:02d}:{minutes % 60:02d}:{second:02d}"
    return f"{text}.{fraction:06d}" if fraction else text


def wall_text(micros: int) -> str:
    """Return microseconds since 1970-01-01 00:00 as text: ``yyyy-mm-dd hh:mm:ss[.ffffff]``."""
    days, rest = divmod(micros, _MICROS_PER_DAY)
    return f"{_date_text(days)} {_clock_text(rest)}"


def date_literal(days: int) -> str:
    """Return the day so many days after 1970-01-01 as a DATE literal."""
    return f"DATE '{_date_text(days)}'"


def timestamp_literal(micros: int, kind: SqlType) -> str:
    """Return microseconds since 1970-01-01 as a literal of the TIMESTAMP type ``kind``.

    They are UTC; for TIMESTAMP_NTZ they are the time on the wall.
    """
    zone = "" if kind.name == "TIMESTAMP_NTZ" else "+00:00"
    return f"{kind.name} '{wall_text(micros)}{zone}'"


def time_literal(micros: int, kind: SqlType) -> str:
    """Return microseconds since midnight as a TIME literal.

    Raises LiteralError if not within a day.
    """
    if not 0 <= micros < _MICROS_PER_DAY:
        raise LiteralError("a TIME lies between 00:00:00 and 23:59:59.999999")
    plain = f"TIME '{_clock_text(micros)}'"
    return plain if kind.precision in (None, 6) else f"CAST({plain} AS {kind.text})"


def interval_literal(value: int, kind: SqlType) -> str:
    """Return an INTERVAL literal of ``value`` months or microseconds, as the type's units demand.

    Raises LiteralError if it is out of range.
    """
    assert kind.units is not None
    sign = "-" if value < 0 else ""
    if kind.units[0] in DAY_TIME_UNITS:
        if not -(1 << 63) <= value < 1 << 63:
            raise LiteralError(f"the interval is out of range for {kind.text}")
        days, rest = divmod(abs(value), _MICROS_PER_DAY)
        plain, whole = f"INTERVAL '{sign}{days} {_clock_text(rest)}' DAY TO SECOND", "DAY"
    else:
        if not -(1 << 31) <= value < 1 << 31:
            raise LiteralError(f"the interval is out of range for {kind.text}")
        years, months = divmod(abs(value), 12)
        plain, whole = f"INTERVAL '{sign}{years}-{months}' YEAR TO MONTH", "YEAR"
    full = (whole, "SECOND" if whole == "DAY" else "MONTH")
    return plain if kind.units == full else f"CAST({plain} AS {kind.text})"


def null_literal(kind: SqlType) -> str:
    """Return NULL as an expression of the type."""
    return "NULL" if kind.name == "VOID" else f"CAST(NULL AS {kind.text})"


def array_literal(items: Sequence[str], kind: SqlType) -> str:
    """Return an array expression; ``items``: literals that have the element type already."""
    plain = f"array({', '.join(items)})"
    return plain if items else f"CAST({plain} AS {kind.text})"


def map_literal(pairs: Sequence[tuple[str, str]], kind: SqlType) -> str:
    """Return a map expression.

    ``pairs``: literals that have the key's and the value's type already.
    """
    plain = f"map({', '.join(f'{key}, {value}' for key, value in pairs)})"
    return plain if pairs else f"CAST({plain} AS {kind.text})"


def struct_literal(names: Sequence[str], items: Sequence[str]) -> str:
    """Return a struct expression; ``items``: literals that have the types of the fields already."""
    pairs = zip(names, items, strict=True)
    return f"named_struct({', '.join(f'{string_literal(n)}, {item}' for n, item in pairs)})"


_SCALARS: Mapping[str, Callable[[Any, SqlType], str]] = {
    "BOOLEAN": lambda value, _: "TRUE" if value else "FALSE",
    **dict.fromkeys(_INTEGERS, lambda value, kind: integer_literal(value, kind.name)),
    "FLOAT": lambda value, _: float_literal(value),
    "DOUBLE": lambda value, _: double_literal(value),
    "DECIMAL": decimal_literal,
    "BINARY": lambda value, _: f"X'{value.hex().upper()}'",
    "DATE": lambda value, _: date_literal(value),
    "TIMESTAMP": timestamp_literal,
    "TIMESTAMP_LTZ": timestamp_literal,
    "TIMESTAMP_NTZ": timestamp_literal,
    "TIME": time_literal,
    "INTERVAL": interval_literal,
    "VARIANT": lambda value, _: f"parse_json({string_literal(value)})",
}


def literal(value: Any, kind: SqlType) -> str:
    """Return ``value`` as a literal of the type ``kind``; raises LiteralError.

    ``value`` is None, bool, int, float, Decimal, str or bytes; for DATE days and for TIMESTAMP…
    microseconds since 1970-01-01 (UTC, or the time on the wall for TIMESTAMP_NTZ); for TIME
    microseconds since midnight; for INTERVAL microseconds or months; for VARIANT JSON text; for
    ARRAY and STRUCT a sequence; for MAP a sequence of pairs.
    """
    if value is None:
        return null_literal(kind)
    if kind.name == "STRING":
        plain = string_literal(value)
        return f"CAST({plain} AS {kind.text})" if kind.collation else plain
    if kind.name == "ARRAY":
        return array_literal([literal(item, kind.arguments[0]) for item in value], kind)
    if kind.name == "MAP":
        of_key, of_value = kind.arguments
        return map_literal([(literal(k, of_key), literal(v, of_value)) for k, v in value], kind)
    if kind.name == "STRUCT":
        typed = zip(value, kind.arguments, strict=True)
        return struct_literal(kind.fields, [literal(item, of) for item, of in typed])
    write = _SCALARS.get(kind.name)
    if write is None or (kind.name == "INTERVAL" and kind.units is None):
        raise LiteralError(f"a value of type {kind.text} cannot be written as a literal")
    return write(value, kind)
