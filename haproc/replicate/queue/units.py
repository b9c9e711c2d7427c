"""What the schedule gives out to be run, and what it tells of what it has not given out yet."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from haproc.classify.model import Kind, OperationClass
from haproc.engine.statement import ArrowRows, SqlText
from haproc.replicate.queue.coalesce import combine
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import Write

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

    ``version`` is the mark's version: the last operation's offset. ``in_doubt`` says that an
    earlier incarnation may have run it. ``composed``: the statement that does what unlike ones do
    one after another. ``apart``: an earlier incarnation ran them as one statement, for which this
    one finds no text.
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
