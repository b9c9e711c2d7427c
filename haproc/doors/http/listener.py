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
"""The connections accepted in one turn of the loop; the others follow in the next. Chosen."""
_FULL_PAUSE_S: Final = 1.0
"""The pause, as in asyncio, if the system has no file left for a connection."""


async def listen_with_tls(
    address: Address, backlog: int, connections: Connections, certificates: Certificates
) -> TlsServer:
    """Take the address; raises OSError. Nothing is accepted before `TlsServer.start_serving`."""
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
    """Accepts connections on its sockets until it is closed; used like an `asyncio.Server`."""

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
        """Release the address, and end handshakes: no request has come on these connections."""
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
    """One connection until its handshake is complete; then a `Connection` takes its place."""

    is_expendable = True

    def __init__(self, server: TlsServer, accepted: socket.socket, peer: str) -> None:
        self._server = server
        self._socket = accepted
        self._peer = peer
        self._begun = False
        """True once the socket belongs to a transport."""
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Take a place and wait for the client; without a place end the connection."""
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
"""Turns of the event loop that set up connections accepted before the port was released."""


_Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Listener:
    """One application's listener; closed until `open` is called.

    ``shortcut`` is tried before aiohttp (see `Connections`). At most ``connections_max``
    connections are open at a time. With ``certificates`` it speaks TLS only.
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
        """As configured."""
        self._shortcut = shortcut
        self._certificates = certificates
        self._server: asyncio.Server | TlsServer | None = None
        self._lock = asyncio.Lock()
        self._started = False

    @property
    def url(self) -> str:
        """The address for clients."""
        return f"{'http' if self._certificates is None else 'https'}://{self.address}"

    @property
    def is_open(self) -> bool:
        """True if connections are accepted."""
        return self._server is not None

    @property
    def port(self) -> int:
        """The port; while it is open, the actual one instead of a configured 0."""
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
        """Accept connections; raises OSError if the port is taken. Opening twice is harmless."""
        async with self._lock:
            if self._server is not None:
                return
            await self.start()
            connections = Connections(
                self._server_of(), self._permits, self._cluster, self._shortcut
            )
            self._server = await self._listen(connections)
            # Set before it serves, which takes a turn of the loop: a cancelled start can close it.
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
        """Refuse connections from now on; running requests still get their answers."""
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
        """Return the handler that also answers errors that aiohttp raises before the middleware."""

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
        """End the connection with the answer if the door has been closed."""
        response = await handler(request)
        if self._server is None:
            response.force_close()
        return response

    async def aclose(self) -> None:
        """Close for good and end the application; waits for running requests for a while."""
        await self.close()
        if self._started:
            await self._runner.cleanup()
            self._started = False


def _take_both_forms(app: web.Application) -> None:
    """Let every path also answer with a slash at its end: some clients send it.

    This is no redirect: a client may not repeat a POST's body.
    """
    known = {(route.method, r.canonical) for route in app.router.routes() if (r := route.resource)}
    for route in [*app.router.routes()]:
        path = route.resource.canonical if route.resource is not None else "/"
        if not path.endswith("/") and (route.method, path + "/") not in known:
            app.router.add_route(route.method, path + "/", route.handler)
