"""The check that an order of rows is total: rows that tie in it are equal in every column."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from haproc.reading.known import COUNTING, RANKING, is_firm
from haproc.reading.tree import Node

_PASSING: Final = frozenset(
    {"Distinct", "Filter", "PipeOperator", "ResolvedHint", "Sort", "SubqueryAlias", "View"}
)
"""Operators whose rows are rows of their input, unchanged."""
_CUTTING: Final = frozenset({"GlobalLimit", "LocalLimit", "Offset", "Project", "SubqueryAlias"})
"""Operators that keep the order of the rows of their input."""
_LEAVES: Final = frozenset(
    {"CTERelationRef", "DataSourceV2Relation", "HiveTableRelation", "LocalRelation"}
    | {"LogicalRelation", "Range", "ResolvedInlineTable"}
)


def attribute(expression: Node) -> int | None:
    """Return the number of the column that an expression is; None if it is anything else."""
    return expression.id if expression.cls == "AttributeReference" else None


def at(node: Node | None, *path: str) -> Node | None:
    """Return the node that is reached through these fields; None if one of them is empty."""
    for name in path:
        node = None if node is None else node.node(name)
    return node


def child_of(node: Node) -> Node | None:
    """Return the one plan below an operator; None if there is none."""
    return node.node("plan" if node.cls == "WithCTE" else "child")


def items_of(node: Node) -> list[Node]:
    """Return the expressions that a Project or an Aggregate puts out as columns."""
    return node.nodes("projectList" if node.cls == "Project" else "aggregateExpressions")


def columns_in(expression: Node) -> frozenset[int]:
    """Return the numbers of the columns that an expression uses, also in its subqueries."""
    return frozenset(
        each.id
        for each in expression.walk()
        if each.cls in ("AttributeReference", "OuterReference") and each.id is not None
    )


def firm_keys(expressions: Iterable[Node]) -> frozenset[int]:
    """Return the numbers of those columns, among sort keys and the like, that compare exactly.

    In such a column equal values are the same value. That is not so for floats: 0.0 and -0.0 are
    equal, but two values.
    """
    found = set[int]()
    for each in expressions:
        key = each.node("child") if each.cls == "SortOrder" else each
        if key is not None and is_firm(key.type) and (column := attribute(key)) is not None:
            found.add(column)
    return frozenset(found)


def settles(keys: frozenset[int], node: Node | None) -> bool:
    """True if any two rows of an operator that have equal keys are equal in all columns.

    ``keys``: the numbers of columns in which equal values are the same value (see `firm_keys`).
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
    """Return the number of the input column that an item puts out as one of the keys.

    None if the item is no key, or computes something.
    """
    if item.id not in keys:
        return None
    inner = item.node("child") if item.cls == "Alias" else item
    return None if inner is None else attribute(inner)


def limit_is_total(node: Node) -> bool:
    """True if the rows below a LIMIT or OFFSET are in a total order."""
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
    """Return the function of a window expression, also if it is an aggregate in a wrapping."""
    function = window.node("windowFunction")
    if function is not None and function.cls == "AggregateExpression":
        return function.node("aggregateFunction")
    return function


def is_settled(window: Node, operator: Node) -> bool:
    """True if it does not matter to a window expression how rows that tie are ordered.

    ``operator``: the operator that computes it.
    """
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
