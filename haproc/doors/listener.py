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
from typing import Final, Protocol

from aiohttp import web

from haproc.config.model import Address

_LOG = logging.getLogger(__name__)

KEEPALIVE_S: Final = 75.0
"""An idle connection, or one that never sends a request, is closed after this."""
_BACKLOG: Final = 512
_HEADER_BYTES_MAX: Final = 16 << 10
_TURNS: Final = 6
"""Turns of the event loop in which a connection accepted before the port was given up is set up."""


class Front(Protocol):
    """What makes the protocols of connections in the application's place."""

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        ...

    def close(self) -> None:
        """Close the connections that were not handed to the application."""
        ...


class Listener:
    """One application's listener; closed until `open` is called.

    ``front``, if there is one, is asked for the protocol of each connection, and is given what
    makes the application's own.
    """

    def __init__(
        self,
        app: web.Application,
        address: Address,
        *,
        shutdown_s: float = 30.0,
        front: Callable[[Callable[[], asyncio.Protocol]], Front] | None = None,
    ) -> None:
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
        self.address = address
        """As configured."""
        self._make_front = front
        self._front: Front | None = None
        self._server: asyncio.Server | None = None
        self._lock = asyncio.Lock()
        self._started = False

    @property
    def is_open(self) -> bool:
        """Whether connections are accepted."""
        return self._server is not None

    @property
    def port(self) -> int:
        """The port; where the configured one is 0, the one that was given while open."""
        if self._server is None:
            return self.address.port
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Start the application without accepting connections."""
        if not self._started:
            await self._runner.setup()
            self._started = True

    async def open(self) -> None:
        """Accept connections; OSError if the port is taken. Opening twice is harmless."""
        async with self._lock:
            if self._server is not None:
                return
            await self.start()
            protocols = self._runner.server
            assert protocols is not None
            if self._make_front is not None:
                self._front = self._make_front(protocols)
            self._server = await asyncio.get_running_loop().create_server(
                self._front or protocols,
                self.address.host,
                self.address.port,
                backlog=_BACKLOG,
                reuse_address=True,
            )

    async def close(self) -> None:
        """Refuse connections from now on; requests under way still get their answers."""
        async with self._lock:
            listening, self._server = self._server, None
            if listening is None:
                return
            # asyncio forgets, open and unread, what it has accepted when its server is closed.
            for each in listening.sockets if isinstance(listening, asyncio.Server) else ():
                asyncio.get_running_loop().remove_reader(each.fileno())
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            listening.close()
            for _ in range(_TURNS):
                self._close_idle()
                await asyncio.sleep(0)

    def _close_idle(self) -> None:
        if self._front is not None:
            self._front.close()
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
        if self._server is None:
            response.force_close()
        return response

    async def aclose(self) -> None:
        """Close for good and end the application; waits for requests under way for a while."""
        await self.close()
        if self._started:
            await self._runner.cleanup()
            self._started = False
