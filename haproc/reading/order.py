"""The check for a total order: rows that tie in it are equal, so their order does not matter."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from haproc.reading.known import COUNTING, RANKING, is_firm
from haproc.reading.tree import Node

_PASSING: Final = frozenset(
    {"Distinct", "Filter", "PipeOperator", "ResolvedHint", "Sort", "SubqueryAlias", "View"}
)
"""Operators that give rows of their input."""
_CUTTING: Final = frozenset({"GlobalLimit", "LocalLimit", "Offset", "Project", "SubqueryAlias"})
"""Operators that keep the order of their input."""
_LEAVES: Final = frozenset(
    {"CTERelationRef", "DataSourceV2Relation", "HiveTableRelation", "LocalRelation"}
    | {"LogicalRelation", "Range", "ResolvedInlineTable"}
)


def attribute(expression: Node) -> int | None:
    """Return the number of the column that an expression is; None for any other expression."""
    return expression.id if expression.cls == "AttributeReference" else None


def at(node: Node | None, *path: str) -> Node | None:
    """Return the node at a path of fields; None if one of them is empty."""
    for name in path:
        node = None if node is None else node.node(name)
    return node


def child_of(node: Node) -> Node | None:
    """Return the one plan that an operator has below itself."""
    return node.node("plan" if node.cls == "WithCTE" else "child")


def items_of(node: Node) -> list[Node]:
    """Return an operator's output: expressions of a Project or an Aggregate."""
    return node.nodes("projectList" if node.cls == "Project" else "aggregateExpressions")


def columns_in(expression: Node) -> frozenset[int]:
    """Return the columns that an expression rests on, also in its subqueries."""
    return frozenset(
        each.id
        for each in expression.walk()
        if each.cls in ("AttributeReference", "OuterReference") and each.id is not None
    )


def firm_keys(expressions: Iterable[Node]) -> frozenset[int]:
    """Return the columns, among sort keys and the like, in which equal values are the same value.

    The values 0.0 and -0.0 are equal, and are two values.
    """
    found = set[int]()
    for each in expressions:
        key = each.node("child") if each.cls == "SortOrder" else each
        if key is not None and is_firm(key.type) and (column := attribute(key)) is not None:
            found.add(column)
    return frozenset(found)


def settles(keys: frozenset[int], node: Node | None) -> bool:
    """True if two rows of an operator are equal whenever their keys are equal.

    ``keys``: columns in which equal values are the same value (see `firm_keys`).
    """
    while node is not None and (node.cls in _PASSING or node.cls == "WithCTE"):
        node = child_of(node)
    if node is None:
        return False
    if node.cls == "Project":
        items = items_of(node)
        below = frozenset(source for each in items if (source := _source(each, keys)) is not None)
        if all(each.id in keys or columns_in(each) <= below for each in items):
            return True
        return settles(below, node.node("child"))
    if node.cls == "Aggregate":
        items, groups = items_of(node), node.nodes("groupingExpressions")
        shown = {_source(each, keys) for each in items}
        wanted = [attribute(each) for each in groups]
        if None not in wanted and all(each in shown for each in wanted):
            return True  # a group is one row
        return all(each.id in keys for each in items)
    if node.cls in _LEAVES:
        columns = [each.id for each in node.nodes("output")]
        return bool(columns) and all(each in keys for each in columns)
    if node.cls == "Join":
        left, right = settles(keys, node.node("left")), node.node("right")
        return left and (node["joinType"] in ("LeftSemi", "LeftAnti") or settles(keys, right))
    return node.cls == "OneRowRelation"


def _source(item: Node, keys: frozenset[int]) -> int | None:
    """Return the input column that an item passes on under the name of a key, if it does."""
    if item.id not in keys:
        return None
    inner = item.node("child") if item.cls == "Alias" else item
    return None if inner is None else attribute(inner)


def limit_is_total(node: Node) -> bool:
    """True if a limit or an offset cuts a total order."""
    below = child_of(node)
    while below is not None and below.cls in _CUTTING:
        below = child_of(below)
    if below is None or below.cls == "OneRowRelation":
        return below is not None
    if below.cls == "Aggregate" and not below.nodes("groupingExpressions"):
        return True  # one row
    if below.cls != "Sort" or below["global"] is not True:
        return False
    return settles(firm_keys(below.nodes("order")), below.node("child"))


def function_of(window: Node) -> Node | None:
    """Return the function of a window expression, without the wrapping of an aggregate."""
    function = window.node("windowFunction")
    if function is not None and function.cls == "AggregateExpression":
        return function.node("aggregateFunction")
    return function


def is_settled(window: Node, operator: Node) -> bool:
    """True if the order of ties does not matter to an operator's window expression."""
    function, frame = function_of(window), at(window, "windowSpec", "frameSpecification")
    if function is None or frame is None:
        return False
    if function.cls in RANKING:
        return True
    lower, upper = frame.node("lower"), frame.node("upper")
    whole = lower is not None and lower.cls == "UnboundedPreceding"
    whole = whole and upper is not None and upper.cls == "UnboundedFollowing"
    if function.cls in COUNTING and (whole or frame["frameType"] == "RangeFrame"):
        return True
    keys = firm_keys([*operator.nodes("partitionSpec"), *operator.nodes("orderSpec")])
    return settles(keys, operator.node("child"))
