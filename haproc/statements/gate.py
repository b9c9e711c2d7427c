"""How many requests may be under way at once, and how much of them may lie in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from haproc.config.model import Config
from haproc.config.shares import Denied, Shares
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome, busy
from haproc.metrics import Metrics

LAST_WORD_S: Final = 0.5
"""For what comes when this process ends; chosen, not measured."""


class Held:
    """Bytes of one request in memory; who ends it gives them back."""

    def __init__(self, shares: Shares, user: str) -> None:
        self._shares = shares
        self._user = user
        self._bytes = 0

    def add(self, size: int) -> None:
        """Count bytes before they are taken in; raises RequestError if there is no room."""
        if why := self._shares.take(self._user, size):
            raise busy(f"{_whose(why, self._user)} as large as may be (limits.requests_bytes_max)")
        self._bytes += size

    def handed_over(self) -> Held:
        """Return what is held for somebody who keeps it longer; nothing is held here any more."""
        other = Held(self._shares, self._user)
        other._bytes, self._bytes = self._bytes, 0
        return other

    def release(self) -> None:
        """Give everything back; again is harmless."""
        self._shares.give_back(self._user, self._bytes)
        self._bytes = 0


class Gate:
    """Counts requests; the one above a limit is refused with 429, never queued.

    A *place* is for what runs: a statement, rows, a session that opens. *Waiting* counts whoever is
    answered at the moment, so that nobody waits on all connections.
    """

    def __init__(self, config: Config, metrics: Metrics) -> None:
        limits = config.limits
        self._places = Shares.of(limits.statements_max, config)
        self._waiting = Shares.of(limits.connections_max, config)
        self._bytes = Shares.of(limits.requests_bytes_max, config)
        self._metrics = metrics
        self._idle = asyncio.Event()
        self._idle.set()
        self._left: asyncio.Future[None] | None = None

    @property
    def inside(self) -> int:
        """How many places are taken."""
        return self._places.taken

    def enter(self, user: str) -> None:
        """Take a place; raises RequestError if there is none."""
        if why := self._places.take(user):
            raise busy(f"{_whose(why, user)} as many as may be (limits.statements_max)")
        self._changed()

    def leave(self, user: str) -> None:
        """Give the place back."""
        self._places.give_back(user)
        self._changed()

    @contextmanager
    def place(self, user: str) -> Iterator[None]:
        """Have a place for a while."""
        self.enter(user)
        try:
            yield
        finally:
            self.leave(user)

    @contextmanager
    def answering(self, user: str) -> Iterator[Held]:
        """Answer a request; what of it is in memory is counted in what this gives."""
        if why := self._waiting.take(user):
            raise busy(f"{_whose(why, user)} as many as may be (limits.connections_max)")
        held = Held(self._bytes, user)
        try:
            yield held
        finally:
            held.release()
            self._waiting.give_back(user)

    def follow(self, task: asyncio.Task[Any], user: str, held: Held | None = None) -> None:
        """Count work that goes on without its request until the task ends."""

        def ended(task: asyncio.Task[Any]) -> None:
            if not task.cancelled():
                task.exception()  # nobody else asks for it, and asyncio would complain of that
            if held is not None:
                held.release()
            self.leave(user)

        self._places.count(user, 1)
        self._changed()
        task.add_done_callback(ended)

    def _changed(self) -> None:
        self._metrics.under_way(self.inside)
        if self.inside == 0:
            self._idle.set()
        else:
            self._idle.clear()

    def leave_all(self) -> None:
        """Have everybody answered who waits: this process ends, and what runs may go on."""
        self._left = self._left or asyncio.get_running_loop().create_future()
        if not self._left.done():
            self._left.set_result(None)

    async def wait_for(self, task: asyncio.Task[Any], timeout_s: float | None = None) -> bool:
        """Wait for a task's end; False if the time is over, RequestError if this process ends.

        A client that only saw its connection break might send a write a second time.
        """
        self._left = self._left or asyncio.get_running_loop().create_future()
        if self._left.done():  # who comes now is refused, and should hear why
            await asyncio.wait({task}, timeout=LAST_WORD_S)
        waited = {task, self._left}
        await asyncio.wait(waited, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and self._left.done():
            raise stopped()
        return task.done()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing is under way (True) or the time is over (False)."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


def stopped() -> RequestError:
    """Return the error of a request that this process does not see to its end."""
    return RequestError(
        FailureKind.AVAILABILITY,
        "this HAProc ends before the request does",
        error_class=ErrorClass.STOPPED,
        outcome=WriteOutcome.UNKNOWN,
        hint="ask the next HAProc with the same request_id",
    )


def _whose(why: Denied, user: str) -> str:
    if why is Denied.SHARE_TAKEN:
        return f"the requests of {user} under way here take limits.user_share and are"
    return "the requests under way here are"
