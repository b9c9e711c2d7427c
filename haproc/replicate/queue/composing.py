"""Which operations of the queue may run as one statement though they are not alike.

Only what is known to have succeeded is composed (`haproc.replicate.heard.elsewhere`): what a
composition skips over, a value that a later statement replaces, would else not be tried at all. And
only where it is known what the table's columns are, since a definition was last applied here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from haproc.classify.model import Kind
from haproc.engine.interface import Column
from haproc.engine.statement import ArrowRows, SqlText
from haproc.replicate.compose.changes import Change
from haproc.replicate.compose.merging import statement
from haproc.replicate.compose.reading import change_of
from haproc.replicate.compose.window import Window
from haproc.replicate.heard.definitions import NOTHING, redefined
from haproc.replicate.heard.elsewhere import Elsewhere
from haproc.replicate.queue.coalesce import BatchKey, BatchLimits, row_count
from haproc.replicate.records.operation import Operation

CHANGES: Final = (Kind.UPDATE, Kind.DELETE, Kind.MERGE)
OPERATIONS_MAX: Final = 1_024
"""Of one statement: composing so many holds the event loop for 40 ms."""
READ_MAX: Final = 64 << 10
"""How much text of UPDATEs, DELETEs and MERGEs is read for one statement: that takes 60 ms."""


class Composing:
    """See the module. ``elsewhere``: what is known to have succeeded."""

    def __init__(self, elsewhere: Elsewhere, limits: BatchLimits) -> None:
        self._elsewhere = elsewhere
        self._limits = limits
        self._columns: dict[str, Sequence[Column] | None] = {}
        self._unreadable: set[str] = set()
        self._newest: dict[str, BatchKey | None] = {}
        self.definitions = 0
        """Rises whenever what is known of tables may have become wrong."""

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
        """Whether it was tried, to whatever end."""
        return self.described(table) or table in self._unreadable

    def described(self, table: str) -> bool:
        """Whether the table was looked at since a definition was last applied."""
        return table in self._columns

    def applied(self, operations: Iterable[Operation]) -> None:
        """Forget what these may have changed."""
        if any(op.exclusive or redefined(op) != NOTHING for op in operations):
            self._columns.clear()
            self.definitions += 1

    # -- operations ------------------------------------------------------------------------

    def unlike(self, op: Operation, key: BatchKey | None) -> bool:
        """Whether an operation, in log order, is no INSERT like the newest one on its table.

        Only of those that may be composed at all.
        """
        if len(op.writes) != 1 or (key is None and not changes_keys(op)):
            return False
        (table,) = op.writes
        before, self._newest[table] = self._newest.get(table), key
        return key is None or (before is not None and before.joined(key) is None)

    def may_compose(self, offset: int, op: Operation) -> bool:
        """Whether an operation may be composed with others, as far as others' success goes."""
        return self._elsewhere.succeeded(offset) and isinstance(op.write, SqlText | ArrowRows)

    def composed(self, table: str, operations: Iterable[Operation]) -> tuple[int, str]:
        """Return how many of the operations, which follow on each other, run as one statement.

        And the statement; 0 if there is none for at least two of them.
        """
        columns = self._columns.get(table)
        if columns is None:
            return 0, ""
        changes: list[Change] = []
        window, rows, size, read = Window(columns), 0, 0, 0
        settings = None
        for op in operations:
            settings = settings or op.settings
            rows, size = rows + row_count(op), size + op.size_bytes
            read += op.size_bytes if changes_keys(op) else 0
            within = (
                rows <= self._limits.rows_max
                and size <= self._limits.bytes_max
                and read <= READ_MAX
                and len(changes) < min(self._limits.operations_max, OPERATIONS_MAX)
            )
            change = change_of(op) if within and op.settings == settings else None
            if change is None or not window.take(change):
                break
            changes.append(change)
        return _stated(table, columns, window, changes)


def _stated(
    table: str, columns: Sequence[Column], window: Window, changes: Sequence[Change]
) -> tuple[int, str]:
    """Return the statement for as many of the changes as one takes, halving them."""
    while len(changes) > 1:
        if text := statement(table, window):
            return len(changes), text
        changes, window = changes[: len(changes) // 2], Window(columns)
        for change in changes:
            window.take(change)
    return 0, ""


def changes_keys(op: Operation) -> bool:
    """Whether an operation may be one that composing is for."""
    return op.kind in CHANGES and isinstance(op.write, SqlText)
