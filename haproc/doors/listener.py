"""A listener that can be closed and opened again while its application lives on.

Closed means refused: the port is given up at once, idle keep-alive connections are closed, and
those with a request under way are closed once it is answered. The application and what it keeps
(running statements, results) outlive that.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from aiohttp import web

from haproc.config.model import Address

_LOG = logging.getLogger(__name__)

KEEPALIVE_S: Final = 75.0
"""An idle connection, or one that never sends a request, is closed after this."""
_BACKLOG: Final = 512
_HEADER_BYTES_MAX: Final = 16 << 10


class Listener:
    """One application's listener; closed until `open` is called."""

    def __init__(self, app: web.Application, address: Address, *, shutdown_s: float = 30.0) -> None:
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            keepalive_timeout=KEEPALIVE_S,
            shutdown_timeout=shutdown_s,
            max_line_size=_HEADER_BYTES_MAX,
            max_field_size=_HEADER_BYTES_MAX,
        )
        self._address = address
        self._site: web.TCPSite | None = None
        self._lock = asyncio.Lock()
        self._started = False

    @property
    def is_open(self) -> bool:
        """Whether connections are accepted."""
        return self._site is not None

    @property
    def port(self) -> int:
        """The port; where the configured one is 0, the one that was given while open."""
        return self._site.port if self._site is not None else self._address.port

    async def start(self) -> None:
        """Start the application without accepting connections."""
        if not self._started:
            await self._runner.setup()
            self._started = True

    async def open(self) -> None:
        """Accept connections; OSError if the port is taken. Opening twice is harmless."""
        async with self._lock:
            if self._site is not None:
                return
            await self.start()
            site = web.TCPSite(
                self._runner,
                self._address.host,
                self._address.port,
                backlog=_BACKLOG,
                reuse_address=True,
            )
            try:
                await site.start()
            except OSError:
                await site.stop()
                raise
            self._site = site

    async def close(self) -> None:
        """Refuse connections from now on; requests under way still get their answers."""
        async with self._lock:
            site, self._site = self._site, None
            if site is None:
                return
            await site.stop()
            server = self._runner.server
            if server is not None:
                server.pre_shutdown()

    async def aclose(self) -> None:
        """Close for good and end the application; waits for requests under way for a while."""
        await self.close()
        if self._started:
            await self._runner.cleanup()
            self._started = False
