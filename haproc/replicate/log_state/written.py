"""Where the log last said that a table is written, for answers that may be given again.

An answer that shows all writes to its tables below an offset is still the answer at a later one if
no record in between writes any of them. Which records do is told when they are read, long before
they are applied, and without asking what became of them: one that was rejected, is stale or repeats
another costs an answer, and no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from haproc.replicate.log_state.definitions import NOTHING, redefined
from haproc.replicate.records.operation import Operation

TABLES_MAX: Final = 10_000
"""Of more tables than this it is no longer known which were written when. Chosen: a few MiB."""


def defines(op: Operation) -> bool:
    """Whether an operation may change what a query is: what its names stand for, and their types.

    So does whatever is exclusive, as it may touch more than it names.
    """
    return op.exclusive or redefined(op) != NOTHING


def touches(op: Operation, tables: frozenset[str]) -> bool:
    """Whether an operation may change what a query of these tables gives."""
    return defines(op) or not op.writes.isdisjoint(tables)


class Written:
    """See the module. It is shown every operation that this process reads, with rising offsets."""

    def __init__(self, tables_max: int = TABLES_MAX) -> None:
        self._tables_max = tables_max
        self._newest: dict[str, int] = {}
        self._defined = self._unknown = -1

    def note(self, offset: int, op: Operation) -> None:
        """Take in an operation, whatever becomes of it."""
        if defines(op):
            self._defined = offset
        self._newest.update(dict.fromkeys(op.writes, offset))
        if len(self._newest) > self._tables_max:
            self._newest.clear()
            self._unknown = offset

    @property
    def newest(self) -> Mapping[str, int]:
        """The offset of the newest write of each table that is known."""
        return self._newest

    def defined(self, since: int) -> bool:
        """Whether a record from ``since`` on may have changed what any query is."""
        return self._defined >= since

    def changed(self, tables: Iterable[str], since: int) -> bool:
        """Whether a record from ``since`` on may change what a query of these tables gives."""
        newest = max((self._newest.get(name, -1) for name in tables), default=-1)
        return max(newest, self._defined, self._unknown) >= since
