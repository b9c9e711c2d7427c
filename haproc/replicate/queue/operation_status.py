"""The position of an operation in a cluster's queue, and the actions an operator may take.

Values in, values out. The same functions decide which actions are shown and which are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from haproc.replicate.queue.units import Unfinished

SKIPPABLE_AFTER_ATTEMPTS: Final = 3
"""After so many failures the queue's first operation may be skipped, though it is not STUCK yet."""


class Position(StrEnum):
    """The present position of an operation on a cluster."""

    QUEUED = "queued"
    RUNNING = "running"
    BLOCKED = "blocked"
    """It waits for an earlier operation that touches the same tables."""
    UNDECIDED = "waiting for decision"
    """It waits for the decision of its origin, which tries it first."""
    UNCOMPUTED = "waiting for its rows"
    """The log does not have the rows of its query yet."""
    FAILING = "failing"
    """It failed, and is tried again."""
    STUCK = "stuck"
    """It failed so often that the cluster is STUCK because of it."""
    DIFFERENT = "another outcome"
    """It ended differently here than on other clusters; nothing after it is applied."""
    DONE = "done"


@dataclass(frozen=True, slots=True)
class OperationStatus:
    """The status of an operation on a cluster.

    ``together``: the first and last offset of the combined statement that it is part of. ``head``:
    True if it is the first of the queue.
    """

    position: Position
    blocked_by: int | None = None
    together: tuple[int, int] | None = None
    attempts: int = 0
    error: str = ""
    head: bool = False


@dataclass(frozen=True, slots=True)
class Advice:
    """Whether an operator's action is possible: its effect, or the reason why not (``text``)."""

    allowed: bool
    text: str


_PATIENCE: Final = {
    Position.QUEUED: "it has not been reached yet",
    Position.RUNNING: "it runs",
    Position.BLOCKED: "it waits for the operation that blocks it; look at that one",
    Position.UNDECIDED: "it waits for its origin's decision; if the origin stays silent, another "
    "cluster decides",
    Position.UNCOMPUTED: "it waits for the rows that its query gives; if the cluster that runs it "
    "stays silent or cannot, another one does, and if none can, it is rejected everywhere",
    Position.DONE: "it is done here",
}


def retry_advice(status: OperationStatus) -> Advice:
    """Say whether the operation may be tried again at once, and what that does."""
    if status.position in _PATIENCE:
        return Advice(False, f"nothing to retry: {_PATIENCE[status.position]}")
    if status.position is Position.DIFFERENT:
        return Advice(False, "nothing to retry: it has an outcome; a skip lets the cluster go on")
    if status.together is not None:
        first, last = status.together
        return Advice(
            True,
            f"it is part of one statement with offsets {first} to {last}: they are taken apart and "
            "tried one by one at once, so that the one that fails shows itself",
        )
    return Advice(True, "it is tried at once instead of after a pause; its failures count anew")


def skip_advice(status: OperationStatus) -> Advice:
    """Say whether the operation may be skipped on this cluster, and what that does."""
    position = status.position
    if position in _PATIENCE:
        return Advice(False, f"it cannot be skipped: {_PATIENCE[position]}")
    if position is Position.DIFFERENT:
        return Advice(
            True,
            "its outcome here stays, and the cluster goes on with its queue. It is DIVERGED and "
            "serves nobody until a verification finds its tables equal to the others'",
        )
    if status.together is not None:
        return Advice(False, "it runs as one statement with others: retry takes them apart first")
    tried = status.head and status.attempts >= SKIPPABLE_AFTER_ATTEMPTS
    if position is not Position.STUCK and not tried:
        return Advice(
            False,
            f"it cannot be skipped yet: it failed {status.attempts} times and is tried again",
        )
    return Advice(
        True,
        "it is never applied here, unless a failed attempt turns out to have been committed; then "
        "it is done. The cluster goes on with its queue, but is DIVERGED and serves nobody until "
        "its tables are mended and a verification finds them equal to the others'",
    )


def revoke_advice(status: OperationStatus) -> Advice:
    """Say whether the operation may be revoked on all clusters, and what that does."""
    if status.position in (Position.DIFFERENT, Position.DONE):
        return Advice(False, "it cannot be taken back: it has an outcome here")
    if status.position is Position.UNCOMPUTED:
        return Advice(
            True, "it is rejected everywhere at once, unless its rows get into the log before that"
        )
    return Advice(
        True,
        "every member stops it, if it runs there, and reports in the log that it has not committed "
        "it. Then it is rejected everywhere, and nobody is DIVERGED. If one has committed it, it "
        "stands, and those that stopped it run it again",
    )


def blockers(queue: Iterable[Unfinished]) -> Iterable[tuple[Unfinished, int | None]]:
    """Yield each operation of a queue, and the offset of the first one that it must wait for.

    None instead of an offset if it waits for none.
    """
    head: int | None = None
    plain: int | None = None
    exclusive: int | None = None
    writers: dict[str, int] = {}
    readers: dict[str, int] = {}
    for each in queue:
        op, offset = each.op, each.offset
        before = [writers[table] for table in op.reads | op.writes if table in writers]
        before += [readers[table] for table in op.writes if table in readers]
        if op.exclusive:
            # DDL that names its tables does not wait for computations of other tables.
            first = plain if op.named else head
            before = [*(before if op.named else []), *([] if first is None else [first])]
            exclusive = offset if exclusive is None else exclusive
        else:
            before += [exclusive] if exclusive is not None else []
        yield each, min(before, default=None)
        for table in op.writes:
            writers.setdefault(table, offset)
        for table in op.reads:
            readers.setdefault(table, offset)
        head = offset if head is None else head
        plain = offset if plain is None and not op.beside else plain
