"""A listener that can be closed and opened again while its application lives on.

Closed means refused: the port is given up at once, idle keep-alive connections are closed, and
those with a request under way are closed once it is answered. The application and what it keeps
(running statements, results) outlive that.

aiohttp's own way to do this (`Server.pre_shutdown`) is not used: it makes connections deaf without
closing them, until the application ends. A client that sends its next request on one that was idle
would wait until its deadline, and a body that is still arriving would never be complete.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from haproc.config.model import Address

_LOG = logging.getLogger(__name__)

KEEPALIVE_S: Final = 75.0
"""An idle connection, or one that never sends a request, is closed after this."""
_BACKLOG: Final = 512
_HEADER_BYTES_MAX: Final = 16 << 10
_TURNS: Final = 6
"""Turns of the event loop in which a connection accepted before the port was given up is set up."""


class Listener:
    """One application's listener; closed until `open` is called."""

    def __init__(self, app: web.Application, address: Address, *, shutdown_s: float = 30.0) -> None:
        app.middlewares.insert(0, self._last_answer)
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
            # asyncio forgets, open and unread, what it has accepted when its server is closed.
            server = site._server
            for listening in server.sockets if isinstance(server, asyncio.Server) else ():
                asyncio.get_running_loop().remove_reader(listening.fileno())
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            await site.stop()
            for _ in range(_TURNS):
                self._close_idle()
                await asyncio.sleep(0)

    def _close_idle(self) -> None:
        server = self._runner.server
        for connection in server.connections if server is not None else ():
            waiter = connection._waiter  # it waits for a request, and none has come
            if waiter is not None and not waiter.done():
                connection.force_close()

    @web.middleware
    async def _last_answer(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """End the connection with the answer if the door has been closed."""
        response = await handler(request)
        if self._site is None:
            response.force_close()
        return response

    async def aclose(self) -> None:
        """Close for good and end the application; waits for requests under way for a while."""
        await self.close()
        if self._started:
            await self._runner.cleanup()
            self._started = False
