"""Conversions of texts that Spark completes by the clock: a time of day becomes one of today's.

``CAST('12:30' AS TIMESTAMP)`` is 12:30 of the day on which a cluster computes it, and so is the
cast of a column that holds such a text. So a text becomes a TIMESTAMP the same everywhere only with
a format; whether something is a text at all, the types of columns tell.

Some functions Spark shows without the conversions in them: ``nvl(ts, '12:30')`` makes a TIMESTAMP
of the text, too. There a text beside what may be a moment counts as converted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from haproc.classify.moments import is_moment, is_time_of_day
from haproc.witness.columns import Type, type_of
from haproc.witness.exact import DEPTH_MAX, branches
from haproc.witness.lists import closing, split

REASON = (
    "a text that becomes a TIMESTAMP is completed by today's date if it is a time of day: give "
    "to_timestamp() a format, or write the TIMESTAMP itself"
)
_CONVERTING = re.compile(
    r"(?<![\w.$])((?:try_)?cast|trycast|(?:try_)?to_timestamp(?:_ltz)?|from_(?:json|csv|xml)"
    r"|(?:try_)?variant_get)\(",
    re.IGNORECASE,
)
_UNIFYING = re.compile(
    r"(?<![\w.$])(between|nvl2?|ifnull|nullif|equal_null|decode|try_add|try_subtract)\(",
    re.IGNORECASE,
)
"""What brings its arguments to one type, or makes a TIMESTAMP of a text beside an INTERVAL."""
_TARGET = re.compile(r"(.*) as ([a-z_0-9<>:, ()]+)\Z", re.DOTALL)
_TIMESTAMP = re.compile(r"\btimestamp(?:_ltz)?\b")
_COMPUTED = re.compile(r"[§~#]")
_NUMBER = re.compile(r"-?[0-9.]+|null|true|false")
_NEVER_TEXT = frozenset(
    {"date_add", "date_sub", "add_months", "to_date", "try_to_date", "make_date", "last_day"}
    | {"next_day", "trunc", "date_trunc", "timestamp_seconds", "timestamp_millis", "count"}
    | {"timestamp_micros", "make_timestamp", "make_timestamp_ltz", "make_timestamp_ntz", "sum"}
    | {"to_timestamp", "to_timestamp_ltz", "to_timestamp_ntz", "try_to_timestamp", "timestampadd"}
    | {"from_utc_timestamp", "to_utc_timestamp", "date_from_unix_date", "convert_timezone"}
    | {"unix_timestamp", "unix_seconds", "unix_millis", "unix_micros", "now", "current_date"}
)
"""What these give is a date, a timestamp or a number."""
_KEEPING = frozenset(
    {"max", "min", "coalesce", "greatest", "least", "ifnull", "nvl", "nullif", "first", "last"}
    | {"any_value", "outer", "lag", "lead", "element", "knownnotnull"}
)
"""What these give is of the type of what they are given."""


_NEVER_MOMENT = frozenset(
    {"upper", "lower", "initcap", "trim", "ltrim", "rtrim", "btrim", "lpad", "rpad", "repeat"}
    | {"concat", "concat_ws", "substring", "substr", "left", "right", "replace", "translate"}
    | {"regexp_replace", "regexp_extract", "split_part", "md5", "sha1", "sha2", "hex", "base64"}
    | {"length", "char_length", "abs", "round", "floor", "ceil", "count", "year", "month", "day"}
    | {"hour", "minute", "second", "date_format", "hash", "xxhash64", "named_struct"}
)
"""What these give is a text, a number or a structure."""
_DATE = re.compile(r"[0-9]-[0-9]")


def may_convert(text: str) -> bool:
    """Whether the text of a node holds a conversion that needs a look."""
    shown = "imestamp" in text and _CONVERTING.search(text) is not None
    return shown or _UNIFYING.search(text) is not None


def is_completed(text: str, types: Mapping[str, Type]) -> bool:
    """Whether an expression makes a TIMESTAMP of what may be a text; columns are ``§id``.

    Constants are not looked at: `findings` does.
    """
    return any(
        not _is_firm(call, inner, types) for call, inner in _calls(_CONVERTING, text)
    ) or any(_unifies(call, split(inner), types) for call, inner in _calls(_UNIFYING, text))


def _unifies(call: str, given: Sequence[str], types: Mapping[str, Type]) -> bool:
    """Whether a text among the arguments may be made a TIMESTAMP."""
    texts = [each for each in given if is_moment(each.strip()) or not never_text(each, types)]
    if call.startswith("try_"):
        return bool(texts)
    return any(
        not _never_moment(other, types) for text in texts for other in given if other is not text
    )


def _never_moment(text: str, types: Mapping[str, Type], depth: int = 0) -> bool:
    """Whether an expression is certainly no DATE and no TIMESTAMP."""
    text = text.strip()
    if depth > DEPTH_MAX:
        return False
    if re.fullmatch(r"§\d+", text):
        return types.get(text[1:], Type.PLAIN) is not Type.PLAIN
    if "(" not in text and _COMPUTED.search(text) is None:
        return _DATE.search(text) is None  # a constant is shown without its type
    call = re.match(r"(\w+)\(", text)
    if call is None or closing(text, call.end() - 1) != len(text) - 1:
        return False
    name, inner = call[1].lower(), text[call.end() : -1]
    if name.endswith("cast"):
        target = _TARGET.match(inner)
        return target is not None and type_of(target[2]) is not Type.PLAIN
    if name in _KEEPING:
        return all(_never_moment(part, types, depth + 1) for part in split(inner))
    return name in _NEVER_MOMENT


def _calls(calls: re.Pattern[str], text: str) -> Iterator[tuple[str, str]]:
    for match in calls.finditer(text):
        start = match.end() - 1
        yield match[1].lower(), text[match.end() : closing(text, start)]


def _is_firm(call: str, inner: str, types: Mapping[str, Type]) -> bool:
    """Whether a conversion gives the same whenever it is computed."""
    if call.endswith("cast"):
        match = _TARGET.match(inner)
        if match is None or not _TIMESTAMP.search(match[2]):
            return True
        operand = match[1]
        if not _TIMESTAMP.fullmatch(match[2]):  # timestamps inside an array, a map, a struct
            return operand.strip() == "null"
        return _COMPUTED.search(operand) is None or never_text(operand, types)
    if "to_timestamp" in call:
        parts = split(inner)
        if parts[1:2] != ["None"] or _COMPUTED.search(parts[0]) is None:
            return True  # with a format no clock is asked
        return never_text(parts[0], types)
    return "TimestampType" not in inner or "(timestampFormat," in inner


def never_text(text: str, types: Mapping[str, Type], depth: int = 0) -> bool:
    """Whether an expression is certainly no text that could be a time of day."""
    text = text.strip()
    if depth > DEPTH_MAX or not text:
        return False
    if re.fullmatch(r"§\d+", text):
        return types.get(text[1:]) in (Type.INTEGER, Type.DECIMAL, Type.PLAIN)
    if _NUMBER.fullmatch(text):
        return True
    if "(" not in text and _COMPUTED.search(text) is None:
        return not is_time_of_day(text)
    call = re.match(r"(\w+)\(", text)
    if call is not None and closing(text, call.end() - 1) == len(text) - 1:
        name, inner = call[1].lower(), text[call.end() : -1]
        if name.endswith("cast"):
            target = _TARGET.match(inner)
            word = target[2] if target is not None else "string"
            known = type_of(word) in (Type.INTEGER, Type.DECIMAL, Type.PLAIN)
            return known or word in ("double", "float")
        if name in _KEEPING:
            return all(never_text(part, types, depth + 1) for part in split(inner))
        return name in _NEVER_TEXT
    if text.startswith("(") and closing(text, 0) == len(text) - 1:
        return any(len(split(text[1:-1], operator)) > 1 for operator in (" + ", " - ", " * "))
    if text.startswith("CASE ") and text.endswith(" END"):
        return all(never_text(part, types, depth + 1) for part in branches(text))
    return any(len(split(text, operator)) > 1 for operator in (" + ", " - "))
