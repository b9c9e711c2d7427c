"""Conversions of texts that Spark completes by the clock: a time of day becomes one of today's.

``CAST('12:30' AS TIMESTAMP)`` is 12:30 of the day on which a cluster computes it, and so is the
cast of a column that holds such a text. So a text becomes a TIMESTAMP the same everywhere only with
a format; whether something is a text at all, the types of columns tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from haproc.classify.moments import is_time_of_day
from haproc.witness.columns import Type, type_of
from haproc.witness.exact import DEPTH_MAX, branches
from haproc.witness.lists import closing, split
from haproc.witness.results import DATES, INTEGERS, KEEPING, MOMENTS

REASON = (
    "a text that becomes a TIMESTAMP is completed by today's date if it is a time of day: give "
    "to_timestamp() a format, or write the TIMESTAMP itself"
)
_CONVERTING = re.compile(
    r"(?<![\w.$])((?:try_)?cast|trycast|(?:try_)?to_timestamp(?:_ltz)?|from_(?:json|csv|xml)"
    r"|(?:try_)?variant_get)\(",
    re.IGNORECASE,
)
_TARGET = re.compile(r"(.*) as ([a-z_0-9<>:, ()]+)\Z", re.DOTALL)
_TIMESTAMP = re.compile(r"\btimestamp(?:_ltz)?\b")
_FALLBACK = "enabledatetimeparsingfallback"
_COMPUTED = re.compile(r"[§~#]")
_NUMBER = re.compile(r"-?[0-9.]+|null|true|false")
_NEVER_TEXT = DATES | MOMENTS | INTEGERS | {"sum"}


def may_convert(text: str) -> bool:
    """Whether the text of a node holds a conversion that needs a look."""
    shown = "imestamp" in text and _CONVERTING.search(text) is not None
    # A text less an INTERVAL is a text again; what stands in brackets is a number.
    return shown or -1 < text.find(" - ") < text.rfind(" as string")


def is_completed(text: str, types: Mapping[str, Type]) -> bool:
    """Whether an expression makes a TIMESTAMP of what may be a text; columns are ``§id``.

    Constants are not looked at: `findings` does.
    """
    return any(not _is_firm(call, inner, types) for call, inner in calls(_CONVERTING, text))


def calls(named: re.Pattern[str], text: str) -> Iterator[tuple[str, str]]:
    """Yield the names of the calls, which group 1 of the pattern has, and what is in them."""
    for match in named.finditer(text):
        start = match.end() - 1
        yield match[1].lower(), text[match.end() : closing(text, start)]


def _is_firm(call: str, inner: str, types: Mapping[str, Type]) -> bool:
    """Whether a conversion gives the same whenever it is computed."""
    if call.endswith("cast"):
        match = _TARGET.match(inner)
        if match is not None and match[2].startswith("string") and len(split(match[1], " - ")) > 1:
            return False
        if match is None:
            return False
        if not _TIMESTAMP.search(match[2]):
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
    by_format = "(timestampFormat," in inner and _FALLBACK not in inner.lower()
    return "TimestampType" not in inner or by_format


def never_text(text: str, types: Mapping[str, Type], depth: int = 0) -> bool:
    """Whether an expression is certainly no text that could be a time of day."""
    text = text.strip()
    if depth > DEPTH_MAX:
        return False
    if not text:  # the empty one is no time of day
        return True
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
        if name in KEEPING:
            return all(never_text(part, types, depth + 1) for part in split(inner))
        return name in _NEVER_TEXT
    if text.startswith("(") and closing(text, 0) == len(text) - 1:
        return any(len(split(text[1:-1], operator)) > 1 for operator in (" + ", " - ", " * "))
    if text.startswith("CASE ") and text.endswith(" END"):
        return all(never_text(part, types, depth + 1) for part in branches(text))
    return any(len(split(text, operator)) > 1 for operator in (" + ", " - "))
