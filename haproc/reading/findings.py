"""One statement's trees, indexed, and how findings in them are worded.

For each node the index has what is around it: the operator that it is a part of, and the view or
SQL function in whose text it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from haproc.pin.literals import Moment
from haproc.pin.sqltypes import quote_name
from haproc.reading import known
from haproc.reading.moving import Moving
from haproc.reading.order import items_of
from haproc.reading.tree import Facts, Finding, Node, Reading, Remedy, TextRange

SHOWN_MAX: Final = 80
"""The most characters of the statement that a finding's reason shows. Chosen."""
LIMITS: Final = frozenset({"GlobalLimit", "LocalLimit", "Offset", "Tail"})
BY_VALUE: Final = frozenset({"Deduplicate", "Distinct", "Except", "Intersect"})
RELATIONS: Final = frozenset({"DataSourceV2Relation", "LogicalRelation", "HiveTableRelation"})
DEFINED: Final = frozenset({"View", "SQLFunctionNode", "SQLScalarFunction"})
OPERATORS: Final = (
    known.OPERATORS | known.WRITING | LIMITS | BY_VALUE | RELATIONS | {"Window", "LocalRelation"}
)
_LEAVES: Final = RELATIONS | known.OBJECTS | {"VariableReference", "LocalRelation", "LogicalRDD"}
_INSERTED: Final = frozenset({"Distinct", "GlobalLimit", "LocalLimit", "Offset", "Sort"})
_NOTHING: Final[frozenset[str]] = frozenset()


def is_within(place: TextRange | None, outer: TextRange) -> bool:
    """True if ``place`` lies within ``outer``, or is None (unknown)."""
    return place is None or (outer.start <= place.start and place.end <= outer.end)


@dataclass(slots=True)
class Statement:
    """One statement as Spark has read it, with an index of its nodes (by Python's ``id``)."""

    reading: Reading
    moment: Moment
    facts: Facts = field(default_factory=Facts)
    moving: Moving = field(init=False)
    parents: dict[int, list[Node]] = field(default_factory=dict)
    owners: dict[int, Node] = field(default_factory=dict)
    inside: dict[int, str] = field(default_factory=dict)
    """The name of the view or function in whose text a node is."""
    _items: list[TextRange] | None = None
    _called: dict[TextRange, Node] = field(default_factory=dict)
    _indexed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.moving = Moving(self.reading, self.moment)
        for root in (self.reading.analyzed, *self.reading.computed):
            if root is not None:
                self.index(root)

    def below(self, node: Node) -> list[Node]:
        """Return the nodes directly below a node, except those that only name something."""
        if node.cls in _LEAVES:
            return []
        side = known.SIDE.get(node.cls, _NOTHING)
        fields = {name: value for name, value in node.fields.items() if name not in side}
        return [*Node("", fields).children, *node.more] if side else node.children

    def nodes(self, part: Node) -> Iterator[Node]:
        """Yield a part's nodes, each once; a node comes before those below it."""
        seen, waiting = set[int](), [part]
        while waiting:
            node = waiting.pop()
            if id(node) not in seen:
                seen.add(id(node))
                yield node
                waiting.extend(reversed(self.below(node)))

    def index(self, root: Node) -> None:
        """Note the parents, the operator, and the view or function of each node below ``root``."""
        if id(root) in self._indexed:
            return
        for node in self.nodes(root):
            self._indexed.add(id(node))
            inside = self.inside.get(id(node), "")
            if node.cls in DEFINED:
                inside = name_of(node) or inside
            if node.cls == "CommonExpressionDef" and (number := node.node("id")) is not None:
                self.moving.defined[number["id"]] = node
            is_operator = node.cls in OPERATORS
            for each in self.below(node):
                self.parents.setdefault(id(each), []).append(node)
                owner = node if is_operator else self.owners.get(id(node))
                if owner is not None:
                    self.owners.setdefault(id(each), owner)
                if inside:
                    self.inside.setdefault(id(each), inside)

    def shown(self, node: Node) -> str:
        """Return what a reason calls a node: its text, or its function and the view around it."""
        text = " ".join(self.moving.cut(node.place).split())
        if text and node.cls not in ("AttributeReference", *OPERATORS):
            return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
        name = node.fields.get("name") or ""
        called = name if isinstance(name, str) and name else f"{known.called(node.cls)}()"
        inside = self.inside.get(id(node))
        return f"{called} in {inside}" if inside else called

    def finding(self, node: Node, reason: str, remedy: Remedy = Remedy.ROWS) -> Finding:
        """Return a finding about a node; ``reason``: how the sentence goes on after its name."""
        name = known.called(node.cls)
        shown = self.shown(node)
        hidden = node.cls in known.NATURE and name.split("_")[0] not in shown.lower()
        shown = f"{shown} ({name}())" if hidden else shown
        place = None if node.cls == "AttributeReference" else node.place
        return Finding(f"{shown} {reason}", place, remedy)

    def read_by_clock(self, node: Node, literal: str, place: TextRange) -> Iterator[Finding]:
        """Yield the findings about a typed literal that is read by the clock.

        ``literal``: what replaces it; empty if its value is not known.
        """
        if literal:
            yield from self.value(node, literal, "is read by the clock", place)
        else:
            yield self.finding(node, "is read by the clock, as a moment that cannot be written")

    def value(self, node: Node, literal: str, reason: str, place: TextRange) -> Iterator[Finding]:
        yield Finding(f"{self.shown(node)} {reason}", place, Remedy.VALUE, literal)
        yield from self.names(node, place)

    def names(self, node: Node, place: TextRange) -> Iterator[Finding]:
        """Yield what keeps a column's name when a literal replaces the text that gave the name.

        That is a finding with an alias as its literal. If no alias is possible there, a finding
        with rows as the remedy.
        """
        yield from self._field(node, place)
        around = [each for each in self._unnamed() if is_within(place, each)]
        if not around:
            return
        here = max(around, key=lambda each: each.start - each.end)
        alias, text = self._aliases().get(here), self.reading.text
        # GROUP BY may name a variable, too, and then means the column.
        unasked = node.cls != "VariableReference" and alias is not None
        if unasked and alias is not None and self._is_inserted(alias):
            return
        name = self.moving.name_of_call(here) if alias is None else str(alias["name"])
        if not name or text[: here.start].rstrip().endswith("("):
            yield self.finding(node, "stands where the column cannot keep its name: give it one")
            return
        literal, end = f" AS {quote_name(name)}", TextRange(here.end, here.end)
        yield Finding(f"{self.moving.cut(here)} keeps its name", end, Remedy.VALUE, literal)

    def _field(self, node: Node, place: TextRange) -> Iterator[Finding]:
        """Yield what keeps a field's name, which is x in struct(x), when a literal replaces x."""
        for above in self.parents.get(id(node), ()):
            children = above.nodes("children") if above.cls == "CreateNamedStruct" else []
            for key, value in zip(children[::2], children[1::2], strict=False):
                bare = self.moving.cut(place).strip("`").lower()
                name = (key.value or "").strip("'")
                is_written = self.moving.cut(key.place)[:1] in ("'", '"')
                if value is node and name.lower() == bare and not is_written:
                    literal, end = f" AS {quote_name(name)}", TextRange(place.end, place.end)
                    yield Finding(f"{name} keeps its name", end, Remedy.VALUE, literal)

    def _unnamed(self) -> list[TextRange]:
        """Return the places of those items of select lists that have no alias."""
        if self._items is None:
            parsed = self.reading.parsed
            nodes = () if parsed is None else parsed.walk()
            lists = (items_of(node) for node in nodes if node.cls in ("Project", "Aggregate"))
            items = (each for items in lists for each in items if each.cls != "Alias")
            places = ((each.node("child") or each).place for each in items)
            self._items = [each for each in places if each is not None]
        return self._items

    def _aliases(self) -> dict[TextRange, Node]:
        """Return the analyzed tree's aliases, by the places of the expressions that they name."""
        analyzed = self.reading.analyzed
        if not self._called and analyzed is not None:
            for node in analyzed.walk():
                inner = node.node("child") if node.cls == "Alias" else None
                if inner is not None and inner.place is not None:
                    self._called.setdefault(inner.place, node)
        return self._called

    def _is_inserted(self, alias: Node) -> bool:
        """True if a column's name does not matter, as an INSERT takes columns by position."""
        parsed, owner = self.reading.parsed, self.owners.get(id(alias))
        if parsed is None or parsed.cls != "InsertIntoStatement" or parsed["byName"]:
            return False
        query = parsed.node("query")
        while query is not None and query.cls in _INSERTED:
            query = query.node("child")
        return query is not None and owner is not None and query.place == owner.place

    def is_below(self, node: Node, *classes: str) -> bool:
        return any(each.cls in classes for each in self.parents.get(id(node), ()))

    def definition(self, node: Node) -> Node | None:
        """Return the view or function in whose text a node is; None if it is in no such text."""
        if id(node) not in self.inside and node.cls not in DEFINED:
            return None
        above = [node]
        while above and above[0].cls not in DEFINED:
            above = self.parents.get(id(above[0]), [])
        return above[0] if above else None


def name_of(node: Node) -> str:
    held = node.node("desc") or node.node("function")
    names = None if held is None else held.attributes.get("name")
    if names is None and held is not None and (inner := held.node("name")) is not None:
        names = inner.attributes.get("name")
    return ".".join(names) if isinstance(names, list) else ""


def text_of(node: Node) -> str:
    """Return the text of a view, or of the body of a SQL function; empty for other nodes."""
    view, function = node.node("desc"), node.node("function")
    if view is not None:
        return str(view.attributes.get("text", ""))
    if function is not None:
        return str(function["queryText"] or function["exprText"] or "")
    return ""
