"""Operations of the queue, how far they have come, and the units in which they are run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from haproc.classify.model import Kind, OperationClass
from haproc.engine.statement import ArrowRows, SqlText
from haproc.replicate.queue.coalesce import BatchKey, combine
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import Write

# The units that the schedule gives out to run, and its facts about the tasks that still wait.


MARKER: Final = Operation(
    "", OperationClass.ASYNCHRONOUS, Kind.UNKNOWN, "", "", SqlText(""), tables_known=False
)
"""Stands where the log has a verification: a place in the order with nothing beside it."""


class Intent(Enum):
    """What must be durable before a unit starts."""

    NONE = auto()
    BATCH = auto()
    ALONE = auto()


@dataclass(frozen=True, slots=True)
class Unit:
    """One statement for the cluster: one operation, or several combined.

    ``version`` is the mark's version: the last operation's offset. ``in_doubt``: an earlier
    incarnation may have run it. ``composed``: the statement that does what unlike ones do one after
    another. ``apart``: an earlier incarnation ran them as one statement, for which this one finds
    no text.
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
        """Bytes of its rows, if they came as Arrow."""
        if not isinstance(self.operations[0].write, ArrowRows):
            return 0
        return sum(op.size_bytes for op in self.operations)

    def write(self) -> Write:
        """Return the statement to run; what stands for a computed one is in the log."""
        return SqlText(self.composed) if self.composed else combine(self.operations)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An operation of the queue.

    ``undecided``: it waits for its origin's decision; ``uncomputed``: for its rows.
    """

    offset: int
    op: Operation
    running: bool
    undecided: bool
    uncomputed: bool = False


class TaskState(Enum):
    """The progress of an operation."""

    WAITING = auto()
    RUNNING = auto()
    SPLIT = auto()
    """Taken out of a combined unit; it waits until the progress without that is durable."""
    COMPLETE = auto()


@dataclass(slots=True)
class Task:
    """An operation of the queue, and how far it has come.

    ``cells``: its rows times their columns.
    """

    offset: int
    op: Operation
    key: BatchKey | None
    rows: int
    """That it adds to a batch: counted when it comes, since a statement may be of thousands."""
    cells: int
    state: TaskState = TaskState.WAITING
    single: bool = False
    half: int | None = None
    """The last offset of the half of a failed unit that it belongs to: it runs with no others."""
    unlike: bool = False
    """True if the operation before it on its table is no INSERT that it can be combined with."""

    def become(self, state: TaskState) -> None:
        """Note how far it has come."""
        self.state = state

    def isolate(self) -> None:
        """Have it run alone."""
        self.single = True

    def split(self, half: int, *, alone: bool) -> None:
        """Take it out of a unit that failed, into the half of it that ends there."""
        self.state, self.half = TaskState.SPLIT, half
        self.single = self.single or alone
