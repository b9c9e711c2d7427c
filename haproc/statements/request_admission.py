"""Admission of requests: limits how many run, and how many bytes they take in memory.

A request that comes while all permits are taken waits in the wait queue: to be busy is no outage.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

from haproc.config.model import Config
from haproc.config.shares import Denied, Shares
from haproc.config.wait_queue import WaitQueue
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome, busy
from haproc.metrics import Metrics

LAST_WORD_S: Final = 0.5
"""How many seconds a request gets that comes while this process ends; chosen, not measured."""
WAITING_BYTES: Final = 8192
"""Bytes that a waiting request counts beside its body, so that the wait queue has a limit."""


class Held:
    """The resources of one request: its bytes in memory, and its body's file if it has one.

    They are released at the latest when the request ends.
    """

    def __init__(self, shares: Shares, user: str) -> None:
        self._shares = shares
        self._user = user
        self._bytes = 0
        self._others: list[Callable[[], None]] = []

    def keep(self, release: Callable[[], None]) -> None:
        """Let ``release`` be called when the resources are released."""
        self._others.append(release)

    def reserve_bytes(self, size: int) -> None:
        """Count bytes before the request takes them; raises RequestError if there is no room."""
        if why := self._shares.take(self._user, size):
            raise busy(f"{_whose(why, self._user)} as large as may be (limits.requests_bytes_max)")
        self._bytes += size

    def handed_over(self) -> Held:
        """Move all resources to a new `Held`, which may keep them longer; return it."""
        other = Held(self._shares, self._user)
        other._bytes, self._bytes = self._bytes, 0
        other._others, self._others = self._others, []
        return other

    def release(self) -> None:
        """Release all resources; a second call does nothing."""
        self._shares.give_back(self._user, self._bytes)
        self._bytes = 0
        while self._others:
            self._others.pop()()


class Permit:
    """A request's right to run, or its place in the wait queue.

    `leave` must be called once. A request that only waits for something returns the permit
    meanwhile: a write that is in the log, or a query whose cluster is behind.
    """

    def __init__(
        self, request_admission: RequestAdmission, user: str, turn: asyncio.Future[None] | None
    ) -> None:
        self._request_admission = request_admission
        self._user = user
        self._turn = turn
        self._rests = False
        self._kept = False

    async def reached(self, within_s: float = math.inf) -> float:
        """Wait until the request may run; return the seconds that this took.

        Raises RequestError if that takes longer than ``within_s``, or if this process ends; `leave`
        must be called then, too.
        """
        if self._turn is None:
            return 0.0
        began, within_s = time.monotonic(), min(within_s, self._request_admission.wait_s)
        if not await self._request_admission.turn_came(self._turn, within_s):
            raise busy(
                f"no permit for {self._user} became free in {within_s:g} s "
                "(limits.statements_max, limits.statement_queue_s)"
            )
        return time.monotonic() - began

    def rest(self) -> None:
        """Return the permit while the request only waits.

        The request keeps it if too many requests have returned theirs in this way.
        """
        if not self._rests:
            self._rests = self._request_admission.rest(self._user)

    async def resume(self, within_s: float) -> None:
        """Wait for a permit again; raises RequestError as `reached` does."""
        if self._rests:
            self._turn = self._request_admission.resume(self._user)
            self._rests = False
            await self.reached(within_s)

    def keep_until(self, task: asyncio.Task[Any]) -> None:
        """Keep the permit until ``task`` has ended, although the request has gone.

        Until then, `leave` does nothing; afterwards it is called.
        """

        def ended(task: asyncio.Task[Any]) -> None:
            if not task.cancelled():
                task.exception()  # retrieved, because asyncio would log it otherwise
            self._kept = False
            self.leave()

        self._kept = True
        task.add_done_callback(ended)

    def leave(self) -> None:
        """Return the permit, or leave the wait queue; does nothing while `keep_until` applies."""
        if not self._kept:
            self._request_admission.left(self._user, self._turn, rests=self._rests)


class RequestAdmission:
    """Gives requests their permits to run, and counts their bytes.

    A running request has a *permit*: a statement, rows, or the opening of a session. If all permits
    are taken, further requests wait in the wait queue, for a limited time, if there is room for
    their bytes. Requests *at rest* only wait: writes that are in the log, queries whose cluster is
    behind. They return their permits, unless too many requests are at rest. `answering` counts all
    requests that are not answered yet, so that no user takes all connections.
    """

    def __init__(self, config: Config, metrics: Metrics) -> None:
        limits = config.limits
        self._permits = Shares.of(limits.statements_max, config)
        self._at_rest = Shares.of(limits.writes_waiting_max, config)
        self._waiting = Shares.of(limits.connections_max, config)
        self._bytes = Shares.of(limits.requests_bytes_max, config)
        self.wait_s = limits.statement_queue_s
        self._wait_queue = WaitQueue(self._permits)
        self._idle = asyncio.Event()
        self._idle.set()
        self._ending = False
        self._ends: set[asyncio.Future[None]] = set()
        metrics.under_way(lambda: self.inside, lambda: self._wait_queue.length)

    @property
    def inside(self) -> int:
        """The number of requests that run or are at rest; those in the wait queue do not count."""
        return self._permits.taken + self._at_rest.taken

    def enter(self, user: str, *, waits: bool = True) -> Permit:
        """Return a `Permit`: the right to run, or a place in the wait queue.

        Raises RequestError if there is neither. ``waits``: False if the request must not wait. So
        it is for a request that has a permit of another HAProc: otherwise two HAProcs could wait
        for each other.
        """
        turn = self._take(user, waits=waits)
        self._changed()
        return Permit(self, user, turn)

    def _take(self, user: str, *, waits: bool) -> asyncio.Future[None] | None:
        """Take a permit and return None, or return a place in the wait queue.

        Raises RequestError if there is no place.
        """
        why = self._permits.denied(user)
        if why is None and not self._wait_queue.waits(user):
            self._permits.count(user, 1)
            return None
        return self._join(user, why or Denied.ALL_TAKEN, waits=waits)

    def _join(self, user: str, why: Denied, *, waits: bool) -> asyncio.Future[None]:
        if not waits or not self.wait_s:
            raise busy(f"{_whose(why, user)} as many as may be (limits.statements_max)")
        if full := self._bytes.take(user, WAITING_BYTES):
            raise busy(f"{_whose(full, user)} as large as may be (limits.requests_bytes_max)")
        turn = self._wait_queue.join(user)
        turn.add_done_callback(lambda _: self._bytes.give_back(user, WAITING_BYTES))
        return turn

    def rest(self, user: str) -> bool:
        """Take a permit back from a request that only waits; see `Permit.rest`.

        False, and the request keeps it, if too many requests are at rest.
        """
        if self._at_rest.take(user):
            return False
        self._permits.give_back(user)
        self._wait_queue.serve()
        self._changed()
        return True

    def resume(self, user: str) -> asyncio.Future[None] | None:
        """Give a request at rest a permit (None), or a place in the wait queue.

        See `Permit.resume`.
        """
        turn = self._take(user, waits=True)
        self._at_rest.give_back(user)
        return turn

    def left(self, user: str, turn: asyncio.Future[None] | None, *, rests: bool = False) -> None:
        """Take back a permit, or a place in the wait queue; see `Permit.leave`.

        The permit goes to the next request in the queue. ``rests``: True if the request is at rest.
        """
        if rests:
            self._at_rest.give_back(user)
        elif turn is None or turn.done():
            self._permits.give_back(user)
            self._wait_queue.serve()
        else:
            self._wait_queue.step_out(user, turn)
            turn.cancel()
        self._changed()

    @asynccontextmanager
    async def permit(self, user: str, *, waits: bool = True) -> AsyncIterator[None]:
        """Wait for a permit, and hold it in the context; see `enter`. Raises RequestError."""
        permit = self.enter(user, waits=waits)
        try:
            await permit.reached()
            yield
        finally:
            permit.leave()

    @contextmanager
    def answering(self, user: str) -> Iterator[Held]:
        """Count a request until it is answered; yield the object that holds its resources.

        Raises RequestError if the user, or all users, have too many such requests.
        """
        if why := self._waiting.take(user):
            raise busy(f"{_whose(why, user)} as many as may be (limits.connections_max)")
        held = Held(self._bytes, user)
        try:
            yield held
        finally:
            held.release()
            self._waiting.give_back(user)

    def _changed(self) -> None:
        if self.inside == 0:
            self._idle.set()
        else:
            self._idle.clear()

    def leave_all(self) -> None:
        """End all waits of requests with an error, as this process ends.

        Running statements may go on.
        """
        self._ending = True
        for end in self._ends:
            end.set_result(None)
        self._ends.clear()

    async def turn_came(self, turn: asyncio.Future[None], within_s: float) -> bool:
        """Wait for a place's turn in the wait queue; False if it has not come after ``within_s``.

        Raises RequestError if this process ends.
        """
        await self._until(turn, within_s)
        if not turn.done() and self._ending:
            raise stopped(WriteOutcome.NOT_SENT)
        return turn.done() and not turn.cancelled()

    async def wait_for(self, task: asyncio.Task[Any], timeout_s: float | None = None) -> bool:
        """Wait for the end of ``task``; False if it has not ended after ``timeout_s``.

        Raises RequestError if this process ends. The error shows the client how to go on: after a
        connection that just broke, it might send a write a second time.
        """
        if self._ending:  # a new request is refused, and should get the reason
            await asyncio.wait({task}, timeout=LAST_WORD_S)
        await self._until(task, timeout_s)
        if not task.done() and self._ending:
            raise stopped()
        return task.done()

    async def _until(self, waited: asyncio.Future[Any], timeout_s: float | None) -> None:
        """Wait for a future, until it is done, ``timeout_s`` is over, or this process ends."""
        if self._ending:
            return
        # A future for each wait: leaving a shared one takes a search through all its waiters.
        end = asyncio.get_running_loop().create_future()
        self._ends.add(end)
        try:
            await asyncio.wait(
                {waited, end}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            self._ends.discard(end)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request runs or is at rest; False after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True


def stopped(outcome: WriteOutcome = WriteOutcome.UNKNOWN) -> RequestError:
    """Return the error for a request that is not finished when this process ends."""
    return RequestError(
        FailureKind.AVAILABILITY,
        "this HAProc ends before the request does",
        error_class=ErrorClass.STOPPED,
        outcome=outcome,
        hint="ask the next HAProc with the same request_id",
    )


def _whose(why: Denied, user: str) -> str:
    if why is Denied.SHARE_TAKEN:
        return f"the requests of {user} under way here take limits.user_share and are"
    return "the requests under way here are"
