"""A port on loopback that leads a job to a Spark Connect door, or client door, of the ring.

An unmodified PySpark has one address. This port leads to all doors, the own HAProc's first. While
the own door is closed, because its Spark is down or drained, connections go to the next door, and
the session goes on there. The relay only copies bytes. If the doors have TLS, the relay adds it, so
a job needs no certificates.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from haproc.config.model import Address, Config
from haproc.config.sections import is_wildcard
from haproc.config.tls import Certificates

HOST: Final = "127.0.0.1"
CONNECT_S: Final = 2.0
PIECE_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class DoorAddress:
    """A door's address.

    ``mine``: True for this HAProc's own door, whose certificate need not name loopback.
    """

    cluster: str
    host: str
    port: int
    mine: bool = False


def connect_doors(config: Config, me: str) -> list[DoorAddress]:
    """Return the ring's Spark Connect doors; this HAProc's own comes first."""
    found = ((each.name, each.connect) for each in config.clusters if each.connect is not None)
    return _doors(config, me, dict(found))


def client_doors(config: Config, me: str) -> list[DoorAddress]:
    """Return the ring's client doors; this HAProc's own comes first."""
    return _doors(config, me, {each.name: each.listen for each in config.clusters})


def _doors(config: Config, me: str, addresses: Mapping[str, Address]) -> list[DoorAddress]:
    found = []
    for name, address in sorted(addresses.items(), key=lambda each: each[0] != me):
        host, mine = address.host, name == me
        if is_wildcard(host):
            host = HOST if mine else config.cluster(name).peer.host
        found.append(DoorAddress(name, host, address.port, mine))
    return found


class Relay:
    """A port on loopback for one job; it leads connections to the first door that answers.

    ``doors`` returns the doors that probably work now, in order. ``certificates``: for doors with
    TLS, else None.
    """

    def __init__(
        self,
        doors: Callable[[], Sequence[DoorAddress]],
        certificates: Certificates | None = None,
    ) -> None:
        self._doors = doors
        self._certificates = certificates
        self._server: asyncio.Server | None = None
        self._closed = False
        self._open: dict[asyncio.Task[None], str] = {}
        self.port = 0

    async def start(self) -> None:
        """Begin to accept connections."""
        # Set before `start_serving`, which gives way to other tasks: if it is cancelled there,
        # `aclose` still finds the server.
        self._server = await asyncio.start_server(self._serve, HOST, 0, start_serving=False)
        self.port = self._server.sockets[0].getsockname()[1]
        if self._closed:
            self._server.close()
            return
        await self._server.start_serving()

    def check(self) -> None:
        """Close connections to doors that jobs should not use now: one may be frozen."""
        worth = {door.cluster for door in self._doors()}
        for task, cluster in list(self._open.items()):
            if cluster not in worth:
                task.cancel()

    async def aclose(self) -> None:
        """Close all connections, and accept no more."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _tls_of(self, door: DoorAddress) -> ssl.SSLContext | None:
        if self._certificates is None:
            return None
        now = self._certificates.now
        return now.own_relay if door.mine else now.relay

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        for door in self._doors():
            try:
                async with asyncio.timeout(CONNECT_S):
                    tls = self._tls_of(door)
                    there = await asyncio.open_connection(door.host, door.port, ssl=tls)
            except OSError:  # refused, no certificate of the ring, or no answer in time
                continue
            self._open[task] = door.cluster
            try:
                await _relay((reader, writer), there)
            except asyncio.CancelledError:
                pass  # the server's tasks may not be cancelled; this one ends anyway
            finally:
                del self._open[task]
                _abort(there[1])
            break
        _abort(writer)


@dataclass(frozen=True, slots=True)
class Relays:
    """The ports on loopback by which the jobs of one HAProc reach the ring.

    ``connect``: to Spark Connect doors; ``clients``: to client doors, only if these have TLS.
    """

    connect: Relay
    clients: Relay | None = None

    @property
    def _all(self) -> list[Relay]:
        return [each for each in (self.connect, self.clients) if each is not None]

    def servers(self, urls: Sequence[str]) -> Sequence[str]:
        """Return the client doors' URLs for a job; ``urls``: the result if there is no relay."""
        return urls if self.clients is None else [f"http://{HOST}:{self.clients.port}"]

    async def start(self) -> None:
        """Begin to accept connections."""
        for each in self._all:
            await each.start()

    def check(self) -> None:
        """Close connections to doors that jobs should not use now: one may be frozen."""
        for each in self._all:
            each.check()

    async def aclose(self) -> None:
        """Close all connections, and accept no more."""
        for each in self._all:
            await each.aclose()


_Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _relay(here: _Ends, there: _Ends) -> None:
    """Copy bytes in both directions until one end closes its connection."""
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
