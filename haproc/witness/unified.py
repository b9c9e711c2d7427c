"""Conversions of texts to TIMESTAMPs that Spark does not show.

Some functions Spark shows with their arguments as they were given, and computes something else in
their place (its ``InheritAnalysisRules``), which converts them: ``nvl(ts, '12:30')`` makes a
TIMESTAMP of the text, too. So there a text that may be a time of day, beside what may be or hold a
TIMESTAMP, counts as converted. Which columns hold none is learnt from the tables' types upwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from typing import Final

from haproc.classify.moments import SPECIAL_DATETIME, is_moment
from haproc.pin.inline import Rows, doubtful
from haproc.witness.columns import COLUMN, INLINE, Columns, Type
from haproc.witness.completed import calls, never_text
from haproc.witness.exact import DEPTH_MAX, values_of_decode
from haproc.witness.lists import closing, leading, split
from haproc.witness.results import CONDITIONS, DATES, KEEPING, NUMBERS, TEXTS

_UNIFYING = re.compile(
    r"(?<![\w.$])(between|nvl2?|ifnull|nullif|equal_null|decode|try_add|try_subtract|extract"
    r"|date_?part)\(",
    re.IGNORECASE,
)
"""Those of Spark 4.2.1: what brings its arguments to one type, adds an INTERVAL to a text, or takes
an hour of it. Its others of this kind take no moments."""
_TIMES_OF_DAY: Final = frozenset(
    {"h", "hour", "hours", "hr", "hrs", "m", "min", "mins", "minute", "minutes"}
    | {"s", "sec", "secs", "second", "seconds"}
)
_TIMESTAMP = re.compile(r"[0-9]-[0-9]+[ T]+[0-9]+:[0-9]|INTERVAL ")
"""A constant as Spark shows it: always with its time. With an INTERVAL a text becomes one."""
_DATE = re.compile(r"[0-9]-[0-9]")
_GIVING = re.compile(
    r"imestamp|(?<![\w.$])(?:now|date_trunc|window|session_window|window_time|convert_timezone)\("
    r"|[\w`](?<!CodegenUtils)\.[\w`]+\(",
    re.IGNORECASE,
)
"""What may give a TIMESTAMP though it is given none (functions of the catalog, which have a dot in
their names, might); all others have it in their names."""
_NEVER: Final = TEXTS | NUMBERS | DATES | CONDITIONS
"""What these give neither is nor holds a TIMESTAMP, whatever they are given."""
_TARGET = re.compile(r".* as ([a-z_0-9<>:, ()]+)\Z", re.DOTALL)


def may_unify(text: str) -> bool:
    """Whether the text of a node holds a function that needs a look."""
    return _UNIFYING.search(text) is not None


def without_moments(
    columns: Columns, rows: Sequence[Rows] | None, unsure: Set[int]
) -> frozenset[str]:
    """Return the columns that certainly hold no TIMESTAMP.

    ``rows``: what those hold that the statement brings, ``unsure``: the ids of nodes not to read.
    """
    found = {number for number, kind in columns.kinds.items() if "timestamp" not in kind.lower()}
    found |= {number for number, kind in columns.types.items() if kind in (Type.INTEGER, Type.TEXT)}
    for node in reversed(columns.plan.nodes):
        if node.name in INLINE:
            numbers = columns.in_leaf(node)
            moments = doubtful(rows, len(numbers)).moments
            found |= {number for at, number in enumerate(numbers) if at not in moments}
        is_read = node.name in ("Project", "Aggregate", "Window") and id(node) not in unsure
        rest = node.text if is_read else ""
        while rest.startswith("["):
            texts, rest = leading(rest)
            made = [text for text in texts if "#" in text and " AS " in text]
            items = columns.items(made)
            found |= {each.id for each in items if never_moment(each.expression, found)}
    return frozenset(found)


def is_unified(text: str, types: Mapping[str, Type], without: Set[str]) -> bool:
    """Whether an expression makes a TIMESTAMP of what may be a text; columns are ``§id``.

    ``without``: the columns that certainly hold no TIMESTAMP.
    """
    return any(
        _unifies(call, split(inner), types, without) for call, inner in calls(_UNIFYING, text)
    )


def _unifies(call: str, given: Sequence[str], types: Mapping[str, Type], without: Set[str]) -> bool:
    given = [each.strip() for each in given]
    if call in ("extract", "date_part", "datepart"):
        is_time = given[0].lower() in _TIMES_OF_DAY
        return is_time and any(_may_be_text(each, types) for each in given)
    if call == "nvl2" and re.fullmatch(r"§\d+", given[0]):
        given = given[1:]  # it is only asked whether that is NULL
    if call == "decode":  # what is looked for has one type, and what is given
        looked, shown = [given[0], *given[1:-1:2]], values_of_decode(given)
        return _mixed(looked, types, without) or _mixed(shown, types, without)
    return _mixed(given, types, without)


def _mixed(given: Sequence[str], types: Mapping[str, Type], without: Set[str]) -> bool:
    """Whether there is a text among the arguments, and what makes a moment of it is another."""
    texts = {at for at, each in enumerate(given) if _may_be_text(each, types)}
    if not texts:
        return False
    moments = {at for at, each in enumerate(given) if not never_moment(each, without)}
    if moments and len(texts | moments) > 1:
        return True
    special = {at for at in texts if SPECIAL_DATETIME.fullmatch(given[at])}
    dates = {at for at, each in enumerate(given) if special and not _never_date(each, types)}
    return bool(dates) and len(special | dates) > 1


def _may_be_text(text: str, types: Mapping[str, Type]) -> bool:
    return is_moment(text) or not never_text(text, types)


def never_moment(text: str, without: Set[str], depth: int = 0) -> bool:
    """Whether an expression certainly neither is nor holds a TIMESTAMP."""
    text = text.strip()
    if depth > DEPTH_MAX:
        return False
    call = re.match(r"(\w+)\(", text)
    if call is not None and closing(text, call.end() - 1) == len(text) - 1:
        name, inner = call[1].lower(), text[call.end() : -1]
        target = _TARGET.match(inner) if name.endswith("cast") else None
        if target is not None:
            return "timestamp" not in target[1]
        if name in _NEVER:
            return True
        if name in KEEPING:
            return all(never_moment(part, without, depth + 1) for part in split(inner))
    if _GIVING.search(text) is not None or _TIMESTAMP.search(text) is not None or "#" in text:
        return False
    return set(COLUMN.findall(text)) <= without and "~" not in text


def _never_date(text: str, types: Mapping[str, Type]) -> bool:
    """Whether a word such as 'today' beside it certainly stays a text."""
    if re.fullmatch(r"§\d+", text):
        return types.get(text[1:]) in (Type.TEXT, Type.INTEGER, Type.DECIMAL)
    return "(" not in text and _DATE.search(text) is None and COLUMN.search(text) is None
