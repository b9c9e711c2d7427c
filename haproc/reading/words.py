"""What the analyzer has made constants of: the parsed tree shows it, or what is read beside it.

Rows that stand in the text are computed while they are parsed or analyzed, and so is what ``range``
is given and the name in ``IDENTIFIER(…)``. Delta's MERGE puts a literal for the clock, for all of
its calls the same one, which stands nowhere; a column of such a name goes before the function.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from haproc.classify.moments import is_moment
from haproc.classify.strings import decoded
from haproc.classify.tokens import Token, TokenKind
from haproc.pin.model import Moment
from haproc.reading.exact import Examination
from haproc.reading.findings import is_within
from haproc.reading.model import Finding
from haproc.reading.moving import CLOCK_WORDS, TYPED, is_moment_type, outputs, rows_of, typed
from haproc.reading.tree import Node, Reading, TextRange

_BARE: Final = frozenset({"current_date", "current_time", "current_timestamp"})
"""Those that Spark calls without parentheses, too."""
_NAMING: Final = frozenset({"concat", "lower", "trim", "upper"})
"""Functions of which a name may be made."""


def examine_words(
    reading: Reading, moment: Moment, within: TextRange | None = None
) -> list[Finding]:
    """Return what the analyzer has made constants of, so that the analyzed tree hides it.

    ``within``: only what stands there in the text.
    """
    examination = Examination(reading, moment)
    found = list(_rows_written(examination))
    if reading.computed is not None:
        found += examination.part(reading.computed)
    found += _names_computed(examination)
    found += _of_merge(examination)
    inside = [each for each in found if within is None or is_within(each.place, within)]
    return list(dict.fromkeys(inside))


def _parsed(examination: Examination) -> Iterator[Node]:
    parsed = examination.reading.parsed
    return iter(()) if parsed is None else parsed.walk()


def _rows_written(examination: Examination) -> Iterator[Finding]:
    """Yield what moves among rows that stand in the text."""
    for node in _parsed(examination):
        if node.cls == "LocalRelation" and node.place is not None:
            for row in rows_of(examination.reading.text, node.place):
                for item in row:
                    yield from _of_item(examination, item)
        elif node.cls == "UnresolvedInlineTable":
            items = [each for row in node["rows"] or () for each in row]
            made = [each for each in items if each.cls != "Literal" and not _is_default(each)]
            for each in items:
                if each.cls == "Literal":
                    yield from examination.literal(each)
            if made and examination.reading.computed is None:
                said = "is computed among rows, where it cannot be told by itself"
                yield Finding(f"{examination.shown(made[0])} {said}", node.place)


def _is_default(node: Node) -> bool:
    names = node["nameParts"] if node.cls == "UnresolvedAttribute" else None
    return isinstance(names, list) and [str(each).upper() for each in names] == ["DEFAULT"]


def _of_item(examination: Examination, item: list[Token]) -> Iterator[Finding]:
    """Yield what an item of a row is that was computed while it was parsed."""
    for at, token in enumerate(item):
        if token.upper not in TYPED:
            continue
        behind = at + 1
        while behind < len(item) and item[behind].kind is TokenKind.STRING:
            behind += 1
        word_said = typed(item[at:behind])
        place = TextRange(token.start, item[behind - 1].end)
        node = Node("Literal", place=place)
        if word_said is None:  # the type of a cast
            strings = [each for each in item if each.kind is TokenKind.STRING]
            if len(strings) != 1 or is_moment(decoded(strings[0].text)):
                whole = Node("Cast", place=TextRange(item[0].start, item[-1].end))
                yield examination.finding(whole, "may be read as a moment, by the clock")
        elif (literal := examination.moving.written(*word_said, None)) is not None:
            yield from examination.read_by_clock(node, literal, place)


def _names_computed(examination: Examination) -> Iterator[Finding]:
    """Yield the names in IDENTIFIER(…) that rest on more than literals."""
    for node in _parsed(examination):
        computed = node.node("identifierExpr")
        for each in () if computed is None else computed.walk():
            names = each["nameParts"]
            is_plain = each.cls == "UnresolvedFunction" and names[-1].lower() in _NAMING
            if not is_plain and each.cls not in ("Literal", "Concat"):
                said = "computes a name, which may be another one on every cluster"
                yield Finding(f"{examination.shown(each)} {said}", each.place)
                break


def _of_merge(examination: Examination) -> Iterator[Finding]:
    """Yield the calls of the clock in a MERGE, which the analyzer has replaced by one literal."""
    merge = next((each for each in _parsed(examination) if each.cls == "MergeIntoTable"), None)
    analyzed = examination.reading.analyzed
    if merge is None or analyzed is None:
        return
    nodes = list(analyzed.walk())
    literals = {each.place for each in nodes if each.cls == "Literal" and is_moment_type(each)}
    columns = {str(each["name"]).lower() for each in nodes if each.cls == "AttributeReference"}
    if not any(each == analyzed.place for each in literals):
        return  # those that have places of their own are found there
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
    """Return what each node of a MERGE's clauses takes for a column, by the node's id."""
    source, target = (_shown(analyzed.node(each)) for each in ("source", "target"))
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


def _shown(side: Node | None) -> set[str]:
    """Return the names of the columns that a side of a MERGE has."""
    shown = set(outputs(side))
    return {
        str(each["name"]).lower()
        for each in ([] if side is None else side.walk())
        if each.id in shown and each.cls in ("AttributeReference", "Alias")
    }
