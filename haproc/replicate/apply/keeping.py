"""Puts parts into the log, each while the next one is gathered.

They get there one after another, and whoever asks where they are waits for the last: what names
them is written behind them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TypeAlias

Keep: TypeAlias = Callable[[int, bytes], Awaitable[int]]
"""Makes a part durable, given its number, and returns where it is."""


class Keeping:
    """See the module. Used as a context, at whose end nothing is under way any more."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._places: list[int] = []
        self._under_way: asyncio.Future[int] | None = None

    async def __aenter__(self) -> Keeping:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)

    @property
    def empty(self) -> bool:
        """Whether there was no part so far."""
        return not self._places and self._under_way is None

    async def add(self, part: bytes) -> None:
        """Begin with a part once the one before is durable; raises what that came to."""
        await self._settle()
        self._under_way = asyncio.ensure_future(self._keep(len(self._places), part))

    async def places(self) -> tuple[int, ...]:
        """Return where the parts are, once all of them are durable; raises what that came to."""
        await self._settle()
        return tuple(self._places)

    async def _settle(self) -> None:
        if self._under_way is not None:
            place = await self._under_way
            self._under_way = None
            self._places.append(place)
