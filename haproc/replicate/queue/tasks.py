"""An operation of the queue, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from haproc.replicate.queue.coalesce import BatchKey
from haproc.replicate.records.operation import Operation


class TaskState(Enum):
    """How far an operation has come."""

    WAITING = auto()
    RUNNING = auto()
    SPLIT = auto()
    """Taken out of a combined unit; it waits until the progress without that is durable."""
    COMPLETE = auto()


@dataclass(slots=True)
class Task:
    """See the module. ``cells``: its rows times their columns."""

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
    """What stands before it on its table is no INSERT that it may be combined with as it is."""

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
