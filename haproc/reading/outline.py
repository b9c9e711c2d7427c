"""A reading as lines for people: what Spark takes each part of a statement for, and where it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from haproc.reading.names import parts
from haproc.reading.tree import Node, Reading

LINES_MAX: Final = 200
SHOWN_MAX: Final = 60
"""Characters of the text that a line shows. Chosen."""
_TABLES: Final = frozenset({"LogicalRelation", "ResolvedTable", "DataSourceV2Relation"})
"""Whose columns are not shown."""


def outline(reading: Reading) -> list[str]:
    """Return a line for each operator and expression, indented by two spaces for each level.

    A line has the class, a name, a literal's value, the type, and the place with its text. Of more
    than LINES_MAX lines the last says how many are missing.
    """
    root = reading.analyzed or reading.parsed
    assert root is not None, "a reading has a tree"
    lines = list(_lines(root, reading.text, 0, set()))
    if len(lines) > LINES_MAX:
        return [*lines[: LINES_MAX - 1], f"… {len(lines) - LINES_MAX + 1} more"]
    return lines


def _lines(node: Node, text: str, depth: int, seen: set[int]) -> Iterator[str]:
    if id(node) in seen:
        return
    seen.add(id(node))
    if node.is_tree:
        yield "  " * depth + " ".join(_said(node, text))
        depth += 1
    if node.cls in _TABLES:
        return
    for child in node.children:
        yield from _lines(child, text, depth, seen)


def _said(node: Node, text: str) -> Iterator[str]:
    yield node.cls
    name: Any = ".".join(parts(node)) or node["name"]
    if isinstance(name, str) and name:
        yield name
    if node.value is not None:
        yield f"= {node.value}"
    if node.type is not None:
        yield f": {node.type}"
    if not node.deterministic:
        yield "(not deterministic)"
    if node.place is not None and node.cls != "AttributeReference":  # not reliable for columns
        start, end = node.place.start, node.place.end
        shown = " ".join(text[start:end].split())
        shown = shown if len(shown) <= SHOWN_MAX else f"{shown[:SHOWN_MAX]}…"
        yield f"at {start}-{end}: {shown}"
