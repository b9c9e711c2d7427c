"""The anatomy of a statement: its kind, its written and read tables, the query of its rows.

It comes from two trees: the parsed one, which is the text, and the analyzed one, in which every
name is resolved. The class of the root gives the kind (`haproc.reading.limits`); both trees must
agree on it and on the written table. Names are those that Spark resolved: a view is temporary if
Spark reports it so. This module does not decide whether a statement does the same on every cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from haproc.classify.bounds import refuse_variables
from haproc.classify.model import Kind, OperationClass, RefusedError
from haproc.classify.names import Context, completed, joined, refuse_global, target
from haproc.classify.rules import DEFAULT_CLASSES, QUERY_KINDS, SESSION_KINDS
from haproc.failure import ErrorClass
from haproc.reading import limits
from haproc.reading.limits import ANALYZED, EFFECTS, PARSED, QUERIES, REASONS, RUN_BY_ANALYZER
from haproc.reading.names import Uses, computed, parts, without
from haproc.reading.tree import Node, Reading

_TARGET_FIELDS: Final = """targetTable table name child target tableName tableIdent tableIdentifier
    identifier catalogTable tableDesc logicalRelation deltaTable oldName ident relation deltaLog
    tahoeFileIndex targetFileIndex fileIndex existingTableOpt newName"""
_TARGETS: Final = tuple(_TARGET_FIELDS.split())
"""The fields in which commands hold the object that they change, in both trees."""
_SOURCES: Final = ("query", "source", "sourceTable", "analyzedQuery")
_WITH_QUERY: Final = frozenset(
    {Kind.INSERT, Kind.INSERT_OVERWRITE, Kind.CREATE_TABLE_AS, Kind.MERGE}
)
_COMPUTING: Final = _WITH_QUERY | frozenset(
    {Kind.UPDATE, Kind.DELETE, Kind.CREATE_TABLE, Kind.ALTER_TABLE, Kind.CREATE_FUNCTION}
)
"""Kinds of statements in which every cluster computes something itself, besides the query of the
rows."""
UNBOUND: Final = frozenset(
    {Kind.CREATE_NAMESPACE, Kind.ALTER_NAMESPACE, Kind.DROP_NAMESPACE, Kind.CREATE_FUNCTION}
    | {Kind.DROP_FUNCTION}
)
"""Kinds of statements that may touch any table."""
BY_TEXT: Final = frozenset(
    {Kind.CREATE_TABLE, Kind.ALTER_TABLE, Kind.DROP_TABLE, Kind.DROP_VIEW, Kind.COMMENT}
    | {Kind.CREATE_NAMESPACE, Kind.ALTER_NAMESPACE, Kind.DROP_NAMESPACE, Kind.DROP_FUNCTION}
)
"""Kinds of statements whose text names their object, and that mostly compute nothing."""
MANY: Final = frozenset(
    {"AnalyzeTables", "CommentOnNamespace", "RefreshFunction", "RefreshResource"}
    | {"CreateTempViewUsing"}
)
"""Further statements that may touch any table, by the class of the root of the parsed tree."""
_TEXTS: Final = ("generationExpression", "condition", "expr", "queryText", "exprText")
_STRUCTURE: Final = frozenset(
    {"ColumnDefinition", "QualifiedColType", "DefaultValueExpression", "OptionList"}
    | {"AttributeReference", "DeltaMergeAction", "Assignment"}
)
"""Classes that Spark counts as expressions, although they only hold expressions or columns."""
_HINT: Final = "correct the SQL, or have a rule with kind: unknown allow it if Spark takes it"


@dataclass(frozen=True, slots=True)
class Anatomy:
    """The parts of a statement.

    ``writes``, ``reads``: full names, as `Classified` has them; views are named, and the tables in
    them, too. ``known``: True if these are complete. ``rests_on``: both, and the catalog's
    functions that the statement calls, also inside views. ``of_session``: the objects of the
    client's session that it uses, in words. ``source``: the analyzed query that rows can replace
    (`haproc.reading.cut` has its text). ``fixed``: the analyzed nodes outside the source, which
    every cluster computes itself; ``beside``: ``fixed`` without the casts and the like that fit a
    source's rows to the table; ``parsed_fixed``: the same parts in the parsed tree, because the
    analyzer turns some into literals; ``texts``: expressions among them that both trees hold only
    as text (of CHECKs, generated columns, functions). ``refusal``: the error for a statement of
    unknown kind, unless a rule allows it.
    """

    kind: Kind
    operation_class: OperationClass | None
    writes: frozenset[str] = frozenset()
    reads: frozenset[str] = frozenset()
    known: bool = False
    rests_on: frozenset[str] = frozenset()
    of_session: tuple[str, ...] = ()
    source: Node | None = None
    fixed: tuple[Node, ...] = ()
    beside: tuple[Node, ...] = ()
    parsed_fixed: tuple[Node, ...] = ()
    texts: tuple[str, ...] = ()
    refusal: RefusedError | None = None


def anatomy(reading: Reading, context: Context) -> Anatomy:
    """Return the anatomy of the statement that Spark has parsed and analyzed; raises RefusedError.

    ``context``: the catalog and schema that complete the session's names.
    """
    assert reading.parsed is not None, "a DataFrame has no kind"
    refuse_variables(reading.text)
    parsed = proper(reading.parsed)
    kind = kind_of(parsed)
    check_hidden(reading)
    computed([reading.parsed])
    assert reading.analyzed is not None, "it was asked for"
    analyzed = reading.analyzed
    limits.check_session_name(reading.text, parsed, analyzed)
    refusal = refusal_of(kind, parsed, reading.parsed, analyzed)
    if refusal is not None:
        limits.check_options(reading.parsed, Kind.UNKNOWN)  # a rule may allow it
        return _unknown(reading.parsed, analyzed, refusal)
    if analyzed.cls == "DropTempViewCommand":
        return _dropped(kind, analyzed)
    if kind not in QUERY_KINDS and analyzed.cls not in ANALYZED[kind]:
        raise _differs(f"{parsed.cls} was analyzed as {analyzed.cls}")
    if kind not in QUERY_KINDS | SESSION_KINDS:
        limits.check_options(reading.parsed, kind)
        limits.check_partition(reading.text, parsed)
    elif kind in (Kind.SET, Kind.RESET):
        limits.check_setting(parsed)
    return _given(kind, parsed, reading.parsed, analyzed, reading.text, context)


def parsed_anatomy(reading: Reading, context: Context) -> Anatomy | None:
    """Return the anatomy of DDL from its parsed tree alone; None if the analyzer is needed.

    The session must have no temporary objects: so each name means an object of the catalog. If DDL
    reads other objects (above all views), the analyzer is needed. Raises RefusedError.
    """
    assert reading.parsed is not None, "a DataFrame has no kind"
    refuse_variables(reading.text)
    parsed = proper(reading.parsed)
    kind = kind_of(parsed)
    if kind not in BY_TEXT:
        return None
    check_hidden(reading)
    computed([parsed])
    refusal = refusal_of(kind, parsed, parsed, parsed)
    limits.check_options(parsed, kind)
    limits.check_partition(reading.text, parsed)
    held, fields = named_by(parsed)
    uses, written = Uses(), frozenset[str]()
    uses.take_parsed(without(parsed, fields), context)
    if refusal is not None or uses.reads or limits.is_placed(parsed):
        return None
    uses.known = kind not in UNBOUND and parsed.cls not in MANY
    if uses.known:
        if held is None:
            return None
        written = written_names(parsed, tuple(completed(parts(held), context)), context)
    if kind not in _COMPUTING:
        return _made(kind, uses, written, None)
    return replace(_computing(kind, uses, written, parsed, parsed, fields), fixed=())


def proper(root: Node) -> Node:
    """Return the statement itself, from a tree that may have a WITH clause around it."""
    node = root
    while node.cls == "UnresolvedWith" and (child := node.node("child")) is not None:
        node = child
    return node


def kind_of(node: Node) -> Kind:
    """Return a statement's kind; ``node``: the root of its parsed tree, without WITH clause."""
    if node.cls in ("InsertIntoStatement", "UnresolvedInsert"):
        replaces = node["overwrite"] or node["replaceCriteriaOpt"]
        return Kind.INSERT_OVERWRITE if replaces else Kind.INSERT
    if node.cls == "RenameTable" and node["isView"]:
        return Kind.ALTER_VIEW
    if node.cls in PARSED:
        return PARSED[node.cls]
    if node.cls not in QUERIES:
        return Kind.UNKNOWN
    while node.cls in ("GlobalLimit", "LocalLimit", "Sort", "Offset", "UnresolvedWith"):
        if (child := node.node("child")) is None:
            break
        node = child
    return Kind.VALUES if node.cls in ("LocalRelation", "UnresolvedInlineTable") else Kind.SELECT


def check_hidden(reading: Reading) -> None:
    """Raise RefusedError if a statement runs other statements that it hides."""
    assert reading.parsed is not None
    hiding = RUN_BY_ANALYZER & {reading.unseen, *(node.cls for node in reading.parsed.walk())}
    if hiding:
        what = "BEGIN … END" if "CompoundBody" in hiding else "EXECUTE IMMEDIATE"
        raise RefusedError(
            ErrorClass.HIDDEN_STATEMENT,
            f"{what} hides the statements that it runs",
            "send each statement by itself",
        )


def refusal_of(kind: Kind, parsed: Node, whole: Node, analyzed: Node) -> RefusedError | None:
    """Return the error for a statement of unknown kind, or with a forbidden part; None for others.

    ``whole``: the parsed tree with a WITH clause; ``parsed``: without it. Raises RefusedError if a
    statement consists of several INSERTs.
    """
    if kind is Kind.UNKNOWN:
        return _unclassified(_reason(parsed.cls))
    if kind is Kind.EXPLAIN and (inner := parsed.node("logicalPlan")) is not None:
        return refusal_of(kind_of(proper(inner)), proper(inner), inner, inner)
    for root, own in ((whole, parsed), (analyzed, analyzed)):
        refusal = _nested(root, own)
        if refusal is not None:
            return refusal
    if reason := limits.foreign_code(parsed):
        return _unclassified(reason)
    if kind in (Kind.SELECT, Kind.VALUES) and analyzed.cls not in QUERIES:
        return _unclassified(f"a query was analyzed as {analyzed.cls}, which HAProc does not know")
    return None


def _nested(root: Node, own: Node) -> RefusedError | None:
    """Return the error for a forbidden part of a tree; None if it has none.

    ``own``: the node of the statement itself, which may be anything. Raises RefusedError if a
    statement consists of several INSERTs.
    """
    nodes = list(root.walk())
    found = [each for each in nodes if each is not own and _has_effect(each.cls)]
    if own.cls in ("ExplainCommand", "DescribeQueryCommand"):
        found = []  # it is not run
    if own.cls == "CreateDeltaTableCommand":
        found = [each for each in found if each.cls != "CloneTableCommand"]
    if own.cls == "Union" and any(each.cls in _INSERTS for each in found):
        raise RefusedError(
            ErrorClass.MULTIPLE_STATEMENTS,
            "the statement holds several INSERTs, and Spark commits each by itself: one that was "
            "interrupted between them would look like a whole one",
            "send them one by one, each as a request of its own: INSERT INTO … SELECT … FROM …",
        )
    if found:
        return _unclassified(_reason(found[0].cls, "stands inside another statement"))
    called = limits.hiding_call(nodes)
    return _unclassified(f"{called}() runs arbitrary code") if called else None


def _has_effect(name: str) -> bool:
    return name in EFFECTS or name.endswith("Command")


_INSERTS: Final = ANALYZED[Kind.INSERT] | ANALYZED[Kind.INSERT_OVERWRITE]


def _reason(name: str, otherwise: str = "is no kind of statement that HAProc knows") -> str:
    return REASONS[name][0] if name in REASONS else f"{name} {otherwise}"


def _unclassified(message: str) -> RefusedError:
    hint = next((hint for reason, hint in REASONS.values() if reason == message and hint), _HINT)
    return RefusedError(ErrorClass.UNCLASSIFIED, message, hint)


def _differs(what: str) -> RefusedError:
    return RefusedError(
        ErrorClass.ANALYSIS_DIFFERS,
        f"Spark does not make of the statement what its text says: {what}",
        "write the full name of the table, or tell us about this statement",
    )


def _unknown(parsed: Node, analyzed: Node, refusal: RefusedError) -> Anatomy:
    uses = Uses(known=False)
    uses.take_analyzed([analyzed])
    return Anatomy(
        Kind.UNKNOWN,
        None,
        reads=frozenset(uses.reads),
        rests_on=frozenset(uses.reads | uses.functions),
        of_session=tuple(uses.session),
        fixed=(analyzed,),
        parsed_fixed=(parsed,),
        refusal=refusal,
    )


def _dropped(kind: Kind, analyzed: Node) -> Anatomy:
    """Return the anatomy of a DROP whose object is, as Spark found, a temporary view."""
    identifier = analyzed.node("ident")
    name = parts(identifier) if identifier is not None else ()
    refuse_global(name)
    if kind not in (Kind.DROP_VIEW, Kind.DROP_TABLE):
        raise _differs("it drops a temporary view")
    uses = Uses(session={f"the temporary view {joined(name)}": None})
    return _made(Kind.TEMPORARY_VIEW, uses, frozenset(), None)


def _given(
    kind: Kind, parsed: Node, whole: Node, analyzed: Node, text: str, context: Context
) -> Anatomy:
    uses = Uses()
    writes = frozenset[str]()
    own = None
    if kind in QUERY_KINDS or kind is Kind.CACHE:
        rest = [analyzed]
    else:
        kind, writes, own = _written(kind, parsed, analyzed, context)
        rest = without(analyzed, own)
    if kind is Kind.EXPLAIN or parsed.cls == "DescribeQueryCommand":
        uses.take_parsed([parsed], context)
    elif parsed.cls == "CloneTableStatement" and (cloned := parsed.node("source")) is not None:
        uses.add_table(completed(parts(cloned), context))
    else:
        uses.take_analyzed(rest)
    if kind is Kind.CACHE and parsed.cls == "CacheTable":
        refuse_global(tuple(parsed["multipartIdentifier"] or ()))
    elif parsed.cls == "UncacheTable" and (table := parsed.node("table")) is not None:
        refuse_global(parts(table))
        uses.reads.clear()
    uses.take_frames([whole], text)
    is_general = kind in (Kind.SHOW, Kind.DESCRIBE) and not (uses.reads or uses.session)
    if is_general or kind in UNBOUND or parsed.cls in MANY:
        uses.known = False
    if kind in _COMPUTING and own is not None:
        return _computing(kind, uses, writes, parsed, analyzed, own)
    return _made(kind, uses, writes, None)


def named_by(node: Node) -> tuple[Node | None, tuple[str, ...]]:
    """Return the node that names what a command changes, and the fields that hold this node."""
    fields = tuple(name for name in _TARGETS if node.node(name) is not None)
    if node.cls == "RestoreTableCommand":
        fields = ("sourceTable",)
    named = (node.node(name) for name in fields)
    found = next((each for each in named if each is not None and _names(each)), None)
    return found, fields


def _names(node: Node) -> bool:
    return bool(parts(node)) or node.cls in ("PlanWithUnresolvedIdentifier", "ResolvedTempView")


def _written(
    kind: Kind, parsed: Node, analyzed: Node, context: Context
) -> tuple[Kind, frozenset[str], tuple[str, ...]]:
    """Return the statement's kind, the names that it writes, and the fields that hold them.

    By the analyzed tree: what looked like a table may be a temporary view. Raises RefusedError.
    """
    held, _ = named_by(parsed)
    resolved, fields = named_by(analyzed)
    if kind in UNBOUND or kind in SESSION_KINDS or parsed.cls in MANY:
        if kind is Kind.TEMPORARY_VIEW:
            check_of_session(analyzed)
        return kind, frozenset(), fields
    full = parts(resolved) if resolved is not None else ()
    if analyzed.cls in ("LocalRelation", "NoopCommand") and held is not None:  # nothing to do
        full = tuple(completed(parts(held), context))
    if len(full) == 1 and analyzed.cls == "ConvertToDeltaCommand":
        full = tuple(completed(full, context))
    if len(full) == 1 and kind in (Kind.ALTER_VIEW, Kind.ALTER_TABLE):
        return Kind.TEMPORARY_VIEW, frozenset(), ()
    if held is not None and parts(held):
        names = target(parts(held), context)
        if names != joined(full):
            raise _differs(f"{names} was analyzed as {joined(full) or 'no table'}")
    return kind, written_names(parsed, full, context), fields


def written_names(parsed: Node, full: tuple[str, ...], context: Context) -> frozenset[str]:
    """Return the names that a statement writes: its target, and the new name of a RENAME.

    ``full``: the full name of the target. Raises RefusedError.
    """
    written = {target(full, context)}
    if parsed.cls == "RenameTable":
        new = tuple(parsed["newName"] or ())
        # An unqualified new name stays in the old one's schema, not in the session's.
        written.add(target((*full[: max(0, 3 - len(new))], *new), context))
    return frozenset(written)


def check_of_session(definition: Node) -> None:
    """Raise RefusedError if a temporary view's definition makes a view for other sessions, too."""
    view_type = definition.node("viewType")
    if definition.cls == "CreateViewCommand" and view_type is not None:
        if view_type.cls == "GlobalTempView":
            name = definition.node("name")
            refuse_global(("global_temp", *(parts(name) if name is not None else ())[-1:]))
        if view_type.cls != "LocalTempView":
            raise _differs("a temporary view was analyzed as another")


def _computing(
    kind: Kind,
    uses: Uses,
    writes: frozenset[str],
    parsed: Node,
    analyzed: Node,
    own: Iterable[str],
) -> Anatomy:
    """Return the anatomy of a statement that computes values: its source, and its fixed parts."""
    source = None
    wrapping: list[Node] = []
    if kind in _WITH_QUERY and parsed.cls != "CloneTableStatement":
        source = next((each for name in _SOURCES if (each := analyzed.node(name))), None)
    if source is not None and kind in (Kind.INSERT, Kind.INSERT_OVERWRITE):
        source, wrapping = _unwrapped(source, analyzed)
    _, fields = named_by(parsed)
    texts = [
        str(text)
        for node in parsed.walk()
        for name in _TEXTS
        if isinstance(text := node[name], str) and node.cls != "DefaultValueExpression"
    ]
    made = _made(kind, uses, writes, source)
    sources = _SOURCES if source is not None else ()
    beside = tuple(expressions(without(analyzed, (*own, *sources))))
    return replace(
        made,
        fixed=(*beside, *expressions(wrapping)),
        beside=beside,
        parsed_fixed=tuple(without(parsed, (*fields, *sources))),
        texts=tuple(texts),
    )


def expressions(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield the outermost expressions in these nodes; not those that only name a column."""
    waiting, seen = list(nodes)[::-1], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.type is not None and node.cls not in _STRUCTURE:
            yield node
        else:
            waiting.extend(reversed(node.children))


def _unwrapped(query: Node, root: Node) -> tuple[Node, list[Node]]:
    """Return the query in an INSERT's text, and the expressions that the analyzer put around it.

    These fit the rows to the table: casts, defaults of columns, static partitions. Their place is
    that of the INSERT, which ends before the query.
    """
    around: list[Node] = []
    while query.cls == "Project" and query.place == root.place and root.place is not None:
        child = query.node("child")
        if child is None:
            break
        around += query.nodes("projectList")
        query = child
    return query, around


def _made(kind: Kind, uses: Uses, writes: frozenset[str], source: Node | None) -> Anatomy:
    return Anatomy(
        kind,
        DEFAULT_CLASSES[kind],
        writes=writes,
        reads=frozenset(uses.reads),
        known=uses.known,
        rests_on=frozenset(uses.reads | uses.functions | writes),
        of_session=tuple(uses.session),
        source=source,
    )
