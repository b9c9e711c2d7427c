"""The content of a table after the log's operations, one after another."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from tests.fault.torture.history import COLUMNS, Content, Op, Verb


class TableKind(StrEnum):
    """The use of a table, which determines the form of its content."""

    SET = "set"
    REGISTER = "register"
    LIST = "list"


_REGISTER = frozenset({Verb.PUT, Verb.UPDATE, Verb.DELETE})


def kind_of(ops: Iterable[Op]) -> TableKind:
    """Return the kind of the table that these operations are on."""
    verbs = {op.verb for op in ops}
    if Verb.APPEND in verbs:
        return TableKind.LIST
    return TableKind.REGISTER if verbs & _REGISTER else TableKind.SET


def replayed(ops: Iterable[Op], there: bool) -> Content | None:
    """Return the table after these operations in this order; None if it was dropped.

    ``there``: whether the table exists before the first of them.
    """
    content: dict[str, tuple[int, ...]] | None = {} if there else None
    for op in ops:
        content = _after(content, op)
    return content


def _after(content: dict[str, tuple[int, ...]] | None, op: Op) -> dict[str, tuple[int, ...]] | None:
    if op.verb is Verb.CREATE:
        return {} if content is None else content
    if op.verb is Verb.DROP or content is None or op.verb is Verb.WRONG:
        return None if op.verb is Verb.DROP else content
    if op.verb is Verb.ADD_COLUMN:
        return content | {COLUMNS: (*content.get(COLUMNS, ()), *op.values)}
    return content | {op.key: held_after(content.get(op.key, ()), op.verb, op.values)}


def held_after(held: tuple[int, ...], verb: Verb, values: tuple[int, ...]) -> tuple[int, ...]:
    """Return the content of a key after a write."""
    match verb:
        case Verb.PUT:
            return values
        case Verb.UPDATE:
            return values * len(held)
        case Verb.DELETE:
            return ()
        case _:
            return (*held, *values)


def normal(kind: TableKind, content: Content | None) -> Content | None:
    """Return the content in the one form in which equal tables are equal values."""
    if content is None:
        return None
    keep_order = kind is TableKind.LIST
    return {
        key: values if keep_order else tuple(sorted(values))
        for key, values in sorted(content.items())
        if values
    }
