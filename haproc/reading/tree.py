"""A reading: the trees that Spark's parser and analyzer make of a statement; also its verdict."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from haproc.classify.model import RefusedError
from haproc.failure import ErrorClass
from haproc.pin.literals import Treatment

# The judge's verdict on a statement, part by part.


class Remedy(StrEnum):
    """What can replace a part that would not be the same on every cluster."""

    VALUE = "value"
    """The part is one value for the whole statement: a literal replaces it."""
    ROWS = "rows"
    """The rows of the query that contains the part, computed once, replace that query."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Finding:
    """A part of a statement that could differ from cluster to cluster.

    ``reason``: a sentence without a full stop, which names the part. ``place``: where it is in the
    text; None: unknown. ``literal``: what replaces it (remedy VALUE). ``hint``: what to write
    instead if there is no remedy.
    """

    reason: str
    place: TextRange | None = None
    remedy: Remedy = Remedy.ROWS
    literal: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What must be known of the session and the rules, besides the trees.

    ``legacy``: True if the session uses the legacy time parser, with which some formats depend on
    the clock. ``vouched``: True if the statement is of unknown kind, and an operator's rule allows
    it; then classes that are not listed are allowed, too.
    """

    legacy: bool = False
    vouched: bool = False


@dataclass(frozen=True, slots=True)
class WriteVerdict:
    """The verdict on a write.

    ``reads``: all tables and views that it reads, as Spark sees them. ``rests_on``: these, the
    written tables, and the functions that it calls; a new definition of any of them may change the
    verdict. ``known``: True if these are complete. ``expressions``: as in `Touched`.
    ``of_session``: True if it only makes sense in its client's session.
    """

    treatment: Treatment
    reasons: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()
    rests_on: frozenset[str] = frozenset()
    known: bool = True
    of_session: bool = False
    expressions: frozenset[str] = frozenset()


# A reading: the trees that Spark's parser and analyzer made of a statement.
#
# It comes as the JSON that the plugin in the server writes (`haproc/spark/Trees.java`).


UNASKED: Final = "unasked"
"""The reason, in `Reading.unseen`, why there is no analyzed tree: nobody asked for it."""
RECURSION_MAX: Final = 6_000
"""The limit of nested calls while deep trees are read: Spark's own stack ends before. Chosen: so
many calls of the JSON reader take half of a thread's stack."""
PLAINER: Final = "write it in a plainer form: plain names, one table, one statement"


class UnreadableError(ValueError):
    """The server's answer is no reading, or it is nested too deeply."""


@dataclass(frozen=True, slots=True)
class TextRange:
    """A range of characters in the statement's text: from ``start`` to before ``end``."""

    start: int
    end: int


@dataclass(slots=True, eq=False)
class Node:
    """A node of a tree: an operator, an expression, or a part of one (a table, a clause, a name).

    ``cls``: its class, without the package if it is Spark's or Delta's. ``fields``: its fields by
    name, each a Node, a list, a dict, or a simple value; empty ones are left out. ``place``: its
    place in the text; None for parts of a view or function. It is not reliable for columns.
    ``type``: an expression's, as SQL; None if it is not resolved. ``deterministic``: as Spark says.
    ``id``: the number of a column or alias in its plan. ``value``: a literal, as SQL. ``more``:
    children that are in no field. ``attributes``: the plugin's other facts, such as the ``name``,
    in parts. ``is_tree``: True for an operator or an expression.
    """

    cls: str
    fields: dict[str, Any] = field(default_factory=dict)
    place: TextRange | None = None
    type: str | None = None
    deterministic: bool = True
    id: int | None = None
    value: str | None = None
    more: list[Node] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    is_tree: bool = False

    def __repr__(self) -> str:
        """Return a short text: a tree is long."""
        return f"<{self.cls} {self.place}>"

    def __getitem__(self, name: str) -> Any:
        """Return the value of the field ``name``; None if it is empty."""
        return self.fields.get(name)

    def node(self, name: str) -> Node | None:
        """Return the node in the field ``name``; None if the field has none, or several."""
        value = self.fields.get(name)
        return value if isinstance(value, Node) else None

    def nodes(self, name: str) -> list[Node]:
        """Return the nodes in the field ``name``, one or several; empty if it has none."""
        return list(nodes_in(self.fields.get(name)))

    @property
    def children(self) -> list[Node]:
        """The nodes that this one holds directly, in the order of its fields."""
        return [*nodes_in(self.fields), *self.more]

    def walk(self) -> Iterator[Node]:
        """Yield this node and all nodes below it, each once; a node comes before those below it."""
        return below([self])


@dataclass(frozen=True, slots=True)
class Reading:
    """What Spark has read of a text or a DataFrame.

    ``text``: the statement; empty for a DataFrame. ``parsed``: the parsed tree; None for a
    DataFrame. ``analyzed``: the analyzed tree; None if the analyzer was not asked, for the reason
    ``unseen``: it would run something (``UnresolvedExecuteImmediate``, ``CompoundBody``), or nobody
    asked (UNASKED). ``computed``: plans of the parts that the analyzer has computed itself, so that
    they are not in ``analyzed`` (`haproc/spark/Marks.java`), each item a separate expression: rows,
    the values of a PIVOT, the schema of from_json(). ``unread``: such parts, as parsed, that could
    not be analyzed separately. ``columns``: of a DataFrame, names and types as SQL. ``metadata``:
    the keys of metadata in these columns, at any depth.
    """

    text: str
    parsed: Node | None
    analyzed: Node | None
    unseen: str = ""
    computed: tuple[Node, ...] = ()
    unread: tuple[Node, ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    metadata: frozenset[str] = frozenset()


@contextmanager
def deep() -> Iterator[None]:
    """Allow Python calls to be nested as deeply as Spark's own."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, RECURSION_MAX))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


@contextmanager
def readable() -> Iterator[None]:
    """Allow deeply nested calls, and raise RefusedError for trees that cannot be read."""
    try:
        with deep():
            yield
    except (UnreadableError, RecursionError) as error:
        message = f"it cannot be judged: {error}"
        raise RefusedError(ErrorClass.NONDETERMINISTIC, message, PLAINER) from error


def read(data: str, text: str = "") -> Reading:
    """Return the reading that the server's answer has about ``text``; raises UnreadableError."""
    try:
        document = json.loads(data)
        numbered: list[Node] = []
        trees = ("parsed", "analyzed", "computed", "unread")
        parsed, analyzed, computed, unread = (_made(document.get(each), numbered) for each in trees)
        columns = tuple((str(name), str(kind)) for name, kind in document.get("columns", ()))
        metadata = frozenset(_metadata(json.loads(document.get("schema", "{}"))))
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise UnreadableError(f"the server's answer is no reading: {error!r}") from error
    unseen = str(document.get("unseen", ""))
    if (parsed is None and text) or (analyzed is None and not unseen):
        raise UnreadableError("the server's answer lacks a tree")
    many = tuple(computed or ()), tuple(unread or ())
    return Reading(text, parsed, analyzed, unseen, *many, columns, metadata)


def _metadata(schema: Any) -> Iterator[str]:
    """Yield the keys of metadata in a schema, which is given as Spark writes it in JSON."""
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            yield from each["metadata"] if isinstance(each.get("metadata"), dict) else ()
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)


def _made(value: Any, numbered: list[Node]) -> Any:
    """Return a value of the server's answer, with Nodes in place of its JSON objects.

    ``numbered``: the operators and expressions that have begun before it; it may refer to one.
    """
    if isinstance(value, list):
        return [_made(each, numbered) for each in value]
    if not isinstance(value, dict):
        return value
    if "same" in value:
        return numbered[value["same"]]
    if "c" not in value:
        return {key: _made(each, numbered) for key, each in value.items()}
    node = Node(value["c"])
    if value.get("n"):
        node.is_tree = True
        numbered.append(node)
    _fill(node, value, numbered)
    return node


def _fill(node: Node, value: dict[str, Any], numbered: list[Node]) -> None:
    node.fields = {key: _made(each, numbered) for key, each in value.get("f", {}).items()}
    node.more = [_made(each, numbered) for each in value.get("more", ())]
    if "at" in value:
        start, last = value["at"]
        node.place = TextRange(start, last + 1)
    node.type, node.value, node.id = value.get("t"), value.get("v"), value.get("i")
    node.deterministic = value.get("d", True)
    known = {"c", "n", "f", "more", "at", "t", "v", "i", "d"}
    node.attributes = {key: each for key, each in value.items() if key not in known}


def nodes_in(value: Any) -> Iterator[Node]:
    """Yield the nodes in a field's value; not those below them."""
    if isinstance(value, Node):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from nodes_in(each)


def below(roots: Iterable[Node]) -> Iterator[Node]:
    """Yield these nodes and all nodes below them, each once; a node comes before those below it."""
    seen, waiting = set[int](), list(roots)[::-1]
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            waiting.extend(reversed(node.children))
