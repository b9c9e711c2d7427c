"""Whether what each cluster computes of a statement is the same without some of its settings.

Lanes run a write under the settings that travel with it, not under those of its client's session
alone. Two readings tell whether these matter: one under all settings, one as the lanes have them.
Where both are alike, and hold nothing but what no setting changes as it is computed, they do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final

from haproc.classify.names import Context
from haproc.reading.anatomy import anatomy, expressions
from haproc.reading.tree import Node, Reading, TextRange

_PLAIN: Final = frozenset(
    {"Alias", "And", "AttributeReference", "EqualNullSafe", "EqualTo", "GreaterThan", "IsNotNull"}
    | {"GreaterThanOrEqual", "IsNull", "LessThan", "LessThanOrEqual", "Literal", "Not", "Or"}
)
"""Expressions that come to the same under all settings, if they are alike."""
_ARITHMETIC: Final = frozenset({"Add", "Multiply", "Subtract", "UnaryMinus"})
"""Likewise over numbers: ANSI mode says what they do, and travels."""
_FITTING: Final = frozenset({"Cast", "CheckOverflowInTableInsert", "CheckOverflowInTableWrite"})
"""What makes values those of a table's columns, where it has the place of the whole statement."""
_NUMBERS: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(")
_HOLDERS: Final = frozenset({"NumericEvalContext"})
"""No expressions: how one is computed."""
_OF_COLUMNS: Final = ("name", "dataType")
"""What counts of a column: what stands for a query's rows may have NULLs in it."""


def unsettled(
    own: Reading, lanes: Reading, context: Context, values: Sequence[TextRange] = ()
) -> str | None:
    """Return a part that may come to something else in the lanes, in words; None if none may.

    ``own``, ``lanes``: the readings under all settings, and under those that lanes have.
    ``values``: the places of what becomes a literal.
    """
    theirs = [_beside(each, context) for each in (own, lanes)]
    whole = own.parsed.place if own.parsed is not None else None
    for mine, other in zip_longest(*theirs):
        if mine is None or other is None:
            return "the statement"
        for node in _unplain(mine, whole, values):
            return _shown(node, own.text)
        if not _alike(mine, other, values):
            return _shown(mine, own.text)
    return None


def _beside(reading: Reading, context: Context) -> list[Node]:
    """Return the outermost expressions that no rows stand for."""
    if reading.parsed is not None:
        return list(anatomy(reading, context).beside)
    assert reading.analyzed is not None
    return list(expressions([reading.analyzed]))


def _unplain(node: Node, whole: TextRange | None, values: Sequence[TextRange]) -> Iterator[Node]:
    """Yield what of an expression may come to something else though it is alike."""
    if node.place is not None and node.place in values:
        return
    below = [each for each in node.children if each.cls not in _HOLDERS]
    is_of_numbers = all(map(_is_number, (node, *below)))
    fits = node.cls in _FITTING and node.place is not None and node.place == whole
    is_plain = (
        node.cls in _PLAIN
        or (node.cls in (*_ARITHMETIC, "Cast") and is_of_numbers)
        or (node.cls == "In" and len(below) > 1)
        or fits
    )
    if not is_plain:
        yield node
    elif node.cls != "AttributeReference":
        for each in below:
            yield from _unplain(each, whole, values)


def _is_number(node: Node) -> bool:
    return (node.type or "").startswith(_NUMBERS)


def _alike(mine: Any, other: Any, values: Sequence[TextRange]) -> bool:
    """Tell whether two trees are the same but for numbers and places."""
    if isinstance(mine, Node) and isinstance(other, Node):
        if mine.place is not None and mine.place in values:
            return True
        if (mine.cls, mine.type, mine.value) != (other.cls, other.type, other.value):
            return False
        if mine.cls == "AttributeReference":
            return all(_alike(mine[name], other[name], values) for name in _OF_COLUMNS)
        attributes = _alike(mine.attributes, other.attributes, values)
        more = _alike(mine.more, other.more, values)
        return attributes and more and _alike(mine.fields, other.fields, values)
    if isinstance(mine, dict) and isinstance(other, dict):
        keys = {*mine, *other} - _NUMBERING
        return all(_alike(mine.get(key), other.get(key), values) for key in keys)
    if isinstance(mine, list) and isinstance(other, list):
        pairs = zip(mine, other, strict=False)
        return len(mine) == len(other) and all(_alike(a, b, values) for a, b in pairs)
    return bool(mine == other)


_NUMBERING: Final = frozenset({"exprId", "resultId"})
"""Fields with numbers that each analysis gives anew."""


def alike(own: Reading, lanes: Reading) -> bool:
    """Tell whether the whole of a statement is the same in both readings."""
    trees: Iterable[tuple[Node | None, Node | None]] = (
        (own.parsed, lanes.parsed),
        (own.analyzed, lanes.analyzed),
    )
    return all(_alike(mine, other, ()) for mine, other in trees)


def _shown(node: Node, text: str) -> str:
    place = node.place
    said = " ".join(text[place.start : place.end].split()) if place is not None else ""
    return said or node.cls
