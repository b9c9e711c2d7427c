"""TCP proxies that refuse, stall, drop and delay: one for each link between the ring's parts.

All run on one event loop in a separate thread. A link that stalls holds its bytes, in both
directions, and passes them on afterwards, like a network that was interrupted; one that refuses or
drops resets its connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.fault.torture.plan import Mode

T = TypeVar("T")
DELAY_S = 0.3
_CHUNK_BYTES = 1 << 16
_CALL_S = 10.0
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER with no time: closing sends RST."""


class Link:
    """A listening port in front of another; opened, changed and closed on the proxy's loop."""

    def __init__(self, name: str, port: int, target: int) -> None:
        self.name = name
        self.port = port
        self._target = target
        self._mode = Mode.PASS
        self._flows = asyncio.Event()
        self._flows.set()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen."""
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def set(self, mode: Mode) -> None:
        """Change the mode of the link, also for its connections."""
        self._mode = mode
        if mode in (Mode.REFUSE, Mode.DROP):
            if mode is Mode.REFUSE and self._server is not None:
                self._server.close()
                self._server = None
            self._reset_all()
        else:
            await self.open()
        if mode is Mode.DROP:
            await self.open()
        if mode is Mode.STALL:
            self._flows.clear()
        else:
            self._flows.set()

    async def close(self) -> None:
        """Stop listening and end all connections."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self._reset_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._connections.add(writer)
        try:
            if self._mode is not Mode.DROP:
                # A cancelled task would be reported by the stream's callback as an error.
                with contextlib.suppress(OSError, asyncio.CancelledError):
                    await self._forward(reader, writer)
        finally:
            self._connections.discard(writer)
            self._tasks.discard(task)
            _reset(writer)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flows.wait()
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._connections.add(back)
        try:
            pumps = (self._pump(reader, back), self._pump(there, writer))
            tasks = [asyncio.ensure_future(pump) for pump in pumps]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            self._connections.discard(back)
            _reset(back)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(_CHUNK_BYTES):
            if self._mode is Mode.DELAY:
                await asyncio.sleep(DELAY_S)
            await self._flows.wait()
            sink.write(data)
            await sink.drain()
        await self._flows.wait()
        with contextlib.suppress(OSError, RuntimeError):
            sink.write_eof()

    def _reset_all(self) -> None:
        for writer in list(self._connections):
            _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() != -1:
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


class Proxies:
    """All links, by name; call it from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._links: dict[str, Link] = {}
        self._thread.start()

    @property
    def names(self) -> list[str]:
        """The links in the order in which they were added."""
        return list(self._links)

    def add(self, name: str, port: int, target: int) -> None:
        """Open a link: a connection to ``port`` reaches ``target``."""

        async def add() -> None:
            link = Link(name, port, target)
            await link.open()
            self._links[name] = link

        self._call(add())

    def port(self, name: str) -> int:
        """Return the port of a link."""
        return self._links[name].port

    def set(self, name: str, mode: Mode) -> None:
        """Change the mode of a link."""
        self._call(self._links[name].set(mode))

    def heal(self) -> None:
        """Let everything pass."""
        for name in self._links:
            self.set(name, Mode.PASS)

    def close(self) -> None:
        """End all links and the thread."""
        if not self._thread.is_alive():
            return
        for link in self._links.values():
            self._call(link.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_S)
        self._loop.close()

    def _call(self, action: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(action, self._loop).result(_CALL_S)
