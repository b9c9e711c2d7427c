"""Tasks that wait for the log's end to pass an offset.

A wait is one future and one timer of the running loop; nothing here polls, and nothing runs while
nobody waits. Whoever learns of a new end calls ``advance``.
"""

from __future__ import annotations

import asyncio
import math


class Waiters:
    """The waits of one log handle; belongs to one event loop."""

    def __init__(self) -> None:
        self._end = 0
        # A dict, not a set: woken in the order in which they came, so that runs replay.
        self._waiting: dict[asyncio.Future[bool], int] = {}

    @property
    def end(self) -> int:
        """The highest end heard of so far; the log never ends before it."""
        return self._end

    def __bool__(self) -> bool:
        return bool(self._waiting)

    async def wait(self, offset: int, timeout_s: float) -> bool:
        """Wait until the end is beyond ``offset`` (True) or the time is over (False)."""
        if self._end > offset:
            return True
        if timeout_s <= 0:
            return False
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()
        self._waiting[woken] = offset
        timer = None if math.isinf(timeout_s) else loop.call_later(timeout_s, _time_over, woken)
        try:
            return await woken
        finally:
            self._waiting.pop(woken, None)
            if timer is not None:
                timer.cancel()

    def advance(self, end: int) -> None:
        """Wake every wait that this end fulfils."""
        if end <= self._end:
            return
        self._end = end
        for woken, offset in self._waiting.items():
            if offset < end and not woken.done():
                woken.set_result(True)

    def fail(self, error: Exception) -> None:
        """Make every wait raise this error."""
        for woken in self._waiting:
            if not woken.done():
                woken.set_exception(error)


def _time_over(woken: asyncio.Future[bool]) -> None:
    if not woken.done():
        woken.set_result(False)
