"""The first decision on each synchronous operation, as the log has it, and who waits for it."""

from __future__ import annotations

import asyncio

from haproc.replicate.records.failures import ApplicationFailure
from haproc.replicate.records.operation import DecisionKind


class Decisions:
    """The first decision on each synchronous operation, as the log has it."""

    def __init__(self) -> None:
        self._first: dict[int, DecisionKind] = {}
        self._failures: dict[int, ApplicationFailure] = {}
        self._waiting: dict[int, asyncio.Event] = {}

    def see(
        self, offset: int, verdict: DecisionKind, failure: ApplicationFailure | None = None
    ) -> bool:
        """Note a decision; False if it is not the first on this operation."""
        if offset in self._first:
            return False
        self._first[offset] = verdict
        if failure is not None:
            self._failures[offset] = failure
        if event := self._waiting.pop(offset, None):
            event.set()
        return True

    def get(self, offset: int) -> DecisionKind | None:
        """Return the decision, if there is one yet."""
        return self._first.get(offset)

    def failure(self, offset: int) -> ApplicationFailure | None:
        """Return why an operation was rejected, if it was and somebody said why."""
        return self._failures.get(offset)

    def forget(self, below: int) -> None:
        """Forget decisions on operations that nobody asks about any more."""
        if self._first and next(iter(self._first)) < below:
            self._first = {o: verdict for o, verdict in self._first.items() if o >= below}
            self._failures = {o: failure for o, failure in self._failures.items() if o >= below}

    async def wait(self, offset: int) -> DecisionKind:
        """Wait for the decision."""
        while offset not in self._first:
            await self._waiting.setdefault(offset, asyncio.Event()).wait()
        return self._first[offset]
