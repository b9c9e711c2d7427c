"""A `Moment` as literals: what the clock and the session say for one statement.

Instants are written in the session's time zone with their offset, so that they mean the same in
any zone.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from haproc.classify.model import RefusedError
from haproc.classify.moments import SPECIAL_DATETIME
from haproc.failure import ErrorClass
from haproc.pin.literals import string_literal
from haproc.pin.model import Moment

_OFFSET = re.compile(r"(?:UTC|GMT|UT)?([+-])([0-9]{1,2})(?::?([0-9]{2}))?(?::?([0-9]{2}))?")
_DAYS_FROM_TODAY = {"now": 0, "today": 0, "tomorrow": 1, "yesterday": -1}


def zone_of(name: str) -> tzinfo:
    """Return a session's time zone, spelt in any way Spark takes; raises RefusedError."""
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
    """Return the moment on the session's clocks, aware."""
    return moment.now.astimezone(zone_of(moment.time_zone))


def _wall(at: datetime) -> str:
    return at.replace(tzinfo=None).isoformat(sep=" ")


def date_text(day: date) -> str:
    """Return a DATE literal."""
    return f"DATE '{day.isoformat()}'"


def instant_text(at: datetime, type_name: str = "TIMESTAMP", *, plain: bool = False) -> str:
    """Return a TIMESTAMP or TIMESTAMP_LTZ literal of an aware time.

    It has its offset, unless it may be ``plain`` and the wall time happens once: INSERTs of plain
    literals can be combined, and the session's time zone is replicated with the statement.
    """
    offset = at.utcoffset() or timedelta()
    if plain and at.replace(fold=0).utcoffset() == at.replace(fold=1).utcoffset():
        return f"{type_name} '{_wall(at)}'"
    if offset.total_seconds() % 60:
        at = at.astimezone(UTC)  # Spark's offsets have minutes at the finest
    return f"{type_name} '{at.isoformat(sep=' ')}'"


def clock_literal(name: str, moment: Moment, *, plain: bool = False) -> str:
    """Return what a function of the clock, without arguments, gives; ``plain`` as above."""
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
    """Return what current_user() and its like give."""
    if name in ("current_user", "user", "session_user"):
        return string_literal(moment.user)
    if name == "current_catalog":
        return string_literal(moment.catalog)
    if name == "current_timezone":
        return string_literal(moment.time_zone)
    return string_literal(moment.schema)


def special_datetime_literal(text: str, type_name: str, moment: Moment) -> str | None:
    """Return what ``'now'``, ``'today'`` … are as the type; None if the text is not one of them.

    A text with a zone behind the word is not resolved here either.
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
