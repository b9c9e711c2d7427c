"""Values for which pyarrow has no Python form, one by one: far dates, maps with keys that nest.

Spark has the years from -290,308 to 294,247, Python those from 1 to 9999. Dates and times beyond
are text, as HTTP's JSON has them (``+12024-01-02``, ``+12024-01-02T03:04:05.000Z``).
"""

from __future__ import annotations

import datetime
from typing import Any, Final

import pyarrow as pa

_DAYS_OF_400_YEARS: Final = 146_097
_EPOCH_DAY: Final = datetime.date(1970, 1, 1).toordinal()
_MIDNIGHT: Final = datetime.datetime(1970, 1, 1)
_DAY_US: Final = 86_400_000_000
_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000}


def value(scalar: Any) -> Any:
    """Return a value; raises what pyarrow does where there is none."""
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
    """Return the date that is so many days after 1970-01-01."""
    cycles, rest = divmod(days + _EPOCH_DAY - 1, _DAYS_OF_400_YEARS)
    found = datetime.date.fromordinal(rest + 1)  # in the first 400 years
    year = found.year + 400 * cycles
    text = f"{year:04}" if 0 <= year <= 9999 else f"{year:+05}"
    return f"{text}-{found:%m-%d}"


def timestamp_text(micros: int) -> str:
    """Return the time that is so many microseconds after 1970."""
    days, rest = divmod(micros, _DAY_US)
    unit = "microseconds" if micros % 1000 else "milliseconds"
    time = (_MIDNIGHT + datetime.timedelta(microseconds=rest)).time()
    return f"{date_text(days)}T{time.isoformat(timespec=unit)}"


def _entries(scalar: Any) -> list[tuple[Any, Any]]:
    entries = scalar.values
    return list(zip(entries.field(0), entries.field(1), strict=True))
