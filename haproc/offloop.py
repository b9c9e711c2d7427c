"""Work that takes long for large things only, kept off the event loop then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

LARGE_BYTES: Final = 65_536
"""Beyond, a thread costs little beside what it does. Chosen."""

P = ParamSpec("P")
T = TypeVar("T")


async def by_size(
    size_bytes: int, make: Callable[P, T], *arguments: P.args, **named: P.kwargs
) -> T:
    """Return the result of ``make`` for so many bytes; for many, it runs in a thread."""
    if size_bytes > LARGE_BYTES:
        return await asyncio.to_thread(make, *arguments, **named)
    return make(*arguments, **named)
