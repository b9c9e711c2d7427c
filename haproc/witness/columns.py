"""The columns of a plan: what each one is called, where it comes from, and of what type it is.

In a plan a column is ``name#12``, with an ``L`` behind it if it is a BIGINT. The name can be any
text (``sum(a)#12L``), so names are learnt where columns are defined, and each ``name#12`` becomes
``§12``; a ``#`` that is left over makes the plan unreadable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from haproc.witness.lists import leading, split
from haproc.witness.plan import Node, Plan, UnreadableError

_ID = re.compile(r"#(\d+)(L?)(?!\w)")
_ENDS_IN_ID = re.compile(r"(.*)#(\d+)(L?)\Z", re.DOTALL)
_NOT_COLUMNS = re.compile(r"(?:lambda \w+|(?:scalar|lateral)-subquery|exists|list|in)#\d+L?")
_PLAIN = re.compile(r"[\w.$]+\Z")
_PLAIN_END = re.compile(r"(?<![\w$.`)\]])[\w$]{1,200}\Z")
_OF_TABLE = re.compile(r"[^#,\[\]{}]+\Z")
COLUMN = re.compile(r"§(\d+)")
_KEY = re.compile(r"§(\d+)(?: (?:ASC|DESC) NULLS (?:FIRST|LAST))?")
"""Not ``a#1 LIKE x% ASC NULLS FIRST``."""
_DEFINING = frozenset({"Project", "Aggregate", "Window", "Generate"})
INLINE = frozenset({"LocalRelation", "ResolvedInlineTable"})
_LEAVES = frozenset({"Relation", "RelationV2", "LocalRelation", "ResolvedInlineTable", "Range"})


class Type(StrEnum):
    """What matters of a column's type."""

    INTEGER = "integer"
    DECIMAL = "decimal"
    TEXT = "text"
    """A string of no collation."""
    PLAIN = "plain"
    """Another one, whose equal values are the same value."""
    LOOSE = "loose"
    """Equal values may differ: floats (0.0 and -0.0), collated strings, what holds such."""


def type_of(text: str) -> Type:
    """Return what matters of a type, from Spark's text of it."""
    word = text.lower().split("(")[0].strip()
    if word in ("tinyint", "smallint", "int", "integer", "bigint", "byte", "short", "long"):
        return Type.INTEGER
    if word in ("decimal", "dec", "numeric"):
        return Type.DECIMAL
    if word in ("string", "char", "varchar"):
        return Type.TEXT
    plain = {"boolean", "date", "timestamp", "timestamp_ntz", "timestamp_ltz", "binary", "void"}
    return Type.PLAIN if word in plain else Type.LOOSE


@dataclass(frozen=True, slots=True)
class Item:
    """An item of a list of columns: ``expression`` has other columns as ``§id``."""

    id: str
    expression: str

    @property
    def columns(self) -> frozenset[str]:
        """The columns that the expression rests on."""
        return frozenset(COLUMN.findall(self.expression))


@dataclass(slots=True)
class Columns:
    """All columns of a plan. ``schemas``: types of the columns of tables, as Spark writes them.

    ``merged``: the types that columns may have which no node of the plan defines, by their names.
    """

    plan: Plan
    schemas: Mapping[str, Mapping[str, str]]
    merged: Mapping[str, Sequence[str]] = field(default_factory=dict)
    types: dict[str, Type] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    """The types of those that come from tables, as Spark writes them; several if it is not sure."""

    def __post_init__(self) -> None:
        for node in self.plan.nodes:
            for name, number, long in _definitions(node):
                # Spark shows a column as each place spells it.
                if self.names.setdefault(number, name).lower() != name.lower():
                    raise UnreadableError(f"column {number} has two names")
                if long:
                    self.types[number] = Type.INTEGER
        for node in self.plan.nodes:
            self._types_of_table(node)

    def _types_of_table(self, node: Node) -> None:
        table = table_read(node)
        schema = self.schemas.get(table or "", {})
        if node.name in _LEAVES:
            for name, number, _ in _leaf(node):
                if name.lower() in schema:
                    self.kinds[number] = schema[name.lower()]
                    self.types[number] = type_of(schema[name.lower()])

    def _types_by_name(self, name: str, number: str) -> None:
        if any(each.endswith(name) and not _PLAIN.match(each) for each in self.merged):
            return  # it may be the end of a longer one
        found = self.merged.get(name, ())
        if found:
            self.kinds[number] = " or ".join(found)
        if len({type_of(each) for each in found}) == 1:
            self.types[number] = type_of(found[0])

    def rewritten(self, text: str) -> str:
        """Return an expression with each column as ``§id``."""
        text = _NOT_COLUMNS.sub("~", text)
        parts, position = [], 0
        for match in _ID.finditer(text):
            known = self.names.get(match[1])
            if known is not None:
                start = match.start() - len(known)
                shown = text[start : match.start()] if start >= position else ""
                is_there = bool(shown) and shown.lower() == known.lower()
            else:
                plain = _PLAIN_END.search(text, position, match.start())
                start, is_there = (plain.start(), True) if plain is not None else (0, False)
                if plain is not None:
                    self._types_by_name(plain.group().lower(), match[1])
            if not is_there:
                raise UnreadableError("a column's name cannot be told from what is around it")
            parts += [text[position:start], f"§{match[1]}"]
            position = match.end()
        rewritten = "".join([*parts, text[position:]])
        if "#" in rewritten:
            raise UnreadableError("a column's name cannot be told from what is around it")
        return rewritten

    def items(self, texts: list[str]) -> list[Item]:
        """Return the items of a list that defines columns."""
        found = []
        for text in texts:
            match = _ENDS_IN_ID.match(text)
            if match is None:
                raise UnreadableError(f"{text[:60]!r} is no column")
            parts = split(text, " AS ")
            expression = parts[0] if len(parts) > 1 else text
            found.append(Item(match[2], self.rewritten(expression)))
        return found

    def in_leaf(self, leaf: Node) -> list[str]:
        """Return the columns of a leaf, in their order."""
        return [number for _, number, _ in _leaf(leaf)]

    def keys(self, texts: list[str]) -> frozenset[str]:
        """Return the columns that stand alone in a list (of sort keys, of group keys)."""
        found = (_KEY.fullmatch(self.rewritten(text)) for text in texts)
        return frozenset(match[1] for match in found if match is not None)


def table_read(node: Node) -> str | None:
    """Return the table's name as printed, if the node reads one; empty for files without a name."""
    if node.name == "Relation":
        return node.text.partition("[")[0].strip()
    if node.name == "RelationV2":
        _, behind = leading(node.text)
        return behind.strip().partition(",")[0].strip()
    if node.name == "HiveTableRelation":
        return node.text.removeprefix("[").partition(",")[0].strip()
    return None


def _leaf(node: Node) -> Iterator[tuple[str, str, str]]:
    start = node.text.find("[")
    if node.name == "Range" or start < 0:
        return
    if node.name == "ResolvedInlineTable":
        start = node.text.rfind("[")
    texts, _ = leading(node.text[start:])
    for text in (part for each in texts for part in split(each, ",")):
        match = _ENDS_IN_ID.match(text.strip())
        if match is None or not _OF_TABLE.match(match[1]):
            raise UnreadableError(f"the column {text[:60]!r} has no plain name")
        yield match[1], match[2], match[3]


def _definitions(node: Node) -> Iterator[tuple[str, str, str]]:
    """Yield name, id and the mark of a BIGINT of each column that the node defines."""
    if node.name in _LEAVES:
        yield from _leaf(node)
    if node.name in _DEFINING:
        rest, texts = node.text, []
        if node.name == "Generate":
            rest = node.text[node.text.rfind("[") :]
        while rest.startswith("["):
            more, rest = leading(rest)
            texts += more
        for text in texts:
            match = _ENDS_IN_ID.match(text)
            if match is None:
                continue
            parts = split(match[1], " AS ")
            if len(parts) > 2:
                raise UnreadableError(f"{text[:60]!r} has more than one name")
            if len(parts) == 2 or _PLAIN.match(match[1]):
                yield parts[-1], match[2], match[3]
