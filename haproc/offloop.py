"""Runs work outside asyncio's event loop if its data is large."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

LARGE_BYTES: Final = 65_536
"""Data above this size is worked on in a thread: starting one costs little beside that. Chosen."""

P = ParamSpec("P")
T = TypeVar("T")


async def by_size(
    size_bytes: int, make: Callable[P, T], *arguments: P.args, **named: P.kwargs
) -> T:
    """Call ``make`` with the arguments and return its result.

    It runs in a thread if ``size_bytes`` is above LARGE_BYTES, else in the event loop.
    """
    if size_bytes > LARGE_BYTES:
        return await asyncio.to_thread(make, *arguments, **named)
    return make(*arguments, **named)
