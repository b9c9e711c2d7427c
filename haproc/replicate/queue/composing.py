"""The operations of the queue that may run as one statement although they are not alike.

Only operations that are known to have succeeded are composed
(`haproc.replicate.log_state.computations`). Otherwise a value that a later statement of the
composition replaces would never be tried. The table's columns must be known, too, since a
definition was last applied here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final

from haproc.classify.model import Kind
from haproc.engine.interface import Column
from haproc.engine.statement import ArrowRows, SqlText
from haproc.replicate.compose.merging import statement
from haproc.replicate.compose.reading import change_of
from haproc.replicate.compose.terms import Change
from haproc.replicate.compose.window import ComposedWindow
from haproc.replicate.log_state.computations import PeerSuccess
from haproc.replicate.log_state.definitions import NOTHING, redefined
from haproc.replicate.queue.coalesce import BatchKey, BatchLimits
from haproc.replicate.queue.units import Task
from haproc.replicate.records.operation import Operation

CHANGES: Final = (Kind.UPDATE, Kind.DELETE, Kind.MERGE)
OPERATIONS_MAX: Final = 1_024
"""Of one statement: composing so many holds the event loop for 40 ms."""
CELLS_MAX: Final = 6_000
"""Rows times columns, of all that a composed statement reads or writes: one takes some 10 µs, so
composing holds the event loop for some 60 ms at most."""
_KEYED_CHARS, _ARROW_BYTES, _INSERT_CHARS = 5, 40, 500
"""Of changes by key, of rows that came as Arrow and of INSERTs: what is read in as long as a cell
takes. Measured."""


class Composing:
    """The compositions of this queue. ``peer_success``: the operations known to have succeeded."""

    def __init__(self, peer_success: PeerSuccess, limits: BatchLimits) -> None:
        self._peer_success = peer_success
        self._limits = limits
        self._columns: dict[str, Sequence[Column] | None] = {}
        self._unreadable: set[str] = set()
        self.definitions = 0
        """Rises whenever what is known of tables may have become wrong."""
        self.tried = False
        """True if texts were read to compose them since `begin`, which holds the event loop."""

    def begin(self) -> None:
        """Allow one more look at texts."""
        self.tried = False

    # -- tables ----------------------------------------------------------------------------

    def describe(self, table: str, columns: Sequence[Column] | None, definitions: int) -> None:
        """Note a table's columns; None: it does more with a row than store it.

        ``definitions`` as it was before the table was looked at.
        """
        if definitions == self.definitions:
            self._columns[table] = columns
        self._unreadable.discard(table)

    def failed(self, table: str) -> None:
        """Note that a table could not be looked at, for reasons of the cluster's own."""
        self._unreadable.add(table)

    def looked_for(self, table: str) -> bool:
        """True if a composition was tried, with any result."""
        return self.described(table) or table in self._unreadable

    def described(self, table: str) -> bool:
        """True if the table was described since a definition was last applied."""
        return table in self._columns

    def applied(self, operations: Iterable[Operation]) -> None:
        """Forget what these may have changed."""
        if any(op.exclusive or redefined(op) != NOTHING for op in operations):
            self._columns.clear()
            self._unreadable.clear()
            self.definitions += 1

    # -- operations ------------------------------------------------------------------------

    def spoken_of(self, offset: int) -> bool:
        """True if an operation is known not to have simply succeeded on some cluster."""
        return self._peer_success.has_control_record(offset)

    def may_compose(self, offset: int, op: Operation) -> bool:
        """True if an operation may be composed with others, as far as others' success goes."""
        return self._peer_success.succeeded(offset) and isinstance(op.write, SqlText | ArrowRows)

    def fitting(self, tasks: Iterable[Task], more_than: int) -> Iterator[Operation]:
        """Yield as many of the tasks, which follow on each other, as one statement may hold.

        Nothing unless they are more than so many. No more are read than are needed: mostly the
        first one already shows that nothing can be composed.
        """
        fitting = self._fitting(tasks)
        first = list(islice(fitting, more_than + 1))
        return chain(first, fitting) if len(first) > more_than else iter(())

    def _fitting(self, tasks: Iterable[Task]) -> Iterator[Operation]:
        rows = size = count = cells = work = 0
        settings = None
        for task in tasks:
            settings = settings or task.op.settings
            rows, size, count = rows + task.rows, size + task.op.size_bytes, count + 1
            cells, work = cells + task.cells, work + task.cells + _reading(task.op)
            if (
                count > OPERATIONS_MAX
                or work > CELLS_MAX
                or task.op.settings != settings
                or self._limits.text_exceeded(count, rows, size, cells)
            ):
                return
            yield task.op

    def composed(
        self, table: str, operations: Iterable[Operation], *, bounded: bool = True
    ) -> tuple[int, str]:
        """Return the number of these consecutive operations that run as one statement.

        And the statement; 0 if there is none for at least two of them. Not ``bounded``: whatever
        time that takes.
        """
        columns = self._columns.get(table)
        if columns is None:
            return 0, ""
        changes: list[Change] = []
        window = ComposedWindow(columns, CELLS_MAX if bounded else None)
        settings = None
        for op in operations:
            self.tried = True
            settings = settings or op.settings
            change = change_of(op) if op.settings == settings else None
            if change is None or not window.take(change):
                break
            changes.append(change)
        return _stated(table, window, changes)


def _reading(op: Operation) -> int:
    """Return the cost of reading an operation beside its rows, in cells."""
    if changes_keys(op):
        return op.size_bytes // _KEYED_CHARS
    arrow = isinstance(op.write, ArrowRows)
    return op.size_bytes // (_ARROW_BYTES if arrow else _INSERT_CHARS)


def _stated(table: str, window: ComposedWindow, changes: Sequence[Change]) -> tuple[int, str]:
    """Return the statement for as many of the changes as one takes, halving them."""
    while len(changes) > 1:
        if text := statement(table, window):
            return len(changes), text
        changes, window = changes[: len(changes) // 2], window.anew()
        for change in changes:
            window.take(change)
    return 0, ""


def unlike(op: Operation, key: BatchKey | None, before: BatchKey | None) -> bool:
    """True if a waiting operation is no INSERT like the one ``before`` it on its table.

    Only if it may be composed at all.
    """
    if len(op.writes) != 1 or (key is None and not changes_keys(op)):
        return False
    return key is None or (before is not None and before.joined(key) is None)


def changes_keys(op: Operation) -> bool:
    """True if an operation may be one that composing is for."""
    return op.kind in CHANGES and isinstance(op.write, SqlText)
