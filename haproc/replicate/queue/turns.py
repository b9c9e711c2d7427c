"""Whose turn it is: the operations that conflict with nothing unfinished before them.

Two operations conflict if one of them writes a table that the other reads or writes; an exclusive
one does with every other, but for one case: DDL that names all that it touches starts while a
computation of a table (`Operation.beside`) in front of it runs, if they conflict by no name. What
is known of that is brought up to date with each operation that comes or goes, so that one costs
the same however many wait.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from itertools import chain
from typing import Final

from haproc.replicate.records.operation import Operation

_COMPUTATIONS_MAX: Final = 16
"""Chosen: more than there may be under way on a cluster that serves."""


@dataclass(slots=True)
class _Line:
    """The unfinished operations that touch one table, and which of them write it; in log order.

    Most go from the front, where a plain dict would leave gaps to be stepped over.
    """

    touching: OrderedDict[int, Operation] = field(default_factory=OrderedDict)
    writing: OrderedDict[int, None] = field(default_factory=OrderedDict)


class Turns:
    """See the module. Operations are known by their offsets, and come in log order."""

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._exclusive: OrderedDict[int, Operation] = OrderedDict()
        self._beside: OrderedDict[int, None] = OrderedDict()
        self._plain: OrderedDict[int, None] = OrderedDict()
        """What is neither of the two."""
        self.computations: OrderedDict[int, tuple[frozenset[str], frozenset[str]]] = OrderedDict()
        """What those that came last read and write, until they are known to be over everywhere."""
        self._free: dict[str, list[int]] = {}
        """By user: what conflicts with nothing before it that is not exclusive; in log order."""

    def add(self, offset: int, op: Operation) -> None:
        """Take in an operation."""
        if op.exclusive:
            self._exclusive[offset] = op
            return
        (self._beside if op.beside else self._plain)[offset] = None
        if op.beside:
            self.computations[offset] = op.reads, op.writes
            if len(self.computations) > _COMPUTATIONS_MAX:
                self.computations.popitem(last=False)
        for table in op.reads | op.writes:
            line = self._lines.setdefault(table, _Line())
            line.touching[offset] = op
            if table in op.writes:
                line.writing[offset] = None
        if self._is_free(offset, op):
            self._free.setdefault(op.user, []).append(offset)

    def leave(self, offset: int, op: Operation) -> None:
        """Let an operation go: what waited only for it is free."""
        if op.exclusive:
            del self._exclusive[offset]
            return
        del (self._beside if op.beside else self._plain)[offset]
        free = self._free.get(op.user, [])
        if _stands_in(free, at := bisect_left(free, offset), offset):
            del free[at]
            if not free:
                del self._free[op.user]
        moved: list[tuple[_Line, bool]] = []
        for table in op.reads | op.writes:
            line = self._lines[table]
            del line.touching[offset]
            line.writing.pop(offset, None)
            if line.touching:
                moved.append((line, table in op.writes))
            else:
                del self._lines[table]
        for line, wrote in moved:
            self._move_up(line, wrote)

    def _move_up(self, line: _Line, wrote: bool) -> None:
        """Free who stands first now; behind one that ``wrote`` all who read, as far as a writer."""
        for offset, op in line.touching.items():
            free = self._free.get(op.user, [])
            at = bisect_left(free, offset)
            if not _stands_in(free, at, offset) and self._is_free(offset, op):
                self._free.setdefault(op.user, free).insert(at, offset)
            if offset in line.writing or not wrote:
                return

    def _is_free(self, offset: int, op: Operation) -> bool:
        """Whether nothing before it writes what it touches, or reads what it writes."""
        return all(
            next(iter(self._lines[table].touching)) == offset for table in op.writes
        ) and all(next(iter(self._lines[table].writing), offset) >= offset for table in op.reads)

    def newest(self, tables: Collection[str]) -> int:
        """Return the newest of those that write a table; -1 if none does, or there are others."""
        line = self._lines.get(next(iter(tables))) if len(tables) == 1 else None
        return -1 if line is None else next(reversed(line.writing), -1)

    def first_change(self, tables: Collection[str], none: int) -> int:
        """Return the first unfinished one that may change what tables hold or are; or ``none``."""
        lines = (self._lines[table] for table in tables if table in self._lines)
        firsts = [next(iter(line.writing), none) for line in lines]
        return min([next(iter(self._exclusive), none), *firsts])

    def in_turn(self, below: int) -> Iterator[int]:
        """Yield those below an offset whose turn it is, in log order."""
        yield from merge(*self.by_user(below).values())

    def by_user(self, below: int) -> Mapping[str, Iterator[int]]:
        """Return them by user, each in log order.

        Behind an exclusive one nothing's turn comes.
        """
        first = next(iter(self._exclusive), None)
        ahead = self._as_far_as(below)
        found = {user: _below(offsets, ahead) for user, offsets in self._free.items()}
        if first is not None and first < below and self._comes(first):
            user = self._exclusive[first].user
            found[user] = chain(found.get(user, ()), [first])
        return found

    def _comes(self, offset: int) -> bool:
        """Whether the turn of the first exclusive one has come."""
        op = self._exclusive[offset]
        if next(iter(self._plain), offset) < offset:
            return False
        if not op.named:
            return next(iter(self._beside), offset) >= offset
        return not any(self._stands_before(offset, op, table) for table in op.reads | op.writes)

    def _stands_before(self, offset: int, op: Operation, table: str) -> bool:
        """Whether one that is not exclusive conflicts with an exclusive one at a table."""
        if (line := self._lines.get(table)) is None:
            return False
        others = line.touching if table in op.writes else line.writing
        return next(iter(others), offset) < offset

    def behind(self, table: str, offset: int, below: int) -> Iterator[int]:
        """Yield those from one whose turn it is, below another offset, that touch a table.

        As far as the next exclusive one.
        """
        below = self._as_far_as(below)
        for each in self._lines[table].touching:
            if each >= below:
                return
            if each >= offset:
                yield each

    def _as_far_as(self, below: int) -> int:
        return min(below, next(iter(self._exclusive), below))


def _stands_in(free: list[int], at: int, offset: int) -> bool:
    return at < len(free) and free[at] == offset


def _below(offsets: list[int], below: int) -> Iterator[int]:
    for offset in offsets:
        if offset >= below:
            return
        yield offset
