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
from haproc.failure import ErrorClass
from haproc.replicate.records.failures import Failure
from haproc.replicate.records.operation import Operation


class Status(StrEnum):
    """An operation's fate on this cluster."""

    APPLIED = "applied"
    FAILED = "failed"
    """It ran and met an application error."""
    REJECTED = "rejected"
    """Its origin decided against it; it never ran here, or had no effect."""
    EXPIRED = "expired"
    """It came too late to tell whether it is a repetition, and was passed over."""
    STALE = "stale"
    """What it rests on may have changed before its place in the order; it was passed over on every
    cluster, and does not count as an attempt of its request."""
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
STALE = Outcome(Status.STALE, assumed=True)
FOREIGN = Outcome(
    Status.REJECTED,
    failure=Failure(
        ErrorClass.REQUEST_ID_REUSED,
        "",
        "the request id was another user's when this request was first sent: use a new one",
    ),
    assumed=True,
)
"""It repeats a record that repeats another user's: the ids of old were everybody's."""


@dataclass(slots=True)
class Known:
    """An operation that this HAProc has read from the log."""

    offset: int
    operation: Operation
    outcome: Outcome | None = None
    resolved: asyncio.Event = field(default_factory=asyncio.Event)
    newest: int = 0
    """The offset of the newest copy."""


class Outcomes:
    """Outcomes by request and by offset; the oldest leave when the window moves on.

    A request is known by its user and its id (`Operation.key`).
    """

    def __init__(self, window_records: int) -> None:
        self._window_records = window_records
        self._by_key: dict[tuple[str, str], Known] = {}
        self._by_offset: dict[int, Known] = {}
        self._order: deque[tuple[int, Known]] = deque()
        self._arrivals: dict[tuple[str, str] | int, asyncio.Event] = {}

    def admit(self, offset: int, operation: Operation) -> Known:
        """Note an operation when it is first read."""
        known = Known(offset, operation, newest=offset)
        self._by_key[operation.key] = known
        self._note(known)
        return known

    def pass_over(self, offset: int, operation: Operation, outcome: Outcome) -> None:
        """Note a record that is no attempt of its request: only its place is remembered."""
        known = Known(offset, operation, outcome, newest=offset)
        known.resolved.set()
        self._note(known)

    def _note(self, known: Known) -> None:
        self._by_offset[known.offset] = known
        self._order.append((known.offset, known))
        self._forget(known.offset - self._window_records)
        for waited_for in (known.operation.key, known.offset):
            if arrival := self._arrivals.pop(waited_for, None):
                arrival.set()

    def repeated(self, offset: int, operation: Operation) -> None:
        """Note a copy: its request is remembered for as long as the window knows its id."""
        known = self._by_key.get(operation.key)
        if known is None:
            self.pass_over(offset, operation, FOREIGN)
            return
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
                if self._by_key.get(old.operation.key) is old:
                    del self._by_key[old.operation.key]
            self._order.popleft()

    def resolve(self, offset: int, outcome: Outcome) -> None:
        """Note what became of an operation; a later call corrects an earlier one."""
        known = self._by_offset.get(offset)
        if known is not None:
            known.outcome = outcome
            known.resolved.set()

    def find(self, key: tuple[str, str]) -> Known | None:
        """Return the operation of this user and id, if it is in the window."""
        return self._by_key.get(key)

    def at(self, offset: int) -> Known | None:
        """Return the operation at this offset, if it is in the window."""
        return self._by_offset.get(offset)

    async def arrival(self, key: tuple[str, str], offset: int | None) -> Known:
        """Wait until an attempt of the request has been read from the log.

        Or until the one at ``offset`` has, and counts for nothing; that one is returned then.
        """
        while (known := self._by_key.get(key) or self._at(offset)) is None:
            await self._arrivals.setdefault(key, asyncio.Event()).wait()
        return known

    async def arrival_at(self, offset: int) -> Known:
        """Wait until the operation at an offset has been read from the log."""
        while (known := self._by_offset.get(offset)) is None:
            await self._arrivals.setdefault(offset, asyncio.Event()).wait()
        return known

    def _at(self, offset: int | None) -> Known | None:
        return None if offset is None else self._by_offset.get(offset)

    async def outcome(self, known: Known) -> Outcome:
        """Wait until it is known what became of the operation."""
        await known.resolved.wait()
        assert known.outcome is not None
        return known.outcome
