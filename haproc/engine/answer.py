"""The messages of one statement's answer, in the order of their arrival.

Unlike gRPC's own call, an answer can go on after its reader has left. An interrupt can be lost
although Spark confirms it: if it arrives before the statement's tasks run, another thread submits
the tasks after it (Spark 4.2.1). They run to their end, and no client knows of them. So an answer
without a reader is followed until Spark reports tasks (every two seconds). Then the statement is
interrupted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from haproc.engine.tasks import Planned, Tasks

FOLLOWED_S_MAX: Final = 60.0
"""The longest time for which an answer without a reader is followed: longer than almost any
planning. Chosen."""
AHEAD_MAX: Final = 8
"""The number of messages that are read ahead of the reader: a small result has as many (`select 1`:
7). A large result's message is read on demand, because memory would hold two. Chosen."""
_END: Final = object()


class SparkAnswer:
    """The answer to one statement, read message by message.

    Reading raises grpc.aio.AioRpcError, also when the statement's time is over.
    """

    def __init__(
        self,
        begin: Callable[[float], Any],
        timeout_s: float,
        tasks: Tasks,
        planned: Planned | None = None,
        *,
        raw: bool = False,
    ) -> None:
        """Begin the gRPC call by ``begin``, which takes a time limit in seconds.

        ``raw``: the messages are bytes, not parsed. Until `end`, ``tasks`` counts the statement as
        one that runs on the cluster.
        """
        self._call = begin(timeout_s + FOLLOWED_S_MAX)
        self._messages = aiter(self._call)
        self._loop = asyncio.get_running_loop()
        self._reading: asyncio.Future[Any] | None = None
        self._taken_count = 0
        self._waiter: asyncio.Future[None] | None = None
        """The future that a reader awaits until a message arrives or its time is over."""
        self._timer: asyncio.TimerHandle | None = None
        self._last_until(timeout_s)
        self._tasks = tasks
        self._report = tasks.begin(planned)
        self._receive = self._report.receive_bytes if raw else self._report.receive

    def __aiter__(self) -> SparkAnswer:
        return self

    async def __anext__(self) -> Any:
        await self._arrived(self._next())
        return self._taken()

    async def follow(self, closing: asyncio.Event) -> bool:
        """Read and drop messages until Spark reports that the statement's tasks run.

        Returns True only if the answer ended before. Stops after a minute, after an error, or when
        ``closing`` is set.
        """
        self._last_until(FOLLOWED_S_MAX)
        closes = self._loop.create_task(closing.wait())
        closes.add_done_callback(self._wake)
        try:
            while not (self._report.has_begun or closes.done()):
                await self._arrived(self._next(), closes)
                if not closes.done():
                    self._taken()
        except StopAsyncIteration:
            return True
        except grpc.aio.AioRpcError:
            return False
        finally:
            closes.cancel()
        return False

    def end(self, *, answered: bool, left: bool = False) -> None:
        """Cancel the gRPC call. A statement that still runs in Spark goes on there.

        ``answered``: its client has the whole answer. ``left``: nobody waits for the statement any
        more, and its tasks may still run.
        """
        self._tasks.end(self._report, answered=answered, left=left)
        if self._timer is not None:
            self._timer.cancel()
        self._call.cancel()
        if self._reading is not None:
            self._reading.add_done_callback(_forget)

    def _last_until(self, seconds: float) -> None:
        """Set the time limit of all reads. One timer serves them all, which costs less."""
        if self._timer is not None:
            self._timer.cancel()
        self._is_over = False
        self._timer = self._loop.call_later(seconds, self._time_is_over)

    def _time_is_over(self) -> None:
        self._is_over = True
        self._wake()

    def _next(self) -> asyncio.Future[Any]:
        """Return the future of the next message; a reader that is cancelled does not cancel it."""
        if self._reading is None:
            self._reading = self._loop.create_task(self._read())
            self._reading.add_done_callback(self._wake)
        return self._reading

    async def _read(self) -> Any:
        return await anext(self._messages, _END)

    async def _arrived(
        self, reading: asyncio.Future[Any], stops: asyncio.Future[Any] | None = None
    ) -> None:
        """Wait until ``reading`` is done, the time is over, or ``stops`` is done."""
        # A wake-up may be that of the read before: its reader can be quicker than its callback.
        while not (reading.done() or self._is_over or (stops is not None and stops.done())):
            self._waiter = self._loop.create_future()
            await self._waiter

    def _wake(self, _: object = None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _taken(self) -> Any:
        reading = self._reading
        assert reading is not None
        if not reading.done():
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.DEADLINE_EXCEEDED,
                grpc.aio.Metadata(),
                grpc.aio.Metadata(),
                details="Deadline Exceeded",
            )
        message = reading.result()  # an error and the end stay: the next read gets them again
        if message is _END:
            raise StopAsyncIteration
        self._reading = None
        self._taken_count += 1
        if self._taken_count < AHEAD_MAX:
            self._next()
        if message is not None:
            self._receive(message)
        return message


def _forget(reading: asyncio.Future[Any]) -> None:
    if not reading.cancelled():
        reading.exception()
