"""What is settled while Spark reads: words that become constants, and settings without effect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final

from haproc.classify.names import Context
from haproc.classify.tokens import Token, TokenKind, decoded, is_moment
from haproc.pin.literals import Moment
from haproc.reading.anatomy import Anatomy, anatomy, expressions
from haproc.reading.exact import Examination
from haproc.reading.findings import DEFINED, is_within
from haproc.reading.moving import (
    CLOCK_WORDS,
    TYPED,
    computed_items,
    is_moment_type,
    outputs,
    rows_of,
    tokens_of,
    typed,
)
from haproc.reading.tree import Facts, Finding, Node, Reading, TextRange

# Constants that the analyzer made: the parsed tree, or separately read parts, show their origin.
#
# Rows in the text are computed while they are parsed, and the name in ``IDENTIFIER(…)`` before
# anything else is read. Delta's MERGE replaces all calls of the clock by one literal, which has no
# place in the text; a column of that name wins over the function. All other parts that the
# analyzer computes are in `Reading.computed`.


_BARE: Final = frozenset({"current_date", "current_time", "current_timestamp"})
"""The functions of the clock that may be called without parentheses."""
_LIKE: Final = frozenset({"LikeAny", "LikeAll", "NotLikeAny", "NotLikeAll"})
"""Classes with patterns that the parser already computes, if these are constant."""
_CONVERTING: Final = TYPED | {"CAST", "TRY_CAST"}
_NAMING: Final = frozenset({"concat", "lower", "trim", "upper"})
"""Functions of which the name in an IDENTIFIER(…) may be computed."""


def examine_words(reading: Reading, moment: Moment) -> list[Finding]:
    """Return what may differ between clusters in texts of which Spark has made constants."""
    examination = Examination(reading, moment)
    found = list(_rows_written(examination))
    found += _names_computed(examination)
    found += _patterns(examination)
    found += _of_merge(examination)
    return list(dict.fromkeys(found))


def examine_computed(reading: Reading, facts: Facts, moment: Moment) -> list[Finding]:
    """Return what may differ between clusters in parts that the analyzer computed itself."""
    examination = Examination(reading, moment, facts)
    found = [each for plan in reading.computed for each in examination.part(plan)]
    reason = "is computed while Spark reads the statement, and cannot be read by itself"
    found += [examination.finding(each, reason) for each in reading.unread]
    return list(dict.fromkeys(found))


def is_beside(reading: Reading, whole: Anatomy) -> Callable[[Finding], bool]:
    """Return a test for findings of `examine_computed`: True if no rows can replace that part.

    A part without a place is in a view's or function's body. For it the test is True if a part
    outside the statement's query uses such a body.
    """
    beside = {node.place for part in whole.parsed_fixed for node in part.walk()}
    items = [each for plan in reading.computed for each in computed_items(plan)]
    places = [each.place for each in (*items, *reading.unread)]
    fixed = [each for each in places if each is not None and each in beside]
    holds_bodies = any(node.cls in DEFINED for part in whole.fixed for node in part.walk())

    def is_fixed(finding: Finding) -> bool:
        if whole.source is None:
            return True
        if finding.place is None:
            return bool(fixed) or holds_bodies
        return any(is_within(finding.place, each) for each in fixed)

    return is_fixed


def _parsed(examination: Examination) -> Iterator[Node]:
    parsed = examination.reading.parsed
    return iter(()) if parsed is None else parsed.walk()


def _rows_written(examination: Examination) -> Iterator[Finding]:
    """Yield what may differ between clusters in rows that stand in the text (VALUES)."""
    for node in _parsed(examination):
        if node.cls == "LocalRelation" and node.place is not None:
            for row in rows_of(examination.reading.text, node.place):
                for item in row:
                    yield from _of_item(examination, item)
        elif node.cls == "UnresolvedInlineTable":
            for each in (item for row in node["rows"] or () for item in row):
                if each.cls == "Literal":
                    yield from examination.literal(each)


def _of_item(examination: Examination, item: list[Token]) -> Iterator[Finding]:
    """Yield what may differ between clusters in an item of a row in the text."""
    for at, token in enumerate(item):
        if token.upper not in TYPED:
            continue
        behind = at + 1
        while behind < len(item) and item[behind].kind is TokenKind.STRING:
            behind += 1
        word_text = typed(item[at:behind])
        place = TextRange(token.start, item[behind - 1].end)
        node = Node("Literal", place=place)
        if word_text is None:  # the type of a cast
            strings = [each for each in item if each.kind is TokenKind.STRING]
            if len(strings) != 1 or is_moment(decoded(strings[0].text)):
                whole = Node("Cast", place=TextRange(item[0].start, item[-1].end))
                yield examination.finding(whole, "may be read as a moment, by the clock")
        elif (literal := examination.moving.written(*word_text, None)) is not None:
            yield from examination.read_by_clock(node, literal, place)


def _names_computed(examination: Examination) -> Iterator[Finding]:
    """Yield findings about names in IDENTIFIER(…) that are computed from more than literals."""
    for node in _parsed(examination):
        computed = node.node("identifierExpr")
        for each in () if computed is None else computed.walk():
            names = each["nameParts"]
            is_plain = each.cls == "UnresolvedFunction" and names[-1].lower() in _NAMING
            if not is_plain and each.cls not in ("Literal", "Concat"):
                reason = "computes a name, which may be another one on every cluster"
                yield Finding(f"{examination.shown(each)} {reason}", each.place)
                break


def _patterns(examination: Examination) -> Iterator[Finding]:
    """Yield findings about patterns of ``LIKE ANY`` and similar that may rest on the clock."""
    text = examination.reading.text
    for node in _parsed(examination):
        if node.cls not in _LIKE or node.place is None:
            continue
        written = text[node.place.start : node.place.end]
        tokens = tokens_of(written)
        converts = "::" in written or any(token.upper in _CONVERTING for token in tokens)
        strings = (decoded(token.text) for token in tokens if token.kind is TokenKind.STRING)
        if converts and any(is_moment(each) for each in strings):
            yield examination.finding(node, "compares with what may be a moment, by the clock")


def _of_merge(examination: Examination) -> Iterator[Finding]:
    """Yield findings about a MERGE's calls of the clock, which the analyzer made one literal."""
    merge = next((each for each in _parsed(examination) if each.cls == "MergeIntoTable"), None)
    analyzed = examination.reading.analyzed
    if merge is None or analyzed is None:
        return
    nodes = list(analyzed.walk())
    literals = {each.place for each in nodes if each.cls == "Literal" and is_moment_type(each)}
    columns = {str(each["name"]).lower() for each in nodes if each.cls == "AttributeReference"}
    if not any(each == analyzed.place for each in literals):
        return  # those with places of their own are found there
    scopes = _scopes(merge, analyzed)
    for node in merge.walk():
        names = node["nameParts"]
        name = str(names[-1]).lower() if isinstance(names, list) and names else ""
        is_call = (
            node.cls == "UnresolvedFunction"
            and name.upper() in CLOCK_WORDS
            and not node["arguments"]
        )
        is_bare = node.cls == "UnresolvedAttribute" and len(names) == 1 and name in _BARE
        if node.place is None or node.place in literals or not (is_call or is_bare):
            continue
        if is_bare and name in columns:
            scope = scopes.get(id(node))
            if scope is None:
                yield examination.finding(node, "may be a column, or the clock")
            if scope is None or name in scope:
                continue
        literal = examination.moving.clock(name, "")
        yield from examination.value(node, literal, "reads the clock", node.place)


def _scopes(merge: Node, analyzed: Node) -> dict[int, set[str]]:
    """Return, by the id of each node in a MERGE's clauses, the names of columns that it may use."""
    source, target = (_columns_shown(analyzed.node(each)) for each in ("source", "target"))
    of_fields = {
        "mergeCondition": source | target,
        "matchedActions": source | target,
        "notMatchedActions": source,
        "notMatchedBySourceActions": target,
    }
    return {
        id(node): scope
        for name, scope in of_fields.items()
        for each in merge.nodes(name)
        for node in each.walk()
    }


def _columns_shown(side: Node | None) -> set[str]:
    """Return the names of the columns of a MERGE's source or target."""
    shown = set(outputs(side))
    return {
        str(each["name"]).lower()
        for each in ([] if side is None else side.walk())
        if each.id in shown and each.cls in ("AttributeReference", "Alias")
    }


# The check that the parts which each cluster computes are the same without some settings.
#
# Lanes run a write under the settings that travel with it, not under all of its client's session.
# Two readings show if these matter: one under all settings, one with the lanes' settings. They do
# not matter if both are alike, and hold only expressions that no setting changes.


_PLAIN: Final = frozenset(
    {"Alias", "And", "AttributeReference", "EqualNullSafe", "EqualTo", "GreaterThan", "IsNotNull"}
    | {"GreaterThanOrEqual", "IsNull", "LessThan", "LessThanOrEqual", "Literal", "Not", "Or"}
)
"""Expressions that give the same under all settings if their trees are the same."""
_ARITHMETIC: Final = frozenset({"Add", "Multiply", "Subtract", "UnaryMinus"})
"""Classes of which the same is true for numbers: only ANSI mode matters to them, and every cluster
uses the ANSI mode of the client's session."""
_FITTING: Final = frozenset({"Cast", "CheckOverflowInTableInsert", "CheckOverflowInTableWrite"})
"""Classes that fit values to a table's columns; their place is that of the whole statement."""
_NUMBERS: Final = ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(")
_HOLDERS: Final = frozenset({"NumericEvalContext"})
"""Classes that are no expressions, but say how something is computed."""
_OF_COLUMNS: Final = ("name", "dataType")
"""What is compared of a column. Not whether it may be NULL: any column of computed rows may be."""


def unsettled(
    own: Reading, lanes: Reading, context: Context, values: Sequence[TextRange] = ()
) -> str | None:
    """Return a part that may give something else under the lanes' settings, as text; None: no part.

    ``own``: the reading under all settings of the session; ``lanes``: under those that the lanes
    use. ``values``: the places of parts that literals replace.
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
    """Return the outermost of those expressions that every cluster computes itself."""
    if reading.parsed is not None:
        return list(anatomy(reading, context).beside)
    assert reading.analyzed is not None
    return list(expressions([reading.analyzed]))


def _unplain(node: Node, whole: TextRange | None, values: Sequence[TextRange]) -> Iterator[Node]:
    """Yield those parts of an expression that settings may change though the trees are alike."""
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
    """True if two trees are the same, apart from expressions' numbers and from ``values``."""
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
"""Fields with numbers, which are new in each analysis."""


def alike(own: Reading, lanes: Reading) -> bool:
    """True if a statement has the same trees in both readings."""
    trees: Iterable[tuple[Node | None, Node | None]] = (
        (own.parsed, lanes.parsed),
        (own.analyzed, lanes.analyzed),
    )
    return all(_alike(mine, other, ()) for mine, other in trees)


def _shown(node: Node, text: str) -> str:
    place = node.place
    shown = " ".join(text[place.start : place.end].split()) if place is not None else ""
    return shown or node.cls
