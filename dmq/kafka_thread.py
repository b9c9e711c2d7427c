"""Threads for calls that block.

kafka-python has no asyncio, and nearly everything it does may wait for a broker: so each of its
clients lives on one `Worker`, a daemon thread that runs what it is given, one call after another.
The event loop waits for the answer with a deadline of its own: a call that hangs keeps its thread,
never the loop, and one whose caller gave up before it began is not run at all. The threads are
daemons because a call that waits for a dead broker must not keep the process from ending.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from dmq.errors import LogUnavailableError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Call:
    work: Callable[[], Any]
    answer: asyncio.Future[Any]


class Worker:
    """One daemon thread, started with its first call; belongs to one event loop."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy_since: float | None = None

    @property
    def busy_s(self) -> float:
        """How long the call under way has been running; 0 if there is none."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    async def call(self, work: Callable[[], T], timeout_s: float, doing: str) -> T:
        """Run this on the thread and return its result.

        Raises LogUnavailableError if it takes longer; it may still be under way then.
        """
        answer: asyncio.Future[T] = self._loop.create_future()
        self._start()
        self._calls.put(_Call(work, answer))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError as error:
            raise LogUnavailableError(f"{doing}: no answer within {timeout_s:g} s") from error

    def stop(self) -> None:
        """Let the thread end after what it was given so far."""
        self._calls.put(None)

    async def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; False if it did not come in time."""
        deadline = self._loop.time() + timeout_s
        while self._thread is not None and self._thread.is_alive():
            if self._loop.time() >= deadline:
                return False
            await asyncio.sleep(0.005)
        return True

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            if call.answer.done():
                continue  # Nobody waits for it any more.
            self._busy_since = time.monotonic()
            try:
                result = call.work()
            except BaseException as error:
                self._deliver(_fail, call.answer, error)
            else:
                self._deliver(_succeed, call.answer, result)
            self._busy_since = None
            del call

    def _deliver(self, how: Callable[..., None], *arguments: object) -> None:
        deliver(self._loop, how, *arguments)


def deliver(loop: asyncio.AbstractEventLoop, how: Callable[..., None], *arguments: object) -> None:
    """Call this on the loop, from any thread; a loop that is closed has nobody waiting."""
    try:
        loop.call_soon_threadsafe(how, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _succeed(answer: asyncio.Future[object], result: object) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[object], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)
