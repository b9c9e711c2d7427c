"""The messages of one statement's answer, as they come.

Unlike gRPC's own call it outlives its reader. An interrupt that reaches Spark before tasks of the
statement run can be lost, though Spark says that it took it: another thread hands the tasks in
behind it (Spark 4.2.1), and they run to their end, known to nobody. So an answer that is read no
more is followed until Spark reports tasks, which it does every two seconds, and interrupted then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import grpc
import grpc.aio

from haproc.engine.tasks import Planned, Tasks

FOLLOWED_S_MAX: Final = 60.0
"""Longer than almost any planning. Chosen."""
_END: Final = object()


class SparkAnswer:
    """See the module. Reading raises grpc.aio.AioRpcError, also once the time is over."""

    def __init__(
        self,
        begin: Callable[[float], Any],
        timeout_s: float,
        tasks: Tasks,
        planned: Planned | None = None,
        *,
        raw: bool = False,
    ) -> None:
        """``begin`` starts the call, with a time limit; ``raw``: its messages are bytes.

        Until `end` the statement is one of the ``tasks``.
        """
        self._call = begin(timeout_s + FOLLOWED_S_MAX)
        self._messages = aiter(self._call)
        self._reading: asyncio.Future[Any] | None = None
        self._ends_at = asyncio.get_running_loop().time() + timeout_s
        self._tasks = tasks
        self._report = tasks.begin(planned)
        self._hear = self._report.hear_bytes if raw else self._report.hear

    def __aiter__(self) -> SparkAnswer:
        return self

    async def __anext__(self) -> Any:
        await asyncio.wait({self._next()}, timeout=self._left_s())
        return self._taken()

    async def follow(self, closing: asyncio.Event) -> bool:
        """Read on until tasks of the statement run; return whether it ended instead.

        Not for longer than a minute, nor once ``closing`` is set.
        """
        self._ends_at = asyncio.get_running_loop().time() + FOLLOWED_S_MAX
        closes = asyncio.ensure_future(closing.wait())
        try:
            while not (self._report.has_begun or closes.done()):
                waiting = {self._next(), closes}
                await asyncio.wait(
                    waiting, timeout=self._left_s(), return_when=asyncio.FIRST_COMPLETED
                )
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
        """End the call, ``answered`` or not. A statement that runs does so on.

        ``left``: it was given up, and its tasks may not have ended yet.
        """
        self._tasks.end(self._report, answered=answered, left=left)
        self._call.cancel()
        if self._reading is not None:
            self._reading.add_done_callback(_forget)

    def _next(self) -> asyncio.Future[Any]:
        """Return the read that is under way: whoever waits for it may go away."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
        return self._reading

    async def _read(self) -> Any:
        return await anext(self._messages, _END)

    def _left_s(self) -> float:
        return max(0.0, self._ends_at - asyncio.get_running_loop().time())

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
        message = reading.result()  # an error stays, and so does the end: the next read meets it
        if message is _END:
            raise StopAsyncIteration
        self._reading = None
        if message is not None:
            self._hear(message)
        return message


def _forget(reading: asyncio.Future[Any]) -> None:
    if not reading.cancelled():
        reading.exception()
