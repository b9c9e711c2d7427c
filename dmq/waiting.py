"""Tasks that wait: for the log's end to pass an offset, or for a change of a key."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import Final

# Tasks that wait for the log's end to pass an offset.
#
# A wait is one future and one timer of the running loop; nothing here polls, and nothing runs while
# no task waits. The code that learns of a new end calls ``advance``.


class Waiters:
    """The tasks of one log handle that wait for new records; belongs to one event loop."""

    def __init__(self) -> None:
        self._end = 0
        # A dict, not a set: woken in the order in which they came, so that runs replay.
        self._waiting: dict[asyncio.Future[bool], int] = {}

    @property
    def end(self) -> int:
        """The highest end of the log that is known; the log never ends before it."""
        return self._end

    def __bool__(self) -> bool:
        return bool(self._waiting)

    async def wait(self, offset: int, timeout_s: float) -> bool:
        """Wait until the log's end is beyond ``offset`` (True), or the time is over (False)."""
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
        """Note the log's new end, and wake the tasks that waited for it."""
        if end <= self._end:
            return
        self._end = end
        for woken, offset in self._waiting.items():
            if offset < end and not woken.done():
                woken.set_result(True)

    def fail(self, error: Exception) -> None:
        """Make every waiting task raise ``error``."""
        for woken in self._waiting:
            if not woken.done():
                woken.set_exception(error)


def _time_over(woken: asyncio.Future[bool]) -> None:
    if not woken.done():
        woken.set_result(False)


# The newest changes of a key-value store, and the tasks that wait for one below a prefix.
#
# Only CHANGES_MAX are kept: a wait after an older revision returns at once, as if there were a
# change, so that no change is missed.


CHANGES_MAX: Final = 4096


class Changes:
    """The newest changes of a key-value store, and the tasks that wait for one.

    Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._waiters = Waiters()
        self._recent: deque[tuple[int, str]] = deque()
        self._forgotten = 0
        """The changes up to this revision are not in memory."""

    @property
    def revision(self) -> int:
        """The revision of the newest change that is known; 0 if none is known."""
        return max(0, self._waiters.end - 1)

    def __bool__(self) -> bool:
        """True if a task waits for a change."""
        return bool(self._waiters)

    def begin(self, revision: int) -> None:
        """Continue from this revision: the changes up to it are not in memory."""
        self._recent.clear()
        self._forgotten = revision
        self._waiters.advance(revision + 1)

    def note(self, revision: int, key: str) -> None:
        """Add the next change of the store; do nothing if its revision is known already."""
        if revision <= self.revision:
            return
        self._recent.append((revision, key))
        if len(self._recent) > CHANGES_MAX:
            self._forgotten = self._recent.popleft()[0]
        self._waiters.advance(revision + 1)

    def changed(self, prefix: str, after: int) -> bool:
        """True if a key that begins with ``prefix`` may have changed after revision ``after``."""
        if after < self._forgotten:
            return True
        for revision, key in reversed(self._recent):
            if revision <= after:
                return False
            if key.startswith(prefix):
                return True
        return False

    async def wait(self, prefix: str, after: int, timeout_s: float) -> bool:
        """Wait for a change below ``prefix`` after revision ``after``; False if time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not self.changed(prefix, after):
            # Waits for a revision beyond the newest, which is one below the end.
            if not await self._waiters.wait(self._waiters.end, deadline - loop.time()):
                return False
        return True

    def fail(self, error: Exception) -> None:
        """Make every waiting task raise ``error``."""
        self._waiters.fail(error)
