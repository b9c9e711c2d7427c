"""Stores progress durably; those who ask while a commit is under way share the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Committer:
    """Runs ``commit`` whenever somebody waits for it, one at a time.

    ``commit`` reads the newest progress when it starts; it retries by itself and returns only
    when the progress is durable.
    """

    def __init__(self, commit: Callable[[], Awaitable[None]]) -> None:
        self._commit = commit
        self._waiting: list[asyncio.Future[None]] = []
        self._wanted = asyncio.Event()

    async def __call__(self) -> None:
        """Return when progress at least as new as now is durable."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._wanted.set()
        await future

    def soon(self) -> None:
        """Ask for a commit without waiting for it."""
        self._wanted.set()

    async def run(self) -> None:
        """Commit until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            waiting, self._waiting = self._waiting, []
            await self._commit()
            for future in waiting:
                if not future.done():
                    future.set_result(None)
