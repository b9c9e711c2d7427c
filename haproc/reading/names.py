"""Names of tables, views and functions in Spark's trees, and the objects that a tree reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from haproc.classify.model import RefusedError
from haproc.classify.names import Context, completed, joined, parts_of, refuse_own
from haproc.failure import ErrorClass
from haproc.reading.tree import Node, Reading, below, nodes_in

SESSION_CATALOG: Final = "spark_catalog"
VARIABLE: Final = "the variable"
_BY_CATALOG: Final = frozenset(
    {"ResolvedTable", "ResolvedIdentifier", "ResolvedPersistentView", "DataSourceV2Relation"}
    | {"DataSourceV2ScanRelation", "StreamingRelationV2"}
)
_TABLES: Final = _BY_CATALOG - {"ResolvedIdentifier"} | {"CatalogTable", "TableIdentifier"}
_RELATIONS: Final = frozenset({"LogicalRelation", "HiveTableRelation"})
_CLIENTS_CODE: Final = """PythonUDF PythonUDAF PythonUDTF UnresolvedPolymorphicPythonUDTF
    PythonFuncExpression ScalaUDF ScalaAggregator ScalaUDAF SimpleTypedAggregateExpression"""
_OF_CLIENTS: Final = frozenset(_CLIENTS_CODE.split())
_TRAVELLING: Final = ("RelationTimeTravel", "TimeTravel")
_HOLDING: Final = {
    **dict.fromkeys(_RELATIONS, ("catalogTable", "tableMeta")),
    **dict.fromkeys(_TRAVELLING, ("relation",)),
    "SubqueryAlias": ("child",),
    "View": ("desc",),
}
"""For classes that have the name of a node which they hold: the fields with that node."""
UNRESOLVED: Final = {
    **dict.fromkeys(
        ("UnresolvedRelation", "UnresolvedTable", "UnresolvedTableOrView", "UnresolvedView"),
        "multipartIdentifier",
    ),
    "UnresolvedIdentifier": "nameParts",
}
"""Classes that name a table, a view or the like in a parsed tree, and the field with the name's
parts."""


def parts(node: Node) -> tuple[str, ...]:
    """Return the parts of the name that a node has, in a parsed or an analyzed tree; empty if none.

    In an analyzed tree it is the full name, or one part for an object of the session.
    """
    if node.cls in UNRESOLVED:
        return tuple(node[UNRESOLVED[node.cls]] or ())
    if node.cls in _BY_CATALOG:
        catalog, identifier = node.node("catalog"), node.node("identifier")
        if identifier is None:
            return ()
        head = (catalog.attributes.get("name", ""),) if catalog is not None else ()
        return (*head, *_given(identifier))
    if node.cls == "DeltaTableV2":
        return parts_of(str(node.attributes.get("name", ""))) or ()
    held = next((each for name in _HOLDING.get(node.cls, ()) if (each := node.node(name))), None)
    if node.cls in _HOLDING:
        return parts(held) if held is not None else ()
    given = _given(node)
    is_v1 = node.cls in ("CatalogTable", "TableIdentifier", "FunctionIdentifier")
    return (SESSION_CATALOG, *given) if is_v1 and len(given) == 2 else given


def _given(node: Node) -> tuple[str, ...]:
    name = node.attributes.get("name", ())
    return (name,) if isinstance(name, str) else tuple(name)


def expression_classes(reading: Reading) -> frozenset[str]:
    """Return the classes of a statement's expressions, in lower case, as `Touched` has them."""
    whole = reading.analyzed or reading.parsed
    nodes = below([*([whole] if whole is not None else []), *reading.computed])
    return frozenset(node.cls.lower() for node in nodes if node.type is not None)


def without(node: Node, fields: Iterable[str]) -> list[Node]:
    """Return the nodes that a node holds in fields other than ``fields``.

    Nodes that are also in ``fields`` are left out.
    """
    left_out = {id(each) for name in fields for each in nodes_in(node[name])}
    found = [
        each
        for name, value in node.fields.items()
        if name not in fields
        for each in nodes_in(value)
    ]
    return [each for each in (*found, *node.more) if id(each) not in left_out]


@dataclass(slots=True)
class Uses:
    """The objects that trees read: tables, functions, and objects of the client's session.

    ``known``: False if the trees may read further tables and functions.
    """

    reads: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    session: dict[str, None] = field(default_factory=dict)
    known: bool = True

    def take_analyzed(self, nodes: Iterable[Node]) -> None:
        """Add what analyzed trees read; RefusedError if they read what only HAProc may."""
        for node in below(nodes):
            self._take(node)

    def _take(self, node: Node) -> None:
        if node.cls == "CatalogTable" and _given(node)[-2:-1] == ("global_temp",):
            self._session("the temporary view", _given(node)[-2:])
        elif node.cls == "View" and node["isTempView"] and len(parts(node)) == 1:
            self._session("the temporary view", parts(node))
        elif node.cls == "ResolvedTempView":
            identifier = node.node("identifier")
            self._session("the temporary view", parts(identifier) if identifier else ())
        elif node.cls in _RELATIONS and not parts(node):
            self.known = False  # files
        elif node.cls in _TABLES:
            self._take_table(node)
        elif node.cls == "DeltaTableV2":
            self.add_table(parts(node))
        elif node.cls == "SQLFunction":
            name = node.node("name")
            self._function(parts(name) if name is not None else ())
        elif node.cls == "VariableReference":
            given = node.node("identifier")
            self._session(VARIABLE, _given(given)[-1:] if given is not None else ())
        elif node.cls in _OF_CLIENTS:
            called = str(node["name"] or node["udfName"] or "")
            self._session("the session's function", (called,) if called else ())
        elif node.cls == "LogicalRDD":
            self.session["rows that one cluster keeps for the session"] = None

    def _take_table(self, node: Node) -> None:
        name = parts(node)
        if len(name) > 2:
            self.add_table(name)
        elif node.cls in _BY_CATALOG or not name:
            self.known = False  # a table without a catalog: files, or another source
        elif node.cls == "TableIdentifier":
            self._session("the temporary view", name)

    def _function(self, name: tuple[str, ...]) -> None:
        if len(name) == 1:
            self._session("the session's function", name)
        elif name:
            self.functions.add(joined(name))

    def _session(self, what: str, name: Sequence[str]) -> None:
        self.session[f"{what} {joined(name)}".rstrip()] = None

    def add_table(self, name: Sequence[str]) -> None:
        """Add a table or view that is read; ``name``: its full name, or else it is not known."""
        if len(name) < 3:
            self.known = False
            return
        refuse_own(name, Context())
        self.reads.add(joined(name))

    def take_frames(self, roots: Iterable[Node], text: str) -> None:
        """Add the DataFrames that came with a text: they replace their names in the tree."""
        for node in below(roots):
            identifier, child, place = node.node("identifier"), node.node("child"), node.place
            if node.cls != "SubqueryAlias" or not (identifier and child and place):
                continue
            name = str(identifier["name"])
            if child.cls not in UNRESOLVED and text[place.start : place.end].strip("`").lower() == (
                name.lower()
            ):
                self._session("the DataFrame", (name,))

    def take_parsed(self, roots: Iterable[Node], context: Context) -> None:
        """Add the names in parsed trees.

        The tables inside views are not added, so ``known`` is False.
        """
        common = frozenset[str]()
        nodes = list(below(roots))
        for node in nodes:
            for each in node["cteRelations"] or ():
                common |= {str(each[0]).lower()}
        for node in nodes:
            name = parts(node) if node.cls in UNRESOLVED else ()
            if name and not (len(name) == 1 and name[0].lower() in common):
                full = completed(name, context)
                refuse_own(full, context)
                self.reads.add(joined(full))
        self.known = False


def computed(roots: Iterable[Node]) -> None:
    """Raise RefusedError if the name in an IDENTIFIER(…) needs more than constant texts."""
    for node in below(roots):
        if node.cls not in ("PlanWithUnresolvedIdentifier", "ExpressionWithUnresolvedIdentifier"):
            continue
        expression = node.node("identifierExpr")
        if expression is None or any(
            each.cls not in ("Literal", "Concat") for each in expression.walk()
        ):
            raise RefusedError(
                ErrorClass.TABLE_NAME,
                "a name in IDENTIFIER(…) has to be computed, so that it may be any, also a path",
                "write the name, or bind it as a parameter: IDENTIFIER(:name)",
            )
