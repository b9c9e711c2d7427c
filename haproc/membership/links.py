"""Lines to the peers for heartbeats and reports: kept connections on which prepared requests go.

Twenty heartbeats a second are too many for a general HTTP client, so each line writes the bytes of
a request and only counts the answers, of which the good one is always the same. Several requests
may be on their way. A peer that leaves a whole window of requests unanswered is connected to anew.
Nothing here waits, and nothing raises: what does not arrive is missed by the receiver.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import Final, cast

from dmq import Json
from haproc.config.model import Address, Config, Membership
from haproc.membership.roster import Neighbour

logger = logging.getLogger(__name__)

HEARTBEAT_PATH: Final = "/heartbeat"
REPORT_PATH: Final = "/reportlag"
TAKEN: Final = b"HTTP/1.1 204 No Content\r\n\r\n"
"""The answer to a heartbeat or a report, as the shortcut gives it."""


def head(path: str, secret: str) -> bytes:
    """Return how each request begins; the host and the length of the body follow."""
    return (
        f"POST {path} HTTP/1.1\r\nAuthorization: Bearer {secret}\r\n"
        "Content-Type: application/json\r\n"
    ).encode()


class Links:
    """The lines to all peers of one HAProc; close them with ``aclose``."""

    def __init__(self, config: Config, me: str) -> None:
        self._me = me
        self._rules = config.membership
        self._links: dict[str, _Link] = {}
        self.follow(config.clusters)
        self._heads = {path: head(path, config.secret) for path in (HEARTBEAT_PATH, REPORT_PATH)}

    def follow(self, members: Iterable[Neighbour]) -> None:
        """Keep lines to these from now on."""
        wanted = {each.name: each.peer for each in members if each.name != self._me}
        for name, link in tuple(self._links.items()):
            if wanted.get(name) != link.address:
                self._links.pop(name).close()
        for name, address in wanted.items():
            if name not in self._links:
                self._links[name] = _Link(name, address, self._rules)

    def send(self, path: str, body: Mapping[str, Json], to: Collection[str] | None = None) -> None:
        """Send one message to every peer (of ``to``) that is connected; connect to the others."""
        data = json.dumps(body, separators=(",", ":")).encode()
        length = f"Content-Length: {len(data)}\r\n\r\n".encode()
        for name, link in self._links.items():
            if to is None or name in to:
                link.send(self._heads[path] + link.host + length + data)

    def silent(self) -> frozenset[str]:
        """Return the peers that have given no sign for a window: no answer, and no refusal."""
        return frozenset(name for name, link in self._links.items() if link.silent)

    async def aclose(self) -> None:
        """Close all lines."""
        await asyncio.gather(*(link.aclose() for link in self._links.values()))


class _Link(asyncio.Protocol):
    def __init__(self, peer: str, address: Address, rules: Membership) -> None:
        self._peer = peer
        self.address = address
        self._rules = rules
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._connect_at = 0.0
        self._answer = b""
        self._waiting = 0
        self._unanswered_max = max(2, round(rules.window_s / rules.heartbeat_interval_s))
        self._sign_at = self._loop.time()
        self._trouble = ""
        self.host = f"Host: {address.url.removeprefix('http://')}\r\n".encode()

    def send(self, request: bytes) -> None:
        transport = self._transport
        if transport is None:
            self._connect()
            return
        if self._waiting >= self._unanswered_max:
            transport.abort()
            self._transport = None
            return
        self._waiting += 1
        transport.write(request)

    @property
    def silent(self) -> bool:
        return self._loop.time() - self._sign_at > self._rules.window_s

    async def aclose(self) -> None:
        connecting = self._connecting
        self.close()
        if connecting is not None:
            await asyncio.gather(connecting, return_exceptions=True)
        if self._transport is not None:
            self._transport.close()

    def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        if self._transport is not None:
            self._transport.close()

    # -- connecting ------------------------------------------------------------------------

    def _connect(self) -> None:
        if self._connecting is None and self._loop.time() >= self._connect_at:
            self._connecting = self._loop.create_task(self._open())

    async def _open(self) -> None:
        try:
            async with asyncio.timeout(self._rules.window_s):
                await self._loop.create_connection(
                    lambda: self, self.address.host, self.address.port
                )
        except ConnectionRefusedError:
            self._sign_at = self._loop.time()
            self._connect_at = self._loop.time() + self._rules.check_interval_s
        except OSError:  # no way there, or no answer in time
            self._connect_at = self._loop.time() + self._rules.check_interval_s
        finally:
            self._connecting = None

    # -- asyncio.Protocol ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._answer, self._waiting = b"", 0

    def data_received(self, data: bytes) -> None:
        self._sign_at = self._loop.time()
        answer = self._answer + data
        while answer.startswith(TAKEN):
            answer = answer[len(TAKEN) :]
            self._waiting -= 1
            self._trouble = ""
        self._answer = answer
        if answer and not TAKEN.startswith(answer):
            self._refused(answer)

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is not None:  # else given up here
            self._sign_at = self._loop.time()
            self._transport = None

    def _refused(self, answer: bytes) -> None:
        """The peer answered something else: it is starting, or configured otherwise."""
        line = answer.partition(b"\r\n")[0].decode("latin-1")
        if line != self._trouble:
            self._trouble = line
            logger.warning("%s does not take heartbeats: %s", self._peer, line)
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        self._connect_at = self._loop.time() + self._rules.check_interval_s
