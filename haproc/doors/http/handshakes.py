"""A listener with TLS that counts a connection from its first moment, not from its handshake's end.

asyncio's own listeners hide a connection until its handshake is through, so a crowd that only
knocks would take the memory of as many connections as the system allows files. Here a connection
takes its place when it is accepted, as one without TLS does, and loses it to others by the same
rules (`haproc.doors.http.connections`). Each handshake has the certificates of its moment.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Final

from haproc.config.certificates import Certificates
from haproc.config.model import Address
from haproc.doors.http.connections import HEAD_S, Connections, ThrottledWarning

_ACCEPTED_AT_ONCE: Final = 64
"""So many connections in one turn of the loop; the others have the next one. Chosen."""
_FULL_PAUSE_S: Final = 1.0
"""As asyncio has it: the pause where the system has no file left for a connection."""


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
    """Accepts connections on its sockets until it is closed; used as an `asyncio.Server` is."""

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
        """Give the address up, and end handshakes: nothing was asked on these connections."""
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
    """One connection until it speaks TLS; then its place is that of a `Connection`."""

    is_expendable = True

    def __init__(self, server: TlsServer, accepted: socket.socket, peer: str) -> None:
        self._server = server
        self._socket = accepted
        self._peer = peer
        self._begun = False
        """The socket is a transport's."""
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Take a place and wait for the client, or end the connection where there is no place."""
        self._socket.setblocking(False)
        if not self._server.connections.places.take(self):
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
        self._server.connections.places.give_back(self)
        if not self._begun:
            self._socket.close()
