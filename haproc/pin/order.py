"""A closer look, by the syntax tree, at what depends on order only in part.

A sum is exact if what it adds is certainly an integer or a decimal; a LIMIT takes the same rows
everywhere if every column of its SELECT is ordered by, for rows that tie are then equal. Where the
tree is not certain, nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlglot
from sqlglot import exp

PARSED_CHARS_MAX = 200_000
"""Longer statements are not parsed; parsing takes about 1 µs a character."""

_EXACT_TYPES = (*exp.DataType.INTEGER_TYPES, exp.DataType.Type.DECIMAL)
_COUNTS = (exp.Count, exp.Length, exp.ArraySize, exp.CountIf)
_PASSING = (exp.Paren, exp.Neg, exp.Distinct, exp.Max, exp.Min, exp.Abs, exp.Filter)


def parsed(sql: str) -> exp.Expr | None:
    """Return the statement's tree, or None if it has no certain one."""
    if len(sql) > PARSED_CHARS_MAX:
        return None
    try:
        trees = sqlglot.parse(sql, dialect="spark")
    except Exception:  # it has errors of its own, and fails in any way on what it does not know
        return None
    tree = trees[0] if len(trees) == 1 else None
    if tree is None or isinstance(tree, exp.Command) or tree.find(exp.Command):
        return None
    return tree


def sums_are_exact(tree: exp.Expr, calls: int) -> bool:
    """Whether all sums and averages add integers or decimals; ``calls`` is how many there are."""
    sums = list(tree.find_all(exp.Sum))
    averages = list(tree.find_all(exp.Avg))
    if len(sums) + len(averages) != calls:
        return False
    try:
        return all(_is_exact(node.this) for node in sums) and all(
            _is_exact(node.this, integers=False) for node in averages
        )
    except RecursionError:
        return False


def limits_are_total(tree: exp.Expr, words: int) -> bool:
    """Whether each LIMIT and OFFSET cuts a total order; ``words`` is how many there are."""
    found = [*tree.find_all(exp.Limit), *tree.find_all(exp.Offset)]
    try:
        return len(found) == words and all(_is_total(node.parent) for node in found)
    except RecursionError:
        return False


def _is_exact(node: exp.Expr | None, *, integers: bool = True) -> bool:
    """Whether an expression is certainly a decimal, or (if ``integers``) an integer.

    avg() of integers computes in doubles, so it asks for decimals alone.
    """

    def again(inner: exp.Expr | None) -> bool:
        return _is_exact(inner, integers=integers)

    if isinstance(node, exp.Literal):
        if node.is_string or not node.name.replace(".", "", 1).isdecimal():
            return False
        return integers or "." in node.name
    if isinstance(node, exp.Cast):
        wanted = node.to.this
        return wanted in _EXACT_TYPES if integers else wanted == exp.DataType.Type.DECIMAL
    if isinstance(node, exp.Null):
        return True
    if isinstance(node, _COUNTS):
        return integers
    if isinstance(node, exp.Distinct):
        return bool(node.expressions) and all(map(again, node.expressions))
    if isinstance(node, _PASSING):
        return again(node.this)
    if isinstance(node, exp.Add | exp.Sub | exp.Mul):
        return _both(node, again)
    if isinstance(node, exp.If):
        return again(node.args.get("true")) and _absent_or(node.args.get("false"), again)
    if isinstance(node, exp.Case):
        branches = [branch.args.get("true") for branch in node.args.get("ifs") or []]
        return all(map(again, branches)) and _absent_or(node.args.get("default"), again)
    if isinstance(node, exp.Coalesce):
        return again(node.this) and all(map(again, node.expressions))
    return False


def _both(node: exp.Expr, again: Callable[[exp.Expr | None], bool]) -> bool:
    return again(node.args.get("this")) and again(node.args.get("expression"))


def _absent_or(node: exp.Expr | None, again: Callable[[exp.Expr | None], bool]) -> bool:
    return node is None or again(node)


def _is_total(query: exp.Expr | None) -> bool:
    if not isinstance(query, exp.Select) or query.is_star:
        return False
    order = query.args.get("order")
    if not isinstance(order, exp.Order):
        return False
    keys = {_key(part.this) for part in order.expressions if isinstance(part, exp.Ordered)}
    return all(_is_ordered(item, keys) for item in query.expressions)


def _is_ordered(item: exp.Expr, keys: set[str]) -> bool:
    """Whether an item of the select list is among the keys, under its alias if it has one."""
    return (item.alias.lower() if isinstance(item, exp.Alias) else _key(item)) in keys


def _key(node: exp.Expr) -> str:
    return node.sql(dialect="spark", normalize=True, comments=False).replace("`", "").lower()
