"""What became of each operation on this cluster, and who waits for it.

Kept for the operations of the request-id window: a client that retries, here or after a restart,
gets the outcome of the first attempt.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from haproc.engine.interface import Applied
from haproc.replicate.operation import Failure, Operation


class Status(StrEnum):
    """An operation's fate on this cluster."""

    APPLIED = "applied"
    FAILED = "failed"
    """It ran and met an application error."""
    REJECTED = "rejected"
    """Its origin decided against it; it never ran here, or had no effect."""
    EXPIRED = "expired"
    """It came too late to tell whether it is a repetition, and was passed over."""
    SKIPPED = "skipped"
    """An operator had it passed over on this cluster; nobody is told this as its outcome."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``clusters`` says for a synchronous operation what the other clusters answered.

    ``assumed``: it is known only that it needs no running any more (done before a restart, or in
    doubt after a crash and found applied); not to be compared with other clusters' outcomes.
    """

    status: Status
    applied: Applied = field(default_factory=Applied)
    failure: Failure | None = None
    clusters: Mapping[str, str] = field(default_factory=dict)
    assumed: bool = False


DONE_BEFORE = Outcome(Status.APPLIED, assumed=True)
"""An operation that an earlier incarnation dealt with."""
EXPIRED = Outcome(Status.EXPIRED, assumed=True)


@dataclass(slots=True)
class Known:
    """An operation that this HAProc has read from the log."""

    offset: int
    operation: Operation
    outcome: Outcome | None = None
    resolved: asyncio.Event = field(default_factory=asyncio.Event)
    newest: int = 0
    """The offset of the newest copy."""


class Board:
    """Outcomes by request id and by offset; the oldest leave when the window moves on."""

    def __init__(self, window_records: int) -> None:
        self._window_records = window_records
        self._by_id: dict[str, Known] = {}
        self._by_offset: dict[int, Known] = {}
        self._order: deque[tuple[int, Known]] = deque()
        self._arrivals: dict[str, asyncio.Event] = {}

    def admit(self, offset: int, operation: Operation) -> Known:
        """Note an operation when it is first read."""
        known = Known(offset, operation, newest=offset)
        self._by_id[operation.id] = self._by_offset[offset] = known
        self._order.append((offset, known))
        self._forget(offset - self._window_records)
        if arrival := self._arrivals.pop(operation.id, None):
            arrival.set()
        return known

    def repeated(self, offset: int, operation_id: str) -> None:
        """Note a copy: its request is remembered for as long as the window knows its id."""
        if known := self._by_id.get(operation_id):
            known.newest = offset
            self._order.append((offset, known))
        self._forget(offset - self._window_records)

    def _forget(self, below: int) -> None:
        while self._order and self._order[0][0] < below:
            offset, old = self._order[0]
            if old.newest == offset:
                if old.outcome is None:
                    break
                del self._by_offset[old.offset]
                if self._by_id.get(old.operation.id) is old:
                    del self._by_id[old.operation.id]
            self._order.popleft()

    def resolve(self, offset: int, outcome: Outcome) -> None:
        """Note what became of an operation; a later call corrects an earlier one."""
        known = self._by_offset.get(offset)
        if known is not None:
            known.outcome = outcome
            known.resolved.set()

    def find(self, operation_id: str) -> Known | None:
        """Return the operation of this id, if it is in the window."""
        return self._by_id.get(operation_id)

    def at(self, offset: int) -> Known | None:
        """Return the operation at this offset, if it is in the window."""
        return self._by_offset.get(offset)

    async def arrival(self, operation_id: str) -> Known:
        """Wait until the operation has been read from the log."""
        while (known := self._by_id.get(operation_id)) is None:
            await self._arrivals.setdefault(operation_id, asyncio.Event()).wait()
        return known

    async def outcome(self, known: Known) -> Outcome:
        """Wait until it is known what became of the operation."""
        await known.resolved.wait()
        assert known.outcome is not None
        return known.outcome
