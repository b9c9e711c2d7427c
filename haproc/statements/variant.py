"""Values without a plain form as text: VARIANT as JSON, dates and times of any year."""

from __future__ import annotations

import base64
import datetime
import json
import math
import struct
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final

# Dates and times as text, in years that Python's own classes do not have, too.
#
# Spark has the years from -290,308 to 294,247. One of more than four digits has a sign, as ISO
# 8601 and Spark have it: ``+12024-01-02``.


_DAYS_OF_400_YEARS: Final = 146_097
_EPOCH_DAY: Final = datetime.date(1970, 1, 1).toordinal()
_MIDNIGHT: Final = datetime.datetime(1970, 1, 1)
_DAY_US: Final = 86_400_000_000


def date_text(days: int) -> str:
    """Return the date that is so many days after 1970-01-01."""
    cycles, rest = divmod(days + _EPOCH_DAY - 1, _DAYS_OF_400_YEARS)
    found = datetime.date.fromordinal(rest + 1)  # in the first 400 years
    year = found.year + 400 * cycles
    text = f"{year:04}" if 0 <= year <= 9999 else f"{year:+05}"
    return f"{text}-{found:%m-%d}"


def timestamp_text(micros: int, zone: str = "") -> str:
    """Return the time so many microseconds after 1970, with this text for its zone."""
    days, rest = divmod(micros, _DAY_US)
    unit = "microseconds" if micros % 1000 else "milliseconds"
    time = (_MIDNIGHT + datetime.timedelta(microseconds=rest)).time()
    return f"{date_text(days)}T{time.isoformat(timespec=unit)}{zone}"


# Values of type VARIANT as JSON text, from the two pieces of binary that Spark gives for one.
#
# The metadata hold the names of all fields, the value refers to them by number. What a byte of the
# value begins with says what follows: see `VariantUtils` in PySpark.


_PRIMITIVE, _SHORT_STRING, _OBJECT, _ARRAY = range(4)
_NAMED: Final = {0: "null", 1: "true", 2: "false"}
_INTEGER_BYTES: Final = {3: 1, 4: 2, 5: 4, 6: 8}
_DECIMAL_BYTES: Final = {8: 4, 9: 8, 10: 16}


def json_of(value: bytes, metadata: bytes) -> str:
    """Return the value as JSON; raises ValueError for what is none.

    Dates, times and binary are texts, as in a result's other columns.
    """
    try:
        return _json(value, 0, _names(metadata))
    except (IndexError, struct.error) as error:
        raise ValueError("a VARIANT that cannot be read") from error


def _names(metadata: bytes) -> list[str]:
    size = (metadata[0] >> 6) + 1
    count = _unsigned(metadata, 1, size)
    offsets = [_unsigned(metadata, 1 + (1 + at) * size, size) for at in range(count + 1)]
    texts = 1 + (count + 2) * size
    return [metadata[texts + begin : texts + end].decode() for begin, end in pairwise(offsets)]


def _json(value: bytes, at: int, names: list[str]) -> str:
    basic, info = value[at] & 3, value[at] >> 2
    if basic == _SHORT_STRING:
        return _text(value[at + 1 : at + 1 + info].decode())
    if basic == _OBJECT:
        fields = _object(value, at + 1, info)
        return f"{{{','.join(f'{_text(names[n])}:{_json(value, v, names)}' for n, v in fields)}}}"
    if basic == _ARRAY:
        items = _array(value, at + 1, info)
        return f"[{','.join(_json(value, each, names) for each in items)}]"
    return _primitive(value, at + 1, info)


def _object(value: bytes, at: int, info: int) -> Iterator[tuple[int, int]]:
    """Yield the numbers of the fields' names, and where their values begin."""
    offset, number, large = (info & 3) + 1, (info >> 2 & 3) + 1, info >> 4 & 1
    count = _unsigned(value, at, 4 if large else 1)
    numbers = at + (4 if large else 1)
    offsets = numbers + count * number
    values = offsets + (count + 1) * offset
    for each in range(count):
        yield (
            _unsigned(value, numbers + each * number, number),
            values + _unsigned(value, offsets + each * offset, offset),
        )


def _array(value: bytes, at: int, info: int) -> Iterator[int]:
    """Yield where the items begin."""
    offset, large = (info & 3) + 1, info >> 2 & 1
    count = _unsigned(value, at, 4 if large else 1)
    offsets = at + (4 if large else 1)
    values = offsets + (count + 1) * offset
    for each in range(count):
        yield values + _unsigned(value, offsets + each * offset, offset)


def _primitive(value: bytes, at: int, kind: int) -> str:
    if kind in _NAMED:
        return _NAMED[kind]
    if kind in _INTEGER_BYTES:
        return str(_signed(value, at, _INTEGER_BYTES[kind]))
    if kind in _DECIMAL_BYTES:
        unscaled = _signed(value, at + 1, _DECIMAL_BYTES[kind])
        return format(Decimal(unscaled).scaleb(-value[at]), "f")
    if kind not in _OTHERS:
        raise ValueError(f"a VARIANT of kind {kind}, which is not known")
    return _OTHERS[kind](value, at)


def _float(found: float, digits: str) -> str:
    if math.isfinite(found):
        return digits
    return _text("NaN" if math.isnan(found) else "Infinity" if found > 0 else "-Infinity")


def _double(value: bytes, at: int) -> str:
    (found,) = struct.unpack_from("<d", value, at)
    return _float(found, repr(found))


def _single(value: bytes, at: int) -> str:
    (found,) = struct.unpack_from("<f", value, at)
    short = next(text for digits in range(6, 10) if _same(text := f"{found:.{digits}g}", found))
    return _float(found, short)


def _same(text: str, found: float) -> bool:
    return not math.isfinite(found) or struct.pack("<f", float(text)) == struct.pack("<f", found)


def _counted(value: bytes, at: int) -> bytes:
    return value[at + 4 : at + 4 + _unsigned(value, at, 4)]


_OTHERS: Final[dict[int, Callable[[bytes, int], str]]] = {
    7: _double,
    11: lambda value, at: _text(date_text(_signed(value, at, 4))),
    12: lambda value, at: _text(timestamp_text(_signed(value, at, 8), "Z")),
    13: lambda value, at: _text(timestamp_text(_signed(value, at, 8))),
    14: _single,
    15: lambda value, at: _text(base64.b64encode(_counted(value, at)).decode()),
    16: lambda value, at: _text(_counted(value, at).decode()),
}


def _text(text: Any) -> str:
    return json.dumps(text, ensure_ascii=False)


def _unsigned(data: bytes, at: int, size: int) -> int:
    return _number(data, at, size, signed=False)


def _signed(data: bytes, at: int, size: int) -> int:
    return _number(data, at, size, signed=True)


def _number(data: bytes, at: int, size: int, *, signed: bool) -> int:
    found = data[at : at + size]
    if len(found) < size:
        raise IndexError
    return int.from_bytes(found, "little", signed=signed)
