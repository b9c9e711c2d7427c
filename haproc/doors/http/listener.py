"""A listener that can be closed and opened again while its application lives on.

While it is closed, connections are refused: it releases the port at once, closes idle keep-alive
connections, and closes the others after their running request. The application and its data
(running statements, results) stay.

aiohttp's own way (`Server.pre_shutdown`) is not used: it stops reading connections without closing
them, until the application ends. A client that sends its next request on an idle connection would
wait until its deadline, and a body that is still arriving would never be complete.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from haproc.config.model import Address
from haproc.config.tls import Certificates
from haproc.doors.http.bodies import CLUSTER, as_request_error, error_response
from haproc.doors.http.connections import (
    CONNECTIONS_MAX,
    HEAD_S,
    Connection,
    ConnectionPermits,
    Connections,
    Shortcut,
    ThrottledWarning,
    no_shortcut,
)

# A listener with TLS that counts a connection from its acceptance, not from its handshake's end.
#
# asyncio's own listeners hide a connection until its handshake is complete, so many clients that
# only connect would take the memory of as many connections as the system allows files. Here a
# connection takes its place when it is accepted, as without TLS, and loses it by the same rules
# (`haproc.doors.http.connections`). Each handshake uses the present certificates.


_ACCEPTED_AT_ONCE: Final = 64
"""The most connections accepted in one turn of the event loop; others wait for the next. Chosen."""
_FULL_PAUSE_S: Final = 1.0
"""The pause, as in asyncio, if the system has no file descriptor left for a connection."""


async def listen_with_tls(
    address: Address, backlog: int, connections: Connections, certificates: Certificates
) -> TlsServer:
    """Reserve the address; raises OSError.

    `TlsServer.start_serving` begins to accept connections.
    """
    found = await asyncio.get_running_loop().getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    taken: list[socket.socket] = []
    try:
        for family, _, _, _, where in dict.fromkeys(found):
            made = socket.create_server(where, family=family, backlog=backlog)
            made.setblocking(False)
            taken.append(made)
    except BaseException:
        for each in taken:
            each.close()
        raise
    return TlsServer(taken, connections, certificates)


class TlsServer:
    """Accepts TLS connections on its sockets until it is closed; used like an `asyncio.Server`."""

    def __init__(
        self, sockets: list[socket.socket], connections: Connections, certificates: Certificates
    ) -> None:
        self.sockets = sockets
        self.connections = connections
        self.certificates = certificates
        self.under_way: set[Handshake] = set()
        self.failed = ThrottledWarning("no TLS with %s: %s")
        self._loop = asyncio.get_running_loop()

    async def start_serving(self) -> None:
        """Accept connections."""
        for each in self.sockets:
            self._loop.add_reader(each, self._accept, each)

    def close(self) -> None:
        """Release the address; end connections in their handshake: they have sent no request."""
        sockets, self.sockets = self.sockets, []
        for each in sockets:
            self._loop.remove_reader(each)
            each.close()
        for handshake in [*self.under_way]:
            handshake.force_close()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, where = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file is left
                self.failed.warn("any client", error)
                self._loop.remove_reader(listening)
                self._loop.call_later(_FULL_PAUSE_S, self._accept_again, listening)
                return
            Handshake(self, accepted, str(where[0])).begin()

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self.sockets:
            self._loop.add_reader(listening, self._accept, listening)


class Handshake:
    """A connection during its TLS handshake; after it a `Connection` takes its place."""

    is_expendable = True

    def __init__(self, server: TlsServer, accepted: socket.socket, peer: str) -> None:
        self._server = server
        self._socket = accepted
        self._peer = peer
        self._begun = False
        """True once the event loop's transport has the socket, and will close it."""
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Take a permit and wait for the client; without a permit close the connection."""
        self._socket.setblocking(False)
        if not self._server.connections.permits.take(self):
            self._socket.close()
            return
        self._server.under_way.add(self)
        self._task = asyncio.get_running_loop().create_task(self._secure())
        self._task.add_done_callback(self._ended)

    def force_close(self) -> None:
        """End the connection."""
        if self._task is not None:
            self._task.cancel()

    async def _secure(self) -> None:
        server, self._begun = self._server, True
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: server.connections.following(self),
                self._socket,
                ssl=server.certificates.now.server,
                ssl_handshake_timeout=HEAD_S,
            )
        except ssl.SSLError as error:
            why = getattr(error, "verify_message", "") or error.reason or "it failed"
            server.failed.warn(self._peer, why)
        except OSError:  # it is gone, or too slow
            return

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._server.under_way.discard(self)
        self._server.connections.permits.give_back(self)
        if not self._begun:
            self._socket.close()


_BACKLOG: Final = 512
_TURNS: Final = 6
"""The turns of the event loop in which connections are set up that were accepted before closing."""


_Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Listener:
    """The listener of one web application; closed until `open` is called.

    ``shortcut`` gets the received bytes before aiohttp (see `Connections`). At most
    ``connections_max`` connections are open at a time. With ``certificates`` it speaks TLS only.
    """

    def __init__(
        self,
        app: web.Application,
        address: Address,
        *,
        shutdown_s: float = 30.0,
        shortcut: Shortcut = no_shortcut,
        connections_max: int = CONNECTIONS_MAX,
        certificates: Certificates | None = None,
    ) -> None:
        app.middlewares.insert(0, self._last_answer)
        self._app = app
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=shutdown_s)
        self._cluster = app.get(CLUSTER, "")
        self._permits = ConnectionPermits(connections_max, self._cluster)
        self.address = address
        """The address in the configuration."""
        self._shortcut = shortcut
        self._certificates = certificates
        self._server: asyncio.Server | TlsServer | None = None
        self._lock = asyncio.Lock()
        self._started = False

    @property
    def url(self) -> str:
        """The address to which clients connect."""
        return f"{'http' if self._certificates is None else 'https'}://{self.address}"

    @property
    def is_open(self) -> bool:
        """True if connections are accepted."""
        return self._server is not None

    @property
    def port(self) -> int:
        """The port; if the configured one is 0: the port that is really open, while it is."""
        if self._server is None:
            return self.address.port
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Start the application without accepting connections."""
        if not self._started:
            _take_both_forms(self._app)
            await self._runner.setup()
            server = self._server_of()
            server.request_handler = self._with_errors(server.request_handler)
            self._started = True

    async def open(self) -> None:
        """Accept connections; OSError if the port is taken. No error if it is open already."""
        async with self._lock:
            if self._server is not None:
                return
            await self.start()
            connections = Connections(
                self._server_of(), self._permits, self._cluster, self._shortcut
            )
            self._server = await self._listen(connections)
            # Set before `start_serving`, which gives way to other tasks: if it is cancelled there,
            # `close` still finds the server.
            await self._server.start_serving()

    async def _listen(self, connections: Connections) -> asyncio.Server | TlsServer:
        if self._certificates is not None:
            return await listen_with_tls(self.address, _BACKLOG, connections, self._certificates)
        return await asyncio.get_running_loop().create_server(
            connections,
            self.address.host,
            self.address.port,
            backlog=_BACKLOG,
            reuse_address=True,
            start_serving=False,
        )

    async def close(self) -> None:
        """Refuse connections from now on; requests that run still get their answers."""
        async with self._lock:
            listening, self._server = self._server, None
            if listening is None:
                return
            # A closed asyncio server forgets accepted connections, unread and without closing them.
            for each in listening.sockets if isinstance(listening, asyncio.Server) else ():
                asyncio.get_running_loop().remove_reader(each.fileno())
            try:
                for _ in range(_TURNS):
                    await asyncio.sleep(0)
            finally:
                listening.close()
            for _ in range(_TURNS):
                self._close_idle()
                await asyncio.sleep(0)

    def _close_idle(self) -> None:
        for connection in self._server_of().connections:
            if isinstance(connection, Connection) and connection.is_idle:
                connection.force_close()

    def _server_of(self) -> web.Server:
        server = self._runner.server
        assert server is not None
        return server

    def _with_errors(self, handle: _Handler) -> _Handler:
        """Return a handler that also answers errors which aiohttp raises before the middleware."""

        async def handled(request: web.BaseRequest) -> web.StreamResponse:
            try:
                return await handle(request)
            except web.HTTPException as refused:
                response = error_response(as_request_error(refused, request.method), self._cluster)
                response.force_close()
                return response

        return handled

    @web.middleware
    async def _last_answer(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Let an answer be the last one on its connection if the listener was closed meanwhile."""
        response = await handler(request)
        if self._server is None:
            response.force_close()
        return response

    async def aclose(self) -> None:
        """Close for good and end the application; wait for requests that run, but not for ever."""
        await self.close()
        if self._started:
            await self._runner.cleanup()
            self._started = False


def _take_both_forms(app: web.Application) -> None:
    """Let every path be used with a slash at its end as well: some clients send one."""
    known = {(route.method, r.canonical) for route in app.router.routes() if (r := route.resource)}
    for route in [*app.router.routes()]:
        path = route.resource.canonical if route.resource is not None else "/"
        if not path.endswith("/") and (route.method, path + "/") not in known:
            app.router.add_route(route.method, path + "/", route.handler)
