"""The client for asyncio: the same API as `haclient`, with ``await``.

async with haclient.aio.connect("http://a:8080,http://b:8080") as connection:
    cursor = await connection.execute("SELECT 1")
    print(await cursor.fetchall())
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from haclient.aio.connection import AsyncConnection
from haclient.aio.cursor import AsyncCursor
from haclient.settings import make_settings

__all__ = ["AsyncConnection", "AsyncCursor", "connect"]


def connect(servers: str | Iterable[str], **options: Any) -> AsyncConnection:
    """Return a connection to the ring (nothing is sent yet); options as of `haclient.connect`."""
    return AsyncConnection(make_settings(servers, **options))
