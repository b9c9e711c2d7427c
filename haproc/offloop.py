"""Runs work outside the event loop if its data is large."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

LARGE_BYTES: Final = 65_536
"""Above this size, a thread costs little compared with its work. Chosen."""

P = ParamSpec("P")
T = TypeVar("T")


async def by_size(
    size_bytes: int, make: Callable[P, T], *arguments: P.args, **named: P.kwargs
) -> T:
    """Return the result of ``make``; it runs in a thread if ``size_bytes`` is large."""
    if size_bytes > LARGE_BYTES:
        return await asyncio.to_thread(make, *arguments, **named)
    return make(*arguments, **named)
