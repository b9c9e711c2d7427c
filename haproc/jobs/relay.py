"""A port on loopback that leads a job's PySpark to a Spark Connect door of the ring.

An unmodified PySpark has one address. This one stands for all doors, the own HAProc's first: while
that is closed, since its Spark is away or drained, connections go to the next one, and the session
goes on there. What is relayed is bytes; where the doors have TLS, it begins here.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from haproc.config.hosts import is_wildcard
from haproc.config.model import Config

HOST: Final = "127.0.0.1"
CONNECT_S: Final = 2.0
PIECE_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class DoorAddress:
    """A Spark Connect door, and whether it has TLS."""

    cluster: str
    host: str
    port: int
    tls: ssl.SSLContext | None = None


def doors_of(config: Config, me: str) -> list[DoorAddress]:
    """Return the ring's doors, the own one first; raises OSError for a bad certificate."""
    certificate = config.connect.ssl_certificate_file
    found = []
    for cluster in sorted(config.clusters, key=lambda each: each.name != me):
        if (address := cluster.connect) is None:
            continue
        mine = cluster.name == me
        host = address.host
        if is_wildcard(host):
            host = HOST if mine else cluster.peer.host
        tls = None
        if certificate is not None:
            tls = ssl.create_default_context(cafile=str(certificate))
            tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            tls.check_hostname = not mine  # its own certificate need not name the loopback
            tls.set_alpn_protocols(["h2"])
        found.append(DoorAddress(cluster.name, host, address.port, tls))
    return found


class Relay:
    """A port on loopback for one job. ``doors`` gives the doors worth trying now, in order."""

    def __init__(self, doors: Callable[[], Sequence[DoorAddress]]) -> None:
        self._doors = doors
        self._server: asyncio.Server | None = None
        self._closed = False
        self._open: dict[asyncio.Task[None], str] = {}
        self.port = 0

    async def start(self) -> None:
        """Listen."""
        # Known before it serves, which takes a turn: a cancellation there leaves nothing open.
        self._server = await asyncio.start_server(self._serve, HOST, 0, start_serving=False)
        self.port = self._server.sockets[0].getsockname()[1]
        if self._closed:
            self._server.close()
            return
        await self._server.start_serving()

    def check(self) -> None:
        """Break connections to doors that are not worth trying any more: one may be frozen."""
        worth = {door.cluster for door in self._doors()}
        for task, cluster in list(self._open.items()):
            if cluster not in worth:
                task.cancel()

    async def aclose(self) -> None:
        """Break all connections, and take no more."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        for door in self._doors():
            try:
                async with asyncio.timeout(CONNECT_S):
                    there = await asyncio.open_connection(door.host, door.port, ssl=door.tls)
            except OSError:  # refused, no certificate of the ring's, or no answer in time
                continue
            self._open[task] = door.cluster
            try:
                await _relay((reader, writer), there)
            except asyncio.CancelledError:
                pass  # the server's tasks may not be cancelled; this one ends all the same
            finally:
                del self._open[task]
                _abort(there[1])
            break
        _abort(writer)


_Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _relay(here: _Ends, there: _Ends) -> None:
    """Carry bytes both ways until one end is through."""
    ways = [
        asyncio.ensure_future(_carry(here[0], there[1])),
        asyncio.ensure_future(_carry(there[0], here[1])),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while piece := await reader.read(PIECE_BYTES):
            writer.write(piece)
            await writer.drain()


def _abort(writer: asyncio.StreamWriter) -> None:
    if not writer.transport.is_closing():
        writer.close()
