"""Whose turn it is: the operations that conflict with nothing unfinished before them.

Two operations conflict if one of them writes a table that the other reads or writes; an exclusive
one does with every other. What is known of that is brought up to date with each operation that
comes or goes, so that one costs the same however many wait.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from haproc.replicate.records.operation import Operation


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
        self._exclusive: OrderedDict[int, None] = OrderedDict()
        self._free: list[int] = []
        """What conflicts with nothing before it that is not exclusive; in log order."""

    def add(self, offset: int, op: Operation) -> None:
        """Take in an operation."""
        if op.exclusive:
            self._exclusive[offset] = None
            return
        for table in op.reads | op.writes:
            line = self._lines.setdefault(table, _Line())
            line.touching[offset] = op
            if table in op.writes:
                line.writing[offset] = None
        if self._is_free(offset, op):
            self._free.append(offset)

    def leave(self, offset: int, op: Operation) -> None:
        """Let an operation go: what waited only for it is free."""
        if op.exclusive:
            del self._exclusive[offset]
            return
        if self._stands_free(at := bisect_left(self._free, offset), offset):
            del self._free[at]
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
            at = bisect_left(self._free, offset)
            if not self._stands_free(at, offset) and self._is_free(offset, op):
                self._free.insert(at, offset)
            if offset in line.writing or not wrote:
                return

    def _stands_free(self, at: int, offset: int) -> bool:
        return at < len(self._free) and self._free[at] == offset

    def _is_free(self, offset: int, op: Operation) -> bool:
        """Whether nothing before it writes what it touches, or reads what it writes."""
        return all(
            next(iter(self._lines[table].touching)) == offset for table in op.writes
        ) and all(next(iter(self._lines[table].writing), offset) >= offset for table in op.reads)

    def newest(self, tables: Collection[str]) -> int:
        """Return the newest of those that write a table; -1 if none does, or there are others."""
        line = self._lines.get(next(iter(tables))) if len(tables) == 1 else None
        return -1 if line is None else next(reversed(line.writing), -1)

    def in_turn(self, first: int, below: int) -> Iterator[int]:
        """Yield those below an offset whose turn it is; ``first`` is the first that is unfinished.

        An exclusive one's turn comes when it is that, and nothing's does behind it.
        """
        if first in self._exclusive:
            yield first
            return
        below = self._as_far_as(below)
        for offset in self._free:
            if offset >= below:
                return
            yield offset

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
