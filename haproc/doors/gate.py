"""How many requests may be under way at once."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any

from haproc.doors.errors import busy
from haproc.doors.metrics import Metrics


class Gate:
    """Counts requests; the one above the limit is refused with 429, never queued."""

    def __init__(self, requests_max: int, metrics: Metrics) -> None:
        self._requests_max = requests_max
        self._metrics = metrics
        self._idle = asyncio.Event()
        self._idle.set()
        self.inside = 0

    def enter(self) -> None:
        """Take a place; raises RequestError if there is none."""
        if self.inside >= self._requests_max:
            raise busy(f"{self._requests_max} requests are under way (limits.statements_max)")
        self.inside += 1
        self._idle.clear()
        self._metrics.under_way(self.inside)

    def leave(self) -> None:
        """Give the place back."""
        self.inside -= 1
        self._metrics.under_way(self.inside)
        if self.inside == 0:
            self._idle.set()

    def follow(self, task: asyncio.Task[Any]) -> None:
        """Count work that goes on without its request until the task ends."""
        self.inside += 1
        self._idle.clear()
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # nobody else asks for it, and asyncio would complain of that
        self.leave()

    def __enter__(self) -> None:
        self.enter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.leave()

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until nothing is under way (True) or the time is over (False)."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True
