"""Wakes the tasks of one member when what they wait for may have become true."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class News:
    """See the module."""

    def __init__(self) -> None:
        self._moved = asyncio.Event()
        self._startable = asyncio.Event()

    def moved(self) -> None:
        """Say that something that is waited for may be true now."""
        self._moved.set()

    def changed(self) -> None:
        """Say so, and that something in the queue may be ready to start."""
        self._moved.set()
        self._startable.set()

    async def until(self, predicate: Callable[[], object]) -> None:
        """Return once the predicate holds; it is asked again whenever there are news."""
        while not predicate():
            self._moved.clear()
            await self._moved.wait()

    async def startable(self) -> None:
        """Wait until something may be ready to start; for one task alone."""
        await self._startable.wait()
        self._startable.clear()
