"""The newest changes of a key-value store, and the tasks that wait for one below a prefix.

Only so many are remembered: whoever waits after an older revision is told at once that there may
have been a change, so that none is ever missed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from dmq.waiters import Waiters

CHANGES_MAX: Final = 4096


class Changes:
    """What one handle heard of; belongs to one event loop."""

    def __init__(self) -> None:
        self._waiters = Waiters()
        self._recent: deque[tuple[int, str]] = deque()
        self._forgotten = 0
        """Changes up to this revision are not remembered one by one."""

    @property
    def revision(self) -> int:
        """The highest revision heard of; 0 if there is none."""
        return max(0, self._waiters.end - 1)

    def __bool__(self) -> bool:
        """Whether anybody waits."""
        return bool(self._waiters)

    def begin(self, revision: int) -> None:
        """Go on from here: what was changed up to this revision is not known one by one."""
        self._recent.clear()
        self._forgotten = revision
        self._waiters.advance(revision + 1)

    def note(self, revision: int, key: str) -> None:
        """Take in the next change; one at a revision that was heard of already is left out."""
        if revision <= self.revision:
            return
        self._recent.append((revision, key))
        if len(self._recent) > CHANGES_MAX:
            self._forgotten = self._recent.popleft()[0]
        self._waiters.advance(revision + 1)

    def heard(self, prefix: str, after: int) -> bool:
        """Whether there may have been a change below this prefix after this revision."""
        if after < self._forgotten:
            return True
        for revision, key in reversed(self._recent):
            if revision <= after:
                return False
            if key.startswith(prefix):
                return True
        return False

    async def wait(self, prefix: str, after: int, timeout_s: float) -> bool:
        """See KeyValueStore.wait; hears of nothing but what is noted meanwhile."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not self.heard(prefix, after):
            # Waits for a revision beyond the newest, which is one below the end.
            if not await self._waiters.wait(self._waiters.end, deadline - loop.time()):
                return False
        return True

    def fail(self, error: Exception) -> None:
        """Make every wait raise this error."""
        self._waiters.fail(error)
