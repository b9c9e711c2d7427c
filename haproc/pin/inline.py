"""The rows that a statement brings in VALUES: Spark computes them before it shows a plan.

What a row's items come to stands in no plan, and neither do the conversions in them. So items that
are no literals are asked about by themselves, in a query that shows them; and what each column of
the rows may hold is told from its items. ``range`` computes its arguments just so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from haproc.classify.moments import is_time_of_day
from haproc.classify.tokens import TokenKind
from haproc.pin.scan import Scan

_TYPED: Final = frozenset({"DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ", "X"})
_CONSTANTS: Final = frozenset({"NULL", "TRUE", "FALSE", "DEFAULT"})
_OF_NUMBERS: Final = frozenset(
    {"ABS", "ROUND", "BROUND", "FLOOR", "CEIL", "CEILING", "SIGN", "NEGATIVE", "POSITIVE", "SQRT"}
    | {"POWER", "POW", "MOD", "PMOD", "LENGTH", "DIV"}
)
_BEGINS_VALUE: Final = frozenset({"CASE", "INTERVAL"})
_OPERATORS: Final = frozenset(
    {"IS", "AND", "OR", "NOT", "IN", "LIKE", "ILIKE", "RLIKE", "REGEXP", "BETWEEN", "DIV"}
    | {"COLLATE"}
)
_ANY_WIDTH: Final = -1


class UnclearError(ValueError):
    """The statement's parts cannot be told apart; the text says which."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What one list of rows may hold: columns by their place, from 0.

    ``texts``: those that may hold a time of day, ``moments``: those that may hold a TIMESTAMP.
    ``width``: how many columns there are; -1 if a row's one item may stand for several.
    """

    width: int
    texts: frozenset[int]
    moments: frozenset[int]


def made_items(scan: Scan) -> list[str]:
    """Return the items that are no literals, each once; raises UnclearError."""
    spans = [item for rows in _lists(scan) for row in rows for item in row]
    found, behind = dict[str, None](), 0
    for first, end in sorted([*spans, *_of_ranges(scan)]):
        if first >= behind and not _is_literal(scan, first, end):
            found[scan.text(first, end - 1)] = None
            behind = end  # what is in it is shown with it
    return list(found)


def shown(scan: Scan) -> list[str]:
    """Return the query that shows these items, if there are any; raises UnclearError."""
    items = made_items(scan)
    return [f"SELECT {', '.join(f'({each})' for each in items)}"] if items else []


def rows_in(scan: Scan) -> tuple[Rows, ...]:
    """Return what the statement's rows may hold, a list of them after another; UnclearError."""
    return tuple(_held(scan, rows) for rows in _lists(scan))


def doubtful(rows: Sequence[Rows] | None, width: int) -> Rows:
    """Return what rows of so many columns may hold, of a statement with these lists.

    None: nothing is known of them.
    """
    everything = frozenset(range(width))
    if rows is None:
        return Rows(width, everything, everything)
    if any(each.width == _ANY_WIDTH for each in rows):
        return Rows(width, everything, everything)
    same = [each for each in rows if each.width == width] or list(rows)
    if any(each.width != width for each in same):
        return Rows(
            width,
            everything if any(each.texts for each in same) else frozenset(),
            everything if any(each.moments for each in same) else frozenset(),
        )
    texts = frozenset(at for each in same for at in each.texts)
    return Rows(width, texts, frozenset(at for each in same for at in each.moments))


def _held(scan: Scan, rows: Sequence[Sequence[tuple[int, int]]]) -> Rows:
    texts, moments = set[int](), set[int]()
    width = max(map(len, rows), default=0)
    for row in rows:
        for at, (first, end) in enumerate(row):
            if _is_literal(scan, first, end):
                if scan.kind(first) is TokenKind.STRING and is_time_of_day(
                    scan.string_value(first)
                ):
                    texts.add(at)
                if scan.word(first).startswith("TIMESTAMP"):
                    moments.add(at)
            elif any(not _is_of_numbers(scan, each) for each in range(first, end)):
                texts.add(at)
                moments.add(at)
                if len(row) == 1 and (scan.symbol(first) == "(" or scan.word(first) == "STRUCT"):
                    width = _ANY_WIDTH
    return Rows(width, frozenset(texts), frozenset(moments))


def _lists(scan: Scan) -> Iterator[list[list[tuple[int, int]]]]:
    """Yield the rows of each VALUES, a row as where its items begin and end."""
    for at in range(len(scan.tokens)):
        if scan.word(at) != "VALUES" or scan.symbol(at - 1) == "." or _is_of_merge(scan, at):
            continue
        rows = list(_rows(scan, at + 1))
        if rows:
            yield rows


def _rows(scan: Scan, at: int) -> Iterator[list[tuple[int, int]]]:
    """Yield the rows that begin there; none if VALUES is a name."""
    first = at
    while True:
        end = _literal_end(scan, at)
        if scan.symbol(at) == "(":
            yield list(_items(scan, at))
            at = scan.closing[at] + 1
        elif end > at:
            yield [(at, end)]
            at = end
        elif at > first or _begins_value(scan, at):
            raise UnclearError("a row of VALUES does not stand in parentheses")
        else:
            return
        if scan.symbol(at) == ",":
            at += 1
            continue
        ends = scan.kind(at) is None or scan.symbol(at) in (")", ";") or scan.is_name(at)
        if not ends or scan.word(at) in _OPERATORS:
            raise UnclearError("a row of VALUES is computed: put it in parentheses, as a whole")
        return


def _begins_value(scan: Scan, at: int) -> bool:
    if scan.word(at) in _BEGINS_VALUE:
        return True
    return scan.is_name(at) and scan.symbol(at + 1) == "(" and scan.word(at) not in _OPERATORS


def _items(scan: Scan, opening: int) -> Iterator[tuple[int, int]]:
    first, depth, closing = opening + 1, scan.depth[opening] + 1, scan.closing[opening]
    for at in range(opening + 1, closing + 1):
        if at == closing or (scan.symbol(at) == "," and scan.depth[at] == depth):
            is_named = scan.word(at - 2) == "AS" and scan.depth[at - 2] == depth
            end = at - 2 * (is_named and scan.is_name(at - 1))
            if first < end:
                yield first, end
            first = at + 1


def _of_ranges(scan: Scan) -> Iterator[tuple[int, int]]:
    """Yield the arguments of ``range``, which always gives rows."""
    for call in scan.calls(0, len(scan.tokens)):
        if call.name == "range":
            yield from _items(scan, call.open)


def _is_of_merge(scan: Scan, values: int) -> bool:
    """Whether these are a MERGE's own VALUES, which its plan shows."""
    before = values - 1
    if scan.symbol(before) == ")":
        before = scan.opening[before - 1] - 1 if scan.symbol(before - 1) != "(" else before - 2
    return scan.word(before) == "INSERT" and scan.word(before - 1) == "THEN"


def _literal_end(scan: Scan, first: int) -> int:
    """Return where a literal ends that begins there; ``first`` itself if none does."""
    at = first + (scan.symbol(first) in ("-", "+"))
    at += scan.word(at) in _TYPED and scan.kind(at + 1) is TokenKind.STRING
    if scan.kind(at) is TokenKind.STRING:
        while scan.kind(at) is TokenKind.STRING:
            at += 1
        return at
    is_constant = scan.kind(at) is TokenKind.NUMBER or scan.word(at) in _CONSTANTS
    return at + 1 if is_constant else first


def _is_literal(scan: Scan, first: int, end: int) -> bool:
    return _literal_end(scan, first) == end


def _is_of_numbers(scan: Scan, at: int) -> bool:
    """Whether a token of an item stands for a number, or makes one of others."""
    if scan.kind(at) is TokenKind.NUMBER or scan.word(at) in _OF_NUMBERS | _CONSTANTS:
        return True
    return scan.symbol(at) in ("(", ")", ",", "+", "-", "*", "/", "%")
