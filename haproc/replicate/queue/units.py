"""Operations of the queue, and the units in which they are run, some of them together."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import chain, islice
from typing import Any, Final

import pyarrow as pa

from haproc.classify.bounds import tokens_of
from haproc.classify.insert import combined_signature
from haproc.classify.model import Kind, OperationClass
from haproc.engine.arrow import joined, rows_in, without_rows
from haproc.engine.interface import Column, Settings
from haproc.engine.statement import ROWS_MAX, ArrowRows, RowsInLog, SqlText
from haproc.replicate.compose.merging import statement
from haproc.replicate.compose.reading import change_of
from haproc.replicate.compose.terms import Change
from haproc.replicate.compose.window import ComposedWindow
from haproc.replicate.log_state.computations import PeerSuccess
from haproc.replicate.log_state.definitions import NOTHING, redefined
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import Write

# Combines consecutive INSERTs into one table into one statement.
#
# Only if each keeps the meaning that it has alone: equal text up to the rows, equal literal types
# (see `InsertShape`), equal settings; rows that came as Arrow only with an equal schema. If the
# combined statement fails, the applier splits it: its halves run, and so on.


LEFT_FROM_BYTES: Final = 1 << 20
"""Rows of at least so many bytes stay in the log until they are needed. Chosen: a second read of
them costs little beside Spark's time; of smaller ones thousands may be one statement."""


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits of one combined statement; for rows that came as Arrow there are others.

    Such rows are in the driver's memory while they are written. So all running statements together
    may have twice the bytes of one. ``tokens_max``: the same limit as for a client's text
    (`haproc.classify.bounds`): a few times as many tokens exhaust Spark's heap.
    """

    operations_max: int = 10_000
    rows_max: int = 20_000
    bytes_max: int = 8 << 20
    arrow_bytes_max: int = 44 << 20
    tokens_max: int = 400_000

    def exceeded(
        self,
        like: Operation,
        operations: int,
        rows: int,
        size: int,
        arrow_beside: int = 0,
        cells: int = 0,
    ) -> bool:
        """True if one statement of such operations would be too large; ``like`` is one of them.

        ``arrow_beside``: the bytes of the Arrow rows in statements that run already. ``cells``: the
        number of the rows' values.
        """
        if not isinstance(like.write, ArrowRows):
            return self.text_exceeded(operations, rows, size, cells)
        bytes_max = min(self.arrow_bytes_max, 2 * self.arrow_bytes_max - arrow_beside)
        return operations > self.operations_max or rows > ROWS_MAX or size > bytes_max

    def text_exceeded(self, operations: int, rows: int, size: int, cells: int) -> bool:
        """True if one SQL text with the effect of so many operations would be too large."""
        return (
            operations > self.operations_max
            or rows > self.rows_max
            or size > self.bytes_max
            or tokens_of(rows, cells) > self.tokens_max
        )


@dataclass(frozen=True, slots=True)
class BatchKey:
    """The properties that operations must share to run as one statement.

    ``head``: a digest of the text before the rows, or the rows' Arrow schema. ``signature``: the
    types of the literals, where NULL fits any type.
    """

    table: str
    settings: Settings
    head: Any
    signature: str = ""

    def joined(self, other: BatchKey | None) -> BatchKey | None:
        """Return a key that fits both; None if such operations cannot be combined."""
        if other is None or other.head != self.head or other.settings != self.settings:
            return None
        if other.signature == self.signature:
            return self
        signature = combined_signature(self.signature, other.signature)
        return None if signature is None else replace(self, signature=signature)


def batch_key(op: Operation) -> BatchKey | None:
    """Return the key that operations combined with this one must share; None: it runs alone."""
    if op.operation_class is not OperationClass.ASYNCHRONOUS or op.exclusive:
        return None
    if op.reads or len(op.writes) != 1:
        return None
    (table,) = op.writes
    if isinstance(op.write, ArrowRows):
        return BatchKey(table, op.settings, _schema_of(op.write.rows))
    if op.insert is None or op.kind is not Kind.INSERT or not isinstance(op.write, SqlText):
        return None
    head = op.write.sql[: op.insert.values_at].encode(errors="surrogatepass")
    digest = hashlib.blake2b(head, digest_size=16).digest()
    return BatchKey(table, op.settings, digest, op.insert.signature)


def row_count(op: Operation) -> int:
    """Return the number of rows that an operation writes; 1 if that is not known."""
    if isinstance(op.write, RowsInLog):
        return op.write.count
    if isinstance(op.write, ArrowRows):
        return rows_in(op.write.rows)
    return op.insert.rows if op.insert is not None else 1


def left_in_log(op: Operation) -> Operation:
    """Return the operation without its rows if these are large: they stay in the log meanwhile.

    A full queue of large rows would take a multiple of a HAProc's other memory.
    """
    if not isinstance(op.write, ArrowRows) or op.size_bytes < LEFT_FROM_BYTES:
        return op
    schema, count = without_rows(op.write.rows), rows_in(op.write.rows)
    write = RowsInLog(op.write.table, schema, size_bytes=op.size_bytes, count=count)
    return replace(op, write=write)


def cell_count(key: BatchKey | None, rows: int) -> int:
    """Return the number of values in the rows of an operation with this key."""
    if key is None:
        return 0
    return rows * (key.signature.count(",") + 1 if key.signature else len(key.head))


def combine(operations: Sequence[Operation]) -> Write:
    """Return one write with the effect of these operations; their keys must fit (`batch_key`)."""
    first = operations[0]
    if len(operations) == 1:
        return first.write
    if any(isinstance(op.write, RowsInLog) for op in operations):
        assert isinstance(first.write, ArrowRows)
        counts, sizes = map(row_count, operations), (op.size_bytes for op in operations)
        schema = without_rows(first.write.rows)
        return RowsInLog(first.write.table, schema, size_bytes=sum(sizes), count=sum(counts))
    if isinstance(first.write, ArrowRows):
        streams = [op.write.rows for op in operations if isinstance(op.write, ArrowRows)]
        return ArrowRows(first.write.table, joined(streams))
    assert isinstance(first.write, SqlText)
    parts = [first.write.sql]
    for op in operations[1:]:
        assert op.insert is not None and isinstance(op.write, SqlText)
        parts.append(op.write.sql[op.insert.values_at :])
    # A line break, because a statement may end in a comment.
    return SqlText("\n, ".join(parts))


def _schema_of(stream: bytes) -> Any:
    return pa.ipc.read_schema(pa.py_buffer(stream)).remove_metadata()


# The units that the schedule gives out to run, and its facts about the tasks that still wait.


MARKER: Final = Operation(
    "", OperationClass.ASYNCHRONOUS, Kind.UNKNOWN, "", "", SqlText(""), tables_known=False
)
"""Stands for a verify or copy record in the queue: no operation runs at the same time."""


class Intent(Enum):
    """What is stored before a unit starts: nothing, its first and last offset, or a fingerprint."""

    NONE = auto()
    BATCH = auto()
    ALONE = auto()


@dataclass(frozen=True, slots=True)
class Unit:
    """One statement for the cluster: one operation, or several combined.

    ``version``: of the transaction marker, the last operation's offset. ``in_doubt``: an earlier
    incarnation may have run it. ``composed``: the text of one statement with the effect of unlike
    operations, or empty. ``apart``: an earlier incarnation ran these operations as one statement
    that this one cannot make again, so they must be split.
    """

    offsets: tuple[int, ...]
    operations: tuple[Operation, ...]
    intent: Intent
    in_doubt: bool = False
    composed: str = ""
    apart: bool = False

    @property
    def version(self) -> int:
        return self.offsets[-1]

    @property
    def arrow_bytes(self) -> int:
        """The bytes of the unit's rows, if they came as Arrow; else 0."""
        if not isinstance(self.operations[0].write, ArrowRows):
            return 0
        return sum(op.size_bytes for op in self.operations)

    def write(self) -> Write:
        """Return what Spark has to run. If its rows are computed, they are in the log."""
        return SqlText(self.composed) if self.composed else combine(self.operations)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An operation of the queue, as it is shown.

    ``undecided``: it waits for its origin's decision; ``uncomputed``: it waits for its rows.
    """

    offset: int
    op: Operation
    running: bool
    undecided: bool
    uncomputed: bool = False


class TaskState(Enum):
    """How far an operation of the queue has come."""

    WAITING = auto()
    RUNNING = auto()
    SPLIT = auto()
    """It was part of a unit that was split, and starts once the progress without that is stored."""
    COMPLETE = auto()


@dataclass(slots=True)
class Task:
    """An operation of the queue, and its state.

    ``cells``: its rows times their columns.
    """

    offset: int
    op: Operation
    key: BatchKey | None
    rows: int
    """The rows that it adds to a combined statement. Stored, because one may combine thousands."""
    cells: int
    state: TaskState = TaskState.WAITING
    single: bool = False
    half: int | None = None
    """The last offset of its half of a split unit: it is combined only within that half."""
    unlike: bool = False
    """True if the operation before it on its table is no INSERT that it can be combined with."""

    @classmethod
    def of(cls, offset: int, op: Operation, before: Task | None, *, single: bool) -> Task:
        """Return the task of a new operation; ``before``: the newest task that writes its table."""
        key = batch_key(op)
        rows = 0 if key is None else row_count(op)
        differs = unlike(op, key, None if before is None else before.key)
        cells = cell_count(key, rows)
        return cls(offset, op, key, rows, cells, single=single, unlike=differs)

    def become(self, state: TaskState) -> None:
        """Set the state."""
        self.state = state

    def isolate(self) -> None:
        """Let it run alone only."""
        self.single = True

    def split(self, half: int, *, alone: bool) -> None:
        """Note that the unit of this task was split; ``half``: the last offset of the task's half.

        ``alone``: it must run alone from now on.
        """
        self.state, self.half = TaskState.SPLIT, half
        self.single = self.single or alone


# The operations of the queue that may run as one statement although they are not alike.
#
# Only operations that are known to have succeeded are composed
# (`haproc.replicate.log_state.computations`). Otherwise an error in a value that a later statement
# replaces would never be found. The table's columns must be known, too, as of the last definition
# that was applied here.


CHANGES: Final = (Kind.UPDATE, Kind.DELETE, Kind.MERGE)
OPERATIONS_MAX: Final = 1_024
"""The most operations of one composed statement: so many block the event loop for 40 ms."""
CELLS_MAX: Final = 6_000
"""The most cells (rows times columns) that a composed statement reads or writes. One cell takes
some 10 µs, so composing blocks the event loop for some 60 ms at most."""
_KEYED_CHARS, _ARROW_BYTES, _INSERT_CHARS = 5, 40, 500
"""How many bytes of an operation are read in the time of one cell: of changes by key, of rows that
came as Arrow, of INSERTs. Measured."""


class Composing:
    """Makes one statement of several unlike operations on a table, with the same effect.

    ``peer_success``: the operations that are known to have succeeded on a peer.
    """

    def __init__(self, peer_success: PeerSuccess, limits: BatchLimits) -> None:
        self._peer_success = peer_success
        self._limits = limits
        self._columns: dict[str, Sequence[Column] | None] = {}
        self._unreadable: set[str] = set()
        self.definitions = 0
        """A count that rises whenever DDL may have changed the columns that are known here."""
        self.tried = False
        """True if texts were read to compose them since `begin`, which blocks the event loop."""

    def begin(self) -> None:
        """Allow texts to be read once more."""
        self.tried = False

    # -- tables ----------------------------------------------------------------------------

    def describe(self, table: str, columns: Sequence[Column] | None, definitions: int) -> None:
        """Note a table's columns. None: the table does not store rows exactly as they are given.

        Then nothing is composed for it. ``definitions``: the count as it was before the columns
        were read. If it has risen since, the columns are not used.
        """
        if definitions == self.definitions:
            self._columns[table] = columns
        self._unreadable.discard(table)

    def failed(self, table: str) -> None:
        """Note that Spark gave an error when a table's columns were read."""
        self._unreadable.add(table)

    def looked_for(self, table: str) -> bool:
        """True if this cluster has tried to read the table's columns, with or without success."""
        return self.described(table) or table in self._unreadable

    def described(self, table: str) -> bool:
        """True if `describe` was called for the table after the last change of a definition."""
        return table in self._columns

    def applied(self, operations: Iterable[Operation]) -> None:
        """Forget all tables' columns if these operations, applied here, may have changed some."""
        if any(op.exclusive or redefined(op) != NOTHING for op in operations):
            self._columns.clear()
            self._unreadable.clear()
            self.definitions += 1

    # -- operations ------------------------------------------------------------------------

    def spoken_of(self, offset: int) -> bool:
        """True if the log has a control record about an operation, such as a report of an error."""
        return self._peer_success.has_control_record(offset)

    def may_compose(self, offset: int, op: Operation, awaited: bool) -> bool:
        """True if an operation is known to have succeeded on a peer, and so may be composed.

        ``awaited``: a request waits for its result. Then an UPDATE, DELETE or MERGE is never
        composed: the request needs the number of changed rows.
        """
        if awaited and changes_keys(op):
            return False
        return self._peer_success.succeeded(offset) and isinstance(op.write, SqlText | ArrowRows)

    def fitting(self, tasks: Iterable[Task], more_than: int) -> Iterator[Operation]:
        """Yield the first operations of ``tasks``, as many as one statement may hold.

        Yield none if these are not more than ``more_than``. No more tasks are read than needed:
        mostly the first one already shows that nothing can be composed.
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
        """Return how many of the first ``operations`` run as one statement, and its text.

        The number is 0 if not even two can. ``bounded``: no more cells than CELLS_MAX.
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
    """Return the cost of reading an operation's text, in addition to its rows, in cells."""
    if changes_keys(op):
        return op.size_bytes // _KEYED_CHARS
    arrow = isinstance(op.write, ArrowRows)
    return op.size_bytes // (_ARROW_BYTES if arrow else _INSERT_CHARS)


def _stated(table: str, window: ComposedWindow, changes: Sequence[Change]) -> tuple[int, str]:
    """Return how many changes (at least two) fit one statement, and its text; 0 if none do."""
    while len(changes) > 1:
        if text := statement(table, window):
            return len(changes), text
        changes, window = changes[: len(changes) // 2], window.anew()
        for change in changes:
            window.take(change)
    return 0, ""


def unlike(op: Operation, key: BatchKey | None, before: BatchKey | None) -> bool:
    """True if an operation may be composed, but not combined with the one before on its table.

    ``key``: of the operation; ``before``: of the one before it. See `batch_key`.
    """
    if len(op.writes) != 1 or (key is None and not changes_keys(op)):
        return False
    return key is None or (before is not None and before.joined(key) is None)


def changes_keys(op: Operation) -> bool:
    """True if an operation may be a change of rows by their key: composing is made for these."""
    return op.kind in CHANGES and isinstance(op.write, SqlText)
