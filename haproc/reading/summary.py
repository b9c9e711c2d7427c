"""What a reading shows in short: the kind, the written and touched tables, and lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from haproc.classify.model import Kind, Recognised, RefusedError, Touched
from haproc.classify.names import Context, completed, joined, may_be_temporary, parts_of, target
from haproc.classify.rules import QUERY_KINDS, SESSION_KINDS
from haproc.classify.tokens import decoded, tokenize
from haproc.failure import ErrorClass
from haproc.reading import limits
from haproc.reading.anatomy import (
    MANY,
    UNBOUND,
    anatomy,
    check_hidden,
    check_of_session,
    kind_of,
    named_by,
    proper,
    refusal_of,
    written_names,
)
from haproc.reading.definitions import function_of
from haproc.reading.names import computed, expression_classes, parts
from haproc.reading.tree import Node, Reading

# A statement's kind and written tables, by its parsed text: see `Recognised`.
#
# No catalog is asked: names are completed from the session's catalog and schema, and may mean a
# temporary view. Later the analyzer gives the reads, and confirms the writes.


_NEW: Final = frozenset({Kind.CREATE_TABLE, Kind.CREATE_TABLE_AS, Kind.CREATE_VIEW})
"""Kinds of statements that create the object that they name, so it cannot be a temporary view."""
_NOTHING: Final = UNBOUND | QUERY_KINDS | SESSION_KINDS
"""Kinds of statements that write no table, or of which any table may be written."""


def recognise(reading: Reading, context: Context) -> Recognised:
    """Return the kind and the written tables of a statement, by its parsed tree.

    Raises RefusedError.
    """
    assert reading.parsed is not None, "a DataFrame has no kind"
    root = proper(reading.parsed)
    kind = kind_of(root)
    check_hidden(reading)
    limits.check_session_name(reading.text, root, root)
    if root.cls == "PlanWithUnresolvedIdentifier":
        raise RefusedError(
            ErrorClass.TABLE_NAME,
            "what the statement is about is named by IDENTIFIER(…), and nothing else is read of it",
            "write the name itself",
        )
    refusal = refusal_of(kind, root, reading.parsed, root)
    if refusal is not None:
        limits.check_options(reading.parsed, Kind.UNKNOWN)  # a rule may allow it
        return Recognised(Kind.UNKNOWN, tables_known=False, refusal=refusal)
    if kind in (Kind.SET, Kind.RESET):
        limits.check_setting(root)
    elif kind is Kind.TEMPORARY_VIEW:
        check_of_session(root)
    if kind in _NOTHING or root.cls in MANY:
        return Recognised(kind, tables_known=kind in QUERY_KINDS | SESSION_KINDS)
    name = _name(root)
    writes = written_names(root, tuple(completed(name, context)) if name else (), context)
    is_bare = may_be_temporary(name) and kind not in _NEW
    bare = frozenset({target(name, context)}) if is_bare else frozenset[str]()
    return Recognised(kind, writes=writes, bare=bare)


def _name(root: Node) -> tuple[str, ...]:
    """Return the parts of the name that a statement writes; empty if it cannot be read."""
    held, _ = named_by(root)
    path = next((each["path"] for each in root.walk() if each["path"]), None)
    if held is None and isinstance(path, str):
        return path, "/"  # OPTIMIZE '/x'
    if held is None or held.cls != "PlanWithUnresolvedIdentifier":
        return parts(held) if held is not None else ()
    computed([held])  # of constant texts alone
    expression = held.node("identifierExpr")
    texts = [] if expression is None else [each for each in expression.walk() if each.value]
    return parts_of("".join(decoded(str(each.value)) for each in texts)) or ()


# The tables that a statement touches, for the rules of operators; also those inside views.


_FURTHER: Final = frozenset({"LOGICAL", "FORMATTED", "EXTENDED", "CODEGEN", "COST", "QUERY"})
_SHOWING: Final = frozenset({"ShowTablesExtended", "ShowTablePartition"})
_PLACES: Final = frozenset({"UnresolvedNamespace", "CurrentNamespace"})
DESCRIBING: Final = "DescribeQueryCommand"
_LISTING: Final = frozenset(
    {
        "ShowTables",
        "ShowViews",
        "ShowNamespacesCommand",
        "ShowFunctions",
        "ShowCatalogsCommand",
        "ShowCurrentNamespaceCommand",
    }
)
"""Statements that list names, and read nothing else of the objects."""


@dataclass(frozen=True, slots=True)
class Touches:
    """The tables that a statement touches.

    ``rests_on``: the names that decide which tables these are. ``function``: the function that it
    defines, whose body must be read, too (`haproc.reading.definitions`); None: none. ``inner``: the
    statement that must be read instead, because the analyzed tree has only its names; empty: none.
    ``refusal``: the error for the statement, unless a rule allows it.
    """

    touched: Touched
    rests_on: frozenset[str] = frozenset()
    function: Node | None = None
    inner: str = ""
    refusal: RefusedError | None = None

    def __or__(self, other: Touches) -> Touches:
        """Return what either of two statements touches."""
        return Touches(self.touched | other.touched, self.rests_on | other.rests_on)


NOTHING: Final = Touches(Touched())


def touches(reading: Reading, context: Context) -> Touches:
    """Return what a statement touches; raises RefusedError."""
    if reading.parsed is not None and reading.parsed.cls == DESCRIBING:
        return Touches(Touched(), inner=explained(reading.text))
    if reading.parsed is not None and reading.parsed.cls in _LISTING:
        return NOTHING
    whole = anatomy(reading, context)
    tables, schemas = _shown(reading.parsed, context)
    tables |= whole.reads | whole.writes
    known = whole.known and whole.refusal is None
    touched = Touched(tables, known, schemas, expression_classes(reading))
    return Touches(touched, whole.rests_on, function_of(reading), refusal=whole.refusal)


def _shown(parsed: Node | None, context: Context) -> tuple[frozenset[str], frozenset[str]]:
    """Return the tables that SHOW TABLE EXTENDED describes, or else the schema of unknown ones."""
    nothing = frozenset[str]()
    if parsed is None or parsed.cls not in _SHOWING:
        return nothing, nothing
    if (table := parsed.node("table")) is not None:
        return frozenset({joined(completed(parts(table), context))}), nothing
    place = parsed.node("namespace")
    if place is None or place.cls not in _PLACES:
        return nothing, frozenset({""})
    given = place["multipartIdentifier"] or (context.schema,)
    *schema, _ = completed((*given, ""), context)
    names = [each.strip() for each in str(parsed["pattern"] or "*").split("|")]
    if all(each.isidentifier() for each in names):
        return frozenset(joined((*schema, each)) for each in names), nothing
    return nothing, frozenset({joined(schema)})


def explained(text: str) -> str:
    """Return the statement that follows EXPLAIN, or DESCRIBE [QUERY]."""
    _, *tokens = tokenize(text)
    if len(tokens) > 1 and tokens[0].upper in _FURTHER:
        del tokens[0]
    return text[tokens[0].start :] if tokens else ""


# A reading as lines for people: Spark's class of each part of a statement, and its place.


LINES_MAX: Final = 200
SHOWN_MAX: Final = 60
"""The most characters of the statement's text that a line shows. Chosen."""
_TABLES: Final = frozenset({"LogicalRelation", "ResolvedTable", "DataSourceV2Relation"})
"""Classes that are shown without what they hold, such as their columns."""


def outline(reading: Reading) -> list[str]:
    """Return a line for each operator and expression, indented by two spaces for each level.

    A line has the class, a name, a literal's value, the type, and the place with its text. If there
    are more than LINES_MAX lines, the last one says how many were left out.
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
        yield "  " * depth + " ".join(_words(node, text))
        depth += 1
    if node.cls in _TABLES:
        return
    for child in node.children:
        yield from _lines(child, text, depth, seen)


def _words(node: Node, text: str) -> Iterator[str]:
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
