"""Which expressions of a plan are certainly integers or decimals: sums of them are exact."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from haproc.witness.columns import COLUMN, Type, type_of
from haproc.witness.lists import closing, split
from haproc.witness.results import INTEGERS, KEEPING

_CAST = re.compile(r"(?:cast|try_cast|trycast)\((.*) as ([a-z_]+(?:\([0-9, ]+\))?)\)\Z", re.DOTALL)
_CALL = re.compile(r"([A-Za-z_0-9]+)\(")
_LOOSE_SIGN = re.compile(r" as (?:double|float)\)|\bcollate\b", re.IGNORECASE)
_SUM = re.compile(r"(?<![\w.$])(?:try_)?(?:sum|avg|mean)\(", re.IGNORECASE)
_KEEPING = KEEPING | {
    *("sum", "try_sum", "abs", "negative", "positive", "pmod", "round", "bround", "floor", "ceil"),
    *("try_add", "try_subtract", "try_multiply", "zeroifnull", "nullifzero"),
}
"""Exact if all arguments are."""
_OPERATORS = (" + ", " - ", " * ", " % ", " div ", " & ", " | ", " ^ ")
DEPTH_MAX = 50


@dataclass(frozen=True, slots=True)
class Numbers:
    """What is known of the numbers in a plan: the columns' types, and what the session says.

    ``decimals``: a number with a point is a decimal (the statement writes no floats). ``ansi``: a
    sum that overflows is an error.
    """

    types: Mapping[str, Type]
    decimals: bool
    ansi: bool


def sums_reason(expression: str, numbers: Numbers) -> str:
    """Say what makes a sum or an average in an expression depend on the order of rows, if any.

    Where an overflow gives NULL it does: of the same rows one order may pass the limit on the way.
    BIGINTs without ANSI wrap around, and come back.
    """
    for match in _SUM.finditer(expression):
        start = match.end() - 1
        inner = expression[start + 1 : closing(expression, start)].removeprefix("distinct ")
        kind = exact_type(inner, numbers.types, decimals=numbers.decimals)
        name = match.group().lower()
        averages = "avg" in name or "mean" in name
        if kind is None or (averages and kind is not Type.DECIMAL):
            # the average of integers is computed in doubles
            return (
                "floating point values, or of what is not known to be exact, depends on the order "
                "of rows"
            )
        if name.startswith("try_") or (kind is Type.DECIMAL and not numbers.ansi):
            return "what may overflow to NULL depends on the order of rows"
    return ""


def exact_type(
    text: str, types: Mapping[str, Type], *, decimals: bool, depth: int = 0
) -> Type | None:
    """Return INTEGER or DECIMAL if the expression certainly is one; else None."""

    def again(inner: str) -> Type | None:
        return exact_type(inner, types, decimals=decimals, depth=depth + 1)

    text = text.strip()
    if depth > DEPTH_MAX or not text:
        return None
    if re.fullmatch(r"§\d+", text):
        kind = types.get(text[1:])
        return kind if kind in (Type.INTEGER, Type.DECIMAL) else None
    if re.fullmatch(r"-?\d+", text) or text == "null":
        return Type.INTEGER
    if re.fullmatch(r"-?\d+\.\d+", text):
        return Type.DECIMAL if decimals else None
    cast = _CAST.match(text)
    if cast is not None and closing(text, text.index("(")) == len(text) - 1:
        word = cast[2].partition("(")[0]
        if word in ("tinyint", "smallint", "int", "bigint"):
            return Type.INTEGER
        return Type.DECIMAL if word == "decimal" else None
    call = _CALL.match(text)
    if call is not None and closing(text, call.end() - 1) == len(text) - 1:
        name = call[1].lower()
        if name in INTEGERS:
            return Type.INTEGER
        given = split(text[call.end() : -1].removeprefix("distinct "))
        if name == "nvl2":
            given = given[1:]
        elif name == "decode" and len(given) % 2 == 0:  # without a default it may be a DOUBLE
            given = values_of_decode(given)
        elif name not in _KEEPING:
            return None
        return _widest([again(part) for part in given])
    if text.startswith("(") and closing(text, 0) == len(text) - 1:
        return _binary(text[1:-1], again)
    if text.startswith("-"):
        return again(text[1:])
    condition = text.startswith("if (") and closing(text, 3) + 1
    if condition and text.startswith(" ", condition):
        values = split(text[condition + 1 :], " else ")
        return _widest([again(part) for part in values]) if len(values) == 2 else None
    if text.startswith("CASE ") and text.endswith(" END"):
        return _widest([again(part) for part in branches(text)])
    return None


def may_be_loose(text: str, types: Mapping[str, Type]) -> bool:
    """Whether equal values of an expression may differ: it rests on such, or on what is unknown."""
    cast = _CAST.match(text)
    if cast is not None and closing(text, text.index("(")) == len(text) - 1:
        return type_of(cast[2]) is Type.LOOSE
    rests_on = {types.get(number) for number in COLUMN.findall(text)}
    return bool(rests_on & {None, Type.LOOSE}) or _LOOSE_SIGN.search(text) is not None


def _binary(text: str, again: object) -> Type | None:
    assert callable(again)
    for operator in _OPERATORS:
        parts = split(text, operator)
        if len(parts) == 2:
            return _widest([again(part) for part in parts])
    parts = split(text, " / ")
    if len(parts) == 2:
        kinds = [again(part) for part in parts]
        return Type.DECIMAL if None not in kinds and Type.DECIMAL in kinds else None
    return again(text) if text.startswith("(") else None


def branches(text: str) -> list[str]:
    """Return what stands behind each THEN and the ELSE of a CASE."""
    words = split(text, " ")
    found: list[str] = []
    branch: list[str] = []
    inside = False
    for word in words[1:]:
        if word in ("WHEN", "THEN", "ELSE", "END"):
            if inside:
                found.append(" ".join(branch))
            inside, branch = word in ("THEN", "ELSE"), []
        else:
            branch.append(word)
    return found


def values_of_decode(given: list[str]) -> list[str]:
    """Return the arguments of a ``decode`` that it may give."""
    return [*given[2::2], *(given[-1:] if len(given) % 2 == 0 else [])]


def _widest(kinds: list[Type | None]) -> Type | None:
    if not kinds or None in kinds:
        return None
    return Type.DECIMAL if Type.DECIMAL in kinds else Type.INTEGER
