"""Finds the prefixes of the log that a read can have shown. Values in, values out.

A cluster applies the writes to a table in the order of the log, one after another, and a read sees
a table at one moment. So it shows the table after some number of the log's records; as no value is
written twice, that number is mostly known precisely.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tests.fault.torture.history import Content, Op, Read, Verb
from tests.fault.torture.replay import TableKind, held_after, kind_of

Span: TypeAlias = tuple[int, float]
"""A first and a last number of records, and all in between."""
_EVERYTHING: Sequence[Span] = ((0, math.inf),)


class TableLog:
    """All operations on a table, in the order of the log."""

    def __init__(self, ops: Sequence[Op], first_offsets: Mapping[str, int]) -> None:
        """``first_offsets``: by request id, of everything in the log."""
        self.kind = kind_of(ops)
        by_key: dict[str, list[tuple[int, Op]]] = defaultdict(list)
        for op in ops:
            if op.id in first_offsets and not op.outcome.failed:
                by_key[op.key].append((first_offsets[op.id], op))
        self._keys = {
            key: _KeyLog(self.kind, sorted(writes, key=lambda write: write[0]))
            for key, writes in by_key.items()
        }

    def shown_by(self, read: Read) -> Sequence[Span]:
        """Return the numbers of records that it may show, in rising order; empty if none fits."""
        found = _EVERYTHING
        for key in self._keys.keys() | read.content.keys():
            held = held_by(self.kind, read.content, key)
            if key in self._keys:
                found = _common(found, self._keys[key].showing(held, read.completed_s))
            elif held:
                return ()
        return found


class _KeyLog:
    """The values of a key after each write."""

    def __init__(self, kind: TableKind, writes: Sequence[tuple[int, Op]]) -> None:
        self._offsets = [offset for offset, _ in writes]
        self._begun_s = [-math.inf]
        """The time before which that many of the writes had not all been sent."""
        self._after: dict[tuple[int, ...], list[int]] = defaultdict(list)
        held: tuple[int, ...] = ()
        self._after[held].append(0)
        for count, (_, op) in enumerate(writes, 1):
            held = held_after(held, op.verb, op.values)
            held = tuple(sorted(held)) if kind is TableKind.REGISTER else held
            self._after[held].append(count)
            self._begun_s.append(max(self._begun_s[-1], op.invoked_s))

    def showing(self, held: tuple[int, ...], completed_s: float) -> list[Span]:
        """Return the numbers of the log's records after which the key had this content."""
        begun = bisect_right(self._begun_s, completed_s)
        return [self._span(count) for count in self._after.get(held, ()) if count < begun]

    def _span(self, count: int) -> Span:
        first = self._offsets[count - 1] + 1 if count else 0
        return first, self._offsets[count] if count < len(self._offsets) else math.inf


def held_by(kind: TableKind, content: Content, key: str) -> tuple[int, ...]:
    """Return the content of a key; a register's rows in rising order."""
    held = content.get(key, ())
    return tuple(sorted(held)) if kind is TableKind.REGISTER else held


def _common(one: Sequence[Span], other: Sequence[Span]) -> list[Span]:
    found: list[Span] = []
    at_one = at_other = 0
    while at_one < len(one) and at_other < len(other):
        first = max(one[at_one][0], other[at_other][0])
        last = min(one[at_one][1], other[at_other][1])
        if first <= last:
            found.append((first, last))
        if one[at_one][1] < other[at_other][1]:
            at_one += 1
        else:
            at_other += 1
    return found


def has_keys(ops: Sequence[Op]) -> bool:
    """True if these operations are on a table whose keys hold values."""
    made = any(op.verb in (Verb.CREATE, Verb.DROP) for op in ops)
    return bool(ops) and not made and kind_of(ops) is not TableKind.SET
