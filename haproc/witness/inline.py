"""The rows that a statement brings in VALUES: Spark computes them before it shows a plan.

What a row's items come to stands in no plan, and neither do the conversions in them. So items that
are no literals are asked about by themselves, in a query that shows them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from haproc.classify.tokens import TokenKind
from haproc.pin.scan import Scan
from haproc.witness.probes import UnclearError

_TYPED: Final = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "X"})
_CONSTANTS: Final = frozenset({"NULL", "TRUE", "FALSE", "DEFAULT"})
_OF_NUMBERS: Final = frozenset(
    {"ABS", "ROUND", "BROUND", "FLOOR", "CEIL", "CEILING", "SIGN", "NEGATIVE", "POSITIVE", "SQRT"}
    | {"POWER", "POW", "MOD", "PMOD", "LENGTH", "ARRAY", "DIV"}
)
_BEFORE_QUERY: Final = frozenset(
    {"FROM", "JOIN", "USING", "LATERAL", "UNION", "ALL", "DISTINCT", "EXCEPT", "INTERSECT", "AS"}
    | {"MINUS", ""}
)
_FIRM: Final = frozenset({TokenKind.STRING, TokenKind.NUMBER})


def made_items(scan: Scan) -> list[str]:
    """Return the items of rows, without repetition, that are no literals.

    Raises UnclearError if they cannot be told apart.
    """
    found = dict[str, None]()
    for first, end in _items(scan):
        if not _is_literal(scan, first, end):
            found[scan.text(first, end - 1)] = None
    return list(found)


def may_make_text(scan: Scan) -> bool:
    """Whether one of these items may give a text that is not written in it."""
    return any(
        not _is_literal(scan, first, end)
        and any(not _is_of_numbers(scan, at) for at in range(first, end))
        for first, end in _items(scan)
    )


def shown(scan: Scan) -> list[str]:
    """Return the query that shows these items, if there are any; raises UnclearError."""
    items = made_items(scan)
    return [f"SELECT {', '.join(f'({each})' for each in items)}"] if items else []


def _items(scan: Scan) -> Iterator[tuple[int, int]]:
    """Yield where each item of a row begins and ends."""
    for at in range(len(scan.tokens)):
        if scan.word(at) != "VALUES" or _is_of_merge(scan, at):
            continue
        if scan.symbol(at + 1) != "(":
            _check_bare(scan, at)
            continue
        opening = at + 1
        while scan.symbol(opening) == "(":
            yield from _of_row(scan, opening)
            opening = scan.closing[opening] + 1
            if scan.symbol(opening) == ",":
                opening += 1


def _of_row(scan: Scan, opening: int) -> Iterator[tuple[int, int]]:
    first, depth = opening + 1, scan.depth[opening] + 1
    for at in range(opening + 1, scan.closing[opening] + 1):
        ends = at == scan.closing[opening]
        if ends or (scan.symbol(at) == "," and scan.depth[at] == depth):
            if first < at:
                yield first, at
            first = at + 1


def _is_of_merge(scan: Scan, values: int) -> bool:
    """Whether these are a MERGE's own VALUES, which its plan shows."""
    before = values - 1
    if scan.symbol(before) == ")":
        before = scan.opening[before - 1] - 1 if scan.symbol(before - 1) != "(" else before - 2
    return scan.word(before) == "INSERT" and scan.word(before - 1) == "THEN"


def _check_bare(scan: Scan, values: int) -> None:
    """Raise UnclearError if rows of one item without parentheses may be computed."""
    starts = scan.word(values - 1) in _BEFORE_QUERY and scan.kind(values - 1) is not (
        TokenKind.QUOTED_NAME
    )
    is_name = scan.is_name(values + 1) and scan.word(values + 1) not in _CONSTANTS | _TYPED
    is_call = is_name and scan.symbol(values + 2) == "("
    if not starts or (is_name and not is_call) or scan.kind(values + 1) is None:
        return
    depth = scan.depth[values]
    for at in range(values + 1, len(scan.tokens)):
        word = scan.word(at)
        if scan.depth[at] < depth or scan.symbol(at) in (")", ";"):
            return
        if scan.kind(at) in _FIRM or word in _CONSTANTS | _TYPED or scan.symbol(at) in (",", "-"):
            continue
        if at > values + 1 and scan.is_name(at) and scan.symbol(at + 1) != "(":
            return  # what follows the rows
        raise UnclearError("rows of VALUES that are computed have no parentheses")


def _is_literal(scan: Scan, first: int, end: int) -> bool:
    """Whether an item is a literal, perhaps with a sign, or a word that stands for a value."""
    if scan.symbol(first) in ("-", "+"):
        first += 1
    if scan.word(first) in _TYPED and scan.kind(first + 1) is TokenKind.STRING:
        first += 1
    if scan.kind(first) is TokenKind.STRING:
        return all(scan.kind(at) is TokenKind.STRING for at in range(first, end))
    word = scan.word(first)
    return first == end - 1 and (scan.kind(first) is TokenKind.NUMBER or word in _CONSTANTS)


def _is_of_numbers(scan: Scan, at: int) -> bool:
    if scan.kind(at) is TokenKind.NUMBER or scan.word(at) in _OF_NUMBERS | _CONSTANTS:
        return True
    return scan.symbol(at) in ("(", ")", ",", "+", "-", "*", "/", "%")
