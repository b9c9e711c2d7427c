"""Dates and times as text, in years that Python's own classes do not have, too.

Spark has the years from -290,308 to 294,247. One of more than four digits has a sign, as ISO 8601
and Spark have it: ``+12024-01-02``.
"""

from __future__ import annotations

import datetime
from typing import Final

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
