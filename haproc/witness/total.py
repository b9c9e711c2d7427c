"""Whether an order is total: rows that tie in it are equal, so it does not matter how they fall."""

from __future__ import annotations

import re
from collections.abc import Mapping

from haproc.witness.columns import Columns, Type, table_read
from haproc.witness.completed import never_text
from haproc.witness.exact import Numbers, may_be_loose, sums_reason
from haproc.witness.lists import closing, leading, split
from haproc.witness.plan import Node
from haproc.witness.results import CONDITIONS, KEEPING, TEXTS

_PASSING = frozenset({"Filter", "Sort", "SubqueryAlias", "ResolvedHint", "Distinct", "WithCTE"})
_PASSING |= frozenset({"PipeOperator"})
_RANKS = frozenset({"rank", "dense_rank", "percent_rank", "cume_dist"})
_PLAIN = TEXTS | CONDITIONS | KEEPING | {"concat"}
_WHOLE = "unboundedpreceding$(), unboundedfollowing$()"
_AGGREGATES = frozenset(
    {"sum", "try_sum", "avg", "try_avg", "mean", "count", "max", "min", "count_if", "bool_and"}
    | {"bool_or", "every", "some", "any", "bit_and", "bit_or", "bit_xor"}
)


def is_plain(text: str, types: Mapping[str, Type]) -> bool:
    """Whether equal values of an expression certainly are the same value."""
    if may_be_loose(text, types):
        return False
    call = re.match(r"(\w+)\(", text)
    if call is None or closing(text, call.end() - 1) != len(text) - 1:
        return never_text(text, types)
    return call[1].lower() in _PLAIN or never_text(text, types)


def settles(keys: frozenset[str], node: Node, columns: Columns) -> bool:
    """Whether rows of the node's that have equal keys are equal."""
    firm = frozenset(key for key in keys if columns.types.get(key, Type.LOOSE) is not Type.LOOSE)
    return _settles(firm, node, columns)


def _settles(keys: frozenset[str], node: Node, columns: Columns) -> bool:
    inputs = node.inputs
    if node.name in _PASSING and inputs:
        return _settles(keys, inputs[-1], columns)
    if node.name == "Project":
        texts, _ = leading(node.text)
        items = columns.items(texts)
        sources = {i.expression[1:] for i in items if i.id in keys and _is_column(i.expression)}
        below = frozenset(sources)
        if all(item.id in keys or item.columns <= below for item in items):
            return True
        return bool(inputs) and _settles(below, inputs[-1], columns)
    if node.name == "Aggregate":
        groups, behind = leading(node.text)
        texts, _ = leading(behind) if behind.startswith("[") else (groups, "")
        items = columns.items(texts)
        shown = {i.expression[1:]: i.id for i in items if _is_column(i.expression)}
        wanted = columns.keys(groups)
        by_keys = bool(behind) and len(wanted) == len(groups)
        if by_keys and all(shown.get(key, key) in keys for key in wanted):
            return True
        return all(item.id in keys for item in items)
    if table_read(node) is not None or node.name in ("LocalRelation", "ResolvedInlineTable"):
        start = node.text.find("[")
        texts, _ = leading(node.text[start:])
        flat = [part.strip() for each in texts for part in split(each, ",")]
        return columns.keys(flat) <= keys and len(columns.keys(flat)) == len(flat)
    if node.name == "Join" and not node.text.startswith(("LeftSemi", "LeftAnti")):
        return len(inputs) == 2 and all(_settles(keys, each, columns) for each in inputs)
    return False


def _is_column(expression: str) -> bool:
    return re.fullmatch(r"§\d+", expression) is not None


def limit_is_total(node: Node, columns: Columns) -> bool:
    """Whether a GlobalLimit, LocalLimit or Offset cuts a total order."""
    below = node
    while below.inputs:
        below = below.inputs[-1]
        if below.name == "Sort":
            texts, behind = leading(below.text)
            return behind == "true" and settles(columns.keys(texts), below.inputs[-1], columns)
        if below.name not in ("GlobalLimit", "LocalLimit", "Offset", "Project"):
            return False
    return False


def window_reason(node: Node, columns: Columns, numbers: Numbers) -> str:
    """Say what in a Window depends on how ties in its order fall; empty if nothing does."""
    texts, _ = leading(node.text)
    for text in texts:
        function, _, behind = text.partition(" windowspecdefinition(")
        if not behind:
            return "a window that cannot be read"
        start = len(text) - len(behind) - 1
        parts = split(text[start + 1 : closing(text, start)])
        frame = parts.pop()
        keys = columns.keys(parts)
        total = bool(node.inputs) and settles(keys, node.inputs[-1], columns)
        name = function.partition("(")[0].lower()
        expression = columns.rewritten(function)
        reason = sums_reason(expression, numbers)
        if reason:
            return f"{name}() of {reason}"
        if total or name in _RANKS:
            continue
        if name in _AGGREGATES and (
            frame.startswith("specifiedwindowframe(RangeFrame,") or frame.endswith(f"{_WHOLE})")
        ):
            continue
        return f"{name}() OVER (…) depends on how ties in its order fall"
    return ""
