"""The log's end as it is after somebody asked for it; those who ask together share a call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class LogEnd:
    """See the module. A call answers only those who asked before it began."""

    def __init__(self, call: Callable[[], Awaitable[int]]) -> None:
        self._call = call
        self._current: asyncio.Task[int] | None = None
        self._next: asyncio.Task[int] | None = None

    async def read(self) -> int:
        """Return an end that the log had after this was called; raises what the call raises."""
        if self._next is None:
            self._next = asyncio.create_task(self._run(self._current))
            self._next.add_done_callback(_look_at)
        # Others wait for the same call: it goes on when one of them leaves.
        return await asyncio.shield(self._next)

    async def _run(self, before: asyncio.Task[int] | None) -> int:
        if before is not None:
            await asyncio.wait([before])
        self._current, self._next = self._next, None
        return await self._call()


def _look_at(task: asyncio.Task[int]) -> None:
    """Take note of a failure that nobody waits for any more; asyncio would complain of it."""
    if not task.cancelled():
        task.exception()
