"""Texts that Spark reads by the clock when it makes a date or a timestamp of them.

Of constants these are ``'now'``, ``'today'`` and their like; of any text at all a time of day,
which becomes a TIMESTAMP of the day on which it is read: ``CAST('12:30' AS TIMESTAMP)``. Measured
on Spark 4.2.1; DATE and TIMESTAMP_NTZ take no time of day.
"""

from __future__ import annotations

import re

from haproc.classify.tokens import SPACE

_LEADING = r"[\s\x00-\x20\x7f]*"
SPECIAL_DATETIME = re.compile(
    rf"{_LEADING}((?i:now|today|tomorrow|yesterday))(?![A-Za-z])(.*)", re.DOTALL
)
"""Texts that Spark may read as a moment when it casts a constant to a date or a timestamp: behind
the word it takes the name of a time zone, in many spellings."""
_TIME_OF_DAY = re.compile(rf"{_LEADING}(?:[0-9]{{1,2}}:[0-9]|T[0-9]{{1,2}}(?![0-9]))")
_WRITTEN = re.compile(
    rf"[(,]{SPACE}*['\"][\x00-\x20\x7f]*"
    r"(?:[0-9]{1,2}:[0-9]|T[0-9]{1,2}(?![0-9])|[0-9T]{0,3}\\(?![\\'\"%_$]))"
)
"""An item of a row that may say such a text; escapes may stand for anything, but these few."""


def is_time_of_day(text: str) -> bool:
    """Whether Spark may read the text as a time of the day on which it reads it."""
    return _TIME_OF_DAY.match(text) is not None


def is_moment(text: str) -> bool:
    """Whether Spark may read the text by the clock."""
    return is_time_of_day(text) or SPECIAL_DATETIME.fullmatch(text) is not None


def may_write_time_of_day(sql: str, start: int, end: int) -> bool:
    """Whether a string among the rows between these places may be a time of day."""
    return _WRITTEN.search(sql, start, end) is not None
