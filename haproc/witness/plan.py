"""The analyzed plan of a statement, read from the text of EXPLAIN EXTENDED.

Spark prints one node a line, behind a prefix that shows its place in the tree, and in front of all
a line with the names and types of the result, if there is one. What is printed is what every name
came to. Reading it can only go wrong in one direction: texts that a client chose (aliases, strings)
may look like more than there is, never like less. A text that does not look as expected is
`UnreadableError`, and whoever reads it takes the statement for one that differs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from haproc.witness.known import is_root

NODES_MAX = 20_000
"""A plan of more nodes is not read."""

_BEGIN = "== Analyzed Logical Plan =="
_END = "== Optimized Logical Plan =="
_PREFIX = re.compile(r"(?:   |:  )*(?:\+- |:- )")
_NODE = re.compile(r"!?([A-Z][A-Za-z0-9]*)\$?(?= |$)")
_STEP = 3
"""So far to the right of a node its inputs stand."""
_LEFT_OUT = re.compile(r"\.\.\. \d+ more fields|^\.\.\.$|\.\.\. \d+ more characters")
_THROWN = re.compile(r"(?:[a-z]\w*\.)+[\w$.]*(?:Exception|Error): ")
_FAILED = re.compile(
    r"(?:Error occurred during query planning: ?\n)?"
    r"(?:(?P<java>[\w.$]+(?:Exception|Error)): )?"
    r"(?:\[(?P<error_class>[A-Z][A-Z0-9_.]*)\] )?(?P<message>.*?)"
    r"(?: SQLSTATE: (?P<sqlstate>[0-9A-Z]{5})(?P<behind>.*))?\Z",
    re.DOTALL,
)


class UnreadableError(ValueError):
    """The text is no analyzed plan that can be read for certain; the text says why."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Spark could not analyze the statement. The codes are Spark's own; empty where it gave none.

    ``java_class``: of the error that was thrown.
    """

    error_class: str
    sqlstate: str
    message: str
    java_class: str = ""


@dataclass(slots=True)
class Node:
    """A node of the plan: its name, the text behind it, and what stands below it."""

    name: str
    text: str
    indent: int = -1
    children: list[Node] = field(default_factory=list)

    @property
    def inputs(self) -> list[Node]:
        """Its inputs; what else stands below it (subqueries) is printed farther to the right."""
        nearest = min((child.indent for child in self.children), default=0)
        return [child for child in self.children if child.indent == nearest]

    @property
    def subplans(self) -> list[Node]:
        """The plans of subqueries in its text, and what a command says of its target."""
        return [child for child in self.children if child.indent - max(self.indent, 0) > _STEP]

    def walk(self) -> Iterator[Node]:
        """Yield this node and all below it, from top to bottom; a plan may be thousands deep."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += reversed(node.children)


@dataclass(frozen=True, slots=True)
class Plan:
    """An analyzed plan; ``types`` is the line of the result's columns, empty without one."""

    root: Node
    types: str

    @property
    def nodes(self) -> list[Node]:
        """All nodes, from top to bottom."""
        return list(self.root.walk())

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process as lines: it may be nested deeper than pickle goes."""
        return _rebuilt, (self.types, [(node.name, node.text, node.indent) for node in self.nodes])


def read_plan(text: str) -> Plan | Failure:
    """Return the analyzed plan in EXPLAIN EXTENDED's answer, or why there is none.

    Raises UnreadableError.
    """
    section = _section(text)
    return section if isinstance(section, Failure) else _plan(section)


def read_query(text: str, *, columns: bool) -> Plan | Failure:
    """Return the same of a relation, with or without ``columns``; raises UnreadableError.

    Its columns' names are its client's, and stand in front of all: nothing of them may pass for
    the plan. So the first line is theirs, and every line behind the root's has its place in the
    tree; what is spread over lines is not read.
    """
    section = _section(text)
    if isinstance(section, Failure):
        return section
    types, tree = section[0] * columns, section[columns:]
    if not tree or len(section) > NODES_MAX:
        raise UnreadableError(f"it has no node, or more than {NODES_MAX}")
    root = _node(tree[0])
    path = [root]
    for line in tree[1:]:
        match = _PREFIX.match(line)
        if match is None:
            raise UnreadableError("a line of it is no node")
        _descend(path, match.end(), line)
    return Plan(root, types)


def _section(text: str) -> list[str] | Failure:
    """Return the lines of the analyzed plan."""
    lines = text.split("\n")
    if lines.count(_BEGIN) != 1 or lines.count(_END) > 1:
        return _failure(text)
    start = lines.index(_BEGIN) + 1
    end = lines.index(_END) if _END in lines else len(lines)
    if end < start:
        raise UnreadableError("its parts are in another order")
    section = lines[start:end]
    while section and not section[-1].strip():
        section.pop()
    if not section:
        raise UnreadableError("the analyzed plan is empty")
    if end == len(lines) or (not _node_name(section[0]) and _THROWN.match(section[0])):
        return _failure("\n".join(section))
    return section


def _failure(text: str) -> Failure:
    match = _FAILED.match(text)
    if match is None or not (match["error_class"] or match["java"]):
        raise UnreadableError(f"it begins with {text[:80]!r}")
    error_class, sqlstate = match["error_class"] or "", match["sqlstate"] or ""
    message = f"[{error_class}] " * bool(error_class) + match["message"].strip()
    message += f" SQLSTATE: {sqlstate}" * bool(sqlstate)
    return Failure(error_class, sqlstate, message, match["java"] or "")


def _node_name(line: str) -> str:
    match = _NODE.match(line)
    return match[1] if match else ""


def _plan(section: list[str]) -> Plan:
    if len(section) > NODES_MAX:
        raise UnreadableError(f"it has more than {NODES_MAX} nodes")
    types = ""
    first, second = _node_name(section[0]), _node_name(section[1]) if len(section) > 1 else ""
    if not first or (is_root(second) and not is_root(first)):
        types, section = section[0], section[1:]
    if not section or not _node_name(section[0]):
        raise UnreadableError("no node that is known by its form comes first")
    root = _node(section[0])
    path = [root]
    for line in section[1:]:
        match = _PREFIX.match(line)
        if match is None:
            if root.name in _OF_ROWS:
                raise UnreadableError("a line of it is no node")
            path[-1].text += f"\n{line}"  # the properties of a table, in DDL
            continue
        _descend(path, match.end(), line)
    return Plan(root, types)


def _descend(path: list[Node], indent: int, line: str) -> None:
    _place(path, _node(line[indent:], indent))


def _place(path: list[Node], node: Node) -> None:
    while path[-1].indent >= node.indent:
        path.pop()
    path[-1].children.append(node)
    path.append(node)


def _rebuilt(types: str, nodes: list[tuple[str, str, int]]) -> Plan:
    root, *below = (Node(*each) for each in nodes)
    path = [root]
    for node in below:
        _place(path, node)
    return Plan(root, types)


def _node(text: str, indent: int = -1) -> Node:
    name = _node_name(text)
    if not name:
        raise UnreadableError(f"{text[:60]!r} is no resolved node")
    if _LEFT_OUT.search(text):
        raise UnreadableError("Spark left out a part of it")
    return Node(name, text[text.index(name) + len(name) + 1 :], indent)


_OF_ROWS = frozenset(
    {"AppendData", "OverwriteByExpression", "OverwritePartitionsDynamic", "UpdateCommand"}
    | {"DeleteCommand", "DeleteFromTable", "MergeIntoCommand", "Project", "Aggregate", "Filter"}
    | {"InsertIntoHadoopFsRelationCommand", "CreateTableAsSelect", "ReplaceTableAsSelect"}
    | {"CreateDataSourceTableAsSelectCommand"}
)
"""Roots below which every line is a node."""
