"""HTTP connections to the other HAProcs: lines for heartbeats and reports, a pool for requests."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast
from urllib.parse import urlencode

import aiohttp
import msgspec

from dmq import Json
from haproc import tracing
from haproc.config.model import Address, Config, Membership
from haproc.config.tls import Certificates
from haproc.membership.peers import (
    ApplyNow,
    CopyAnswer,
    CopyQuestion,
    Member,
    PeerOutcome,
    PeerProgress,
    PeerStatus,
    PeerUnavailableError,
    founders,
)
from haproc.membership.state import Beat, ClusterReport, PeerMessage

# Lines to the peers for heartbeats and reports: kept connections that send prepared requests.
#
# Twenty heartbeats a second are too many for a general HTTP client, so each line writes the bytes
# of a request and only counts the answers, since a good answer is always the same. Several requests
# may be unanswered at once. If a peer leaves a whole window of requests unanswered, the line
# connects anew. Nothing here waits or raises: the receiver notices a message that does not arrive.


logger = logging.getLogger(__name__)
T = TypeVar("T")

HEARTBEAT_PATH: Final = "/heartbeat"
REPORT_PATH: Final = "/reportlag"
MESSAGE_TYPES: Final[Mapping[str, type[PeerMessage]]] = {
    HEARTBEAT_PATH: Beat,
    REPORT_PATH: ClusterReport,
}
TAKEN: Final = b"HTTP/1.1 204 No Content\r\n\r\n"
"""The whole answer to a heartbeat or report that was accepted, as the receiving listener writes
it."""


def head(path: str, secret: str) -> bytes:
    """Return the first lines of each heartbeat or report request; host and body length follow."""
    return (
        f"POST {path} HTTP/1.1\r\nAuthorization: Bearer {secret}\r\n"
        "Content-Type: application/json\r\n"
    ).encode()


class Links:
    """The lines (kept connections) to all peers of the HAProc ``me``; close them with ``aclose``.

    ``certificates``: those for TLS; None if the ring uses none.
    """

    def __init__(self, config: Config, me: str, certificates: Certificates | None = None) -> None:
        self._me = me
        self._rules = config.membership
        self._certificates = certificates
        self._links: dict[str, _Link] = {}
        self.follow(founders(config))
        self._heads = {of: head(path, config.secret) for path, of in MESSAGE_TYPES.items()}

    def follow(self, members: Iterable[Member]) -> None:
        """Keep lines to these members from now on, and close all others."""
        wanted = {each.name: each.peer for each in members if each.name != self._me}
        for name, link in tuple(self._links.items()):
            if wanted.get(name) != link.address:
                self._links.pop(name).close()
        for name, address in wanted.items():
            if name not in self._links:
                self._links[name] = _Link(name, address, self._rules, self._certificates)

    def send(self, message: PeerMessage, to: Collection[str] | None = None) -> None:
        """Send a message on each open line; begin to open the others, without sending it there.

        ``to``: only to these peers; None: to all.
        """
        begin, data = self._heads[type(message)], msgspec.json.encode(message)
        length = f"Content-Length: {len(data)}\r\n\r\n".encode()
        for name, link in self._links.items():
            if to is None or name in to:
                link.send(begin + link.host + length + data)

    def silent(self) -> frozenset[str]:
        """Return the peers that have neither answered nor refused a connection for ``window_s``."""
        return frozenset(name for name, link in self._links.items() if link.silent)

    async def aclose(self) -> None:
        """Close all lines."""
        await asyncio.gather(*(link.aclose() for link in self._links.values()))


class _Link(asyncio.Protocol):
    def __init__(
        self,
        peer: str,
        address: Address,
        rules: Membership,
        certificates: Certificates | None,
    ) -> None:
        self._peer = peer
        self.address = address
        self._rules = rules
        self._certificates = certificates
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._connect_at = 0.0
        self._answer = b""
        self._waiting = 0
        self._answered = False
        """True once the peer has sent anything on the present connection."""
        self._unanswered_max = max(2, round(rules.window_s / rules.heartbeat_interval_s))
        self._sign_at = self._loop.time()
        self._trouble = ""
        self.host = f"Host: {address}\r\n".encode()

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
        self.close()  # a connection that was made meanwhile

    def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    # -- connecting ------------------------------------------------------------------------

    def _connect(self) -> None:
        if self._connecting is None and self._loop.time() >= self._connect_at:
            self._connecting = self._loop.create_task(self._open())

    async def _open(self) -> None:
        certificates = self._certificates
        tls = certificates.now.client if certificates is not None else None
        try:
            async with asyncio.timeout(self._rules.window_s):
                await self._loop.create_connection(
                    lambda: self, self.address.host, self.address.port, ssl=tls
                )
        except ConnectionRefusedError:
            self._sign_at = self._loop.time()
            self._connect_at = self._loop.time() + self._rules.check_interval_s
        except ssl.SSLError as error:
            self._insecure(getattr(error, "verify_message", "") or error.reason or str(error))
        except OSError:  # no way there, or no answer in time
            self._connect_at = self._loop.time() + self._rules.check_interval_s
        finally:
            self._connecting = None

    # -- asyncio.Protocol ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no asyncio.Transport
        self._answer, self._waiting, self._answered = b"", 0, False

    def data_received(self, data: bytes) -> None:
        self._sign_at, self._answered = self._loop.time(), True
        answer = self._answer + data
        while answer.startswith(TAKEN):
            answer = answer[len(TAKEN) :]
            self._waiting -= 1
            self._trouble = ""
        self._answer = answer
        if answer and not TAKEN.startswith(answer):
            self._refused(answer)

    def connection_lost(self, error: Exception | None) -> None:
        if self._transport is None:  # given up here
            return
        if self._certificates is not None and not self._answered:
            self._insecure("it ends connections; its log says why if it refuses this certificate")
        else:
            self._sign_at = self._loop.time()
        self._transport = None

    def _insecure(self, why: str) -> None:
        """Log that TLS with the peer failed, and wait before the next attempt.

        The peer stays silent: this is no sign of life.
        """
        self._connect_at = self._loop.time() + self._rules.check_interval_s
        self._warn_once(f"no TLS with {self._peer} at {self.address}: {why}; see tls")

    def _warn_once(self, trouble: str) -> None:
        """Log a problem as a warning, unless it is the one that was logged last."""
        if trouble != self._trouble:
            self._trouble = trouble
            logger.warning("%s", trouble)

    def _refused(self, answer: bytes) -> None:
        """Log an answer that is not TAKEN, and close the line for a while.

        The peer is starting, or configured otherwise.
        """
        line = answer.partition(b"\r\n")[0].decode("latin-1")
        self._warn_once(f"{self._peer} does not take heartbeats: {line}")
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        self._connect_at = self._loop.time() + self._rules.check_interval_s


# The other HAProcs' operator doors: their addresses, and one pool of connections to them.


def _tracing() -> aiohttp.TraceConfig:
    """Return a configuration by which each HTTP request carries the trace of the calling task."""

    async def add(_: object, __: object, start: aiohttp.TraceRequestStartParams) -> None:
        if tracing.on is not None:
            start.headers.update(tracing.on.headers())

    config = aiohttp.TraceConfig()
    config.on_request_start.append(add)
    return config


class PeerDoors:
    """Addresses of the operator doors of the peers of ``me``, and one pool of connections to them.

    Requests carry the ring's secret; close the pool with ``aclose``. ``certificates``: those for
    TLS; None if the ring uses none.
    """

    def __init__(self, config: Config, me: str, certificates: Certificates | None = None) -> None:
        self._me = me
        self._url_of = config.url
        self._certificates = certificates
        self.follow(founders(config))
        self.connect_s = config.timeouts.peer_s
        """The longest time for opening a connection, in seconds."""
        self._headers = {"Authorization": f"Bearer {config.secret}"}
        self._session: aiohttp.ClientSession | None = None

    def follow(self, members: Iterable[Member]) -> None:
        """Use the addresses of these members from now on: a cluster was added or removed."""
        others = (each for each in members if each.name != self._me)
        self._urls = {each.name: self._url_of(each.peer) for each in others}

    @property
    def names(self) -> tuple[str, ...]:
        """The peers' names in ring order."""
        return tuple(self._urls)

    def url(self, peer: str, path: str) -> str:
        """Return the URL of ``path`` at a peer's door.

        Raises PeerUnavailableError if the peer has left the ring.
        """
        if peer not in self._urls:
            raise PeerUnavailableError(f"the ring has no cluster {peer} any more")
        return self._urls[peer] + path

    @property
    def tls(self) -> ssl.SSLContext | bool:
        """The ``ssl`` argument for the next request.

        Take it anew for each request: certificates are renewed.
        """
        return True if self._certificates is None else self._certificates.now.client

    @property
    def session(self) -> aiohttp.ClientSession:
        """The pool of connections, made at the first use."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers=self._headers,
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30.0),
                cookie_jar=aiohttp.DummyCookieJar(),
                trace_configs=[_tracing()] if tracing.on is not None else None,
            )
        return self._session

    async def aclose(self) -> None:
        """Close all connections of the pool."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


# Requests to the other HAProcs over HTTP, under the ring's secret.
#
# Every reason why a peer gives no proper answer in time is a `PeerUnavailableError`: the caller
# goes on without the peer, and learns the facts from the log.


_ANSWER_MARGIN_S: Final = 0.5
"""Time for an answer to travel, added to the time that the peer may work on it."""
_ANSWER_BYTES_MAX: Final = 16 << 20
COPY_PATH: Final = "/ha/v1/copy"
COPY_BYTES_MAX: Final = 64 << 20
"""The largest answer of a donor to a copying cluster: a part of a file, or the names of all
tables."""


class HttpPeers:
    """Sends requests to the other HAProcs over HTTP; implements `haproc.membership.peers.Peers`.

    Every request raises PeerUnavailableError if it gets no proper answer in time. ``is_gone``:
    returns True for a peer that has been silent for too long.
    """

    def __init__(
        self, doors: PeerDoors, is_gone: Callable[[str], bool] = lambda peer: False
    ) -> None:
        self._doors = doors
        self._is_gone = is_gone

    @property
    def names(self) -> tuple[str, ...]:
        """The peers' names in ring order."""
        return self._doors.names

    def is_gone(self, peer: str) -> bool:
        """True if the peer has been silent for so long that requests are useless."""
        return self._is_gone(peer)

    async def apply_now(
        self, peer: str, offset: int, operation_id: str, timeout_s: float
    ) -> PeerOutcome:
        """Ask a peer to run a synchronous operation now; return its outcome, or that it waits."""
        body, wait_s = ApplyNow(offset, operation_id, timeout_s), timeout_s + _ANSWER_MARGIN_S
        return await self._request(PeerOutcome, peer, "/ha/v1/apply", wait_s, body)

    async def outcome(self, peer: str, offset: int, timeout_s: float) -> PeerOutcome:
        """Return the outcome of the operation at ``offset`` on a peer's cluster, if any yet."""
        return await self._request(PeerOutcome, peer, f"/ha/v1/outcomes/{offset}", timeout_s)

    async def progress(self, peer: str, seen: str, timeout_s: float) -> PeerProgress:
        """Return a peer's progress once it differs from ``seen``, or after ``timeout_s``.

        ``seen``: the field of that name of an earlier answer; empty: answer at once.
        """
        path = "/ha/v1/progress?" + urlencode({"seen": seen, "timeout_s": timeout_s})
        return await self._request(PeerProgress, peer, path, timeout_s + _ANSWER_MARGIN_S)

    async def status(self, peer: str, timeout_s: float) -> PeerStatus:
        """Return a peer's state, cursor, lag and other facts."""
        return await self._request(PeerStatus, peer, "/ha/v1/status", timeout_s)

    async def copy(
        self, peer: str, question: CopyQuestion, timeout_s: float
    ) -> tuple[CopyAnswer, bytes]:
        """Send a copy's question to its donor.

        Returns the answer, and bytes of a file if the question asks for some.
        """
        status, data = await self._send(peer, COPY_PATH, timeout_s, question, COPY_BYTES_MAX)
        if status != 200:
            return _read(peer, status, data, CopyAnswer), b""
        length = int.from_bytes(data[:4], "big")
        return _read(peer, status, data[4 : 4 + length], CopyAnswer), data[4 + length :]

    async def settings(self, peer: str, timeout_s: float) -> Mapping[str, Json]:
        """Return the settings of a peer's Spark server, as JSON."""
        return await self._request(dict[str, Any], peer, "/ha/v1/settings", timeout_s)

    async def latencies(
        self, peer: str, start: int, end: int, timeout_s: float
    ) -> Mapping[int, int]:
        """Return, by offset, the ms from each operation's creation to its end on a peer's cluster.

        ``start`` and ``end``: the range of offsets.
        """
        path = "/ha/v1/latencies?" + urlencode({"start": start, "end": end})
        return await self._request(dict[int, int], peer, path, timeout_s)

    async def _request(
        self, of: type[T], peer: str, path: str, timeout_s: float, body: ApplyNow | None = None
    ) -> T:
        """Send a request to a peer, and return its answer as an object of type ``of``.

        With a ``body`` it is a POST, else a GET.
        """
        return _read(peer, *await self._send(peer, path, timeout_s, body), of)

    async def _send(
        self,
        peer: str,
        path: str,
        timeout_s: float,
        body: ApplyNow | CopyQuestion | None,
        bytes_max: int = _ANSWER_BYTES_MAX,
    ) -> tuple[int, bytes]:
        method = "GET" if body is None else "POST"
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=self._doors.connect_s)
        url = self._doors.url(peer, path)
        try:
            async with self._doors.session.request(
                method,
                url,
                json=None if body is None else msgspec.to_builtins(body),
                timeout=timeout,
                allow_redirects=False,
                ssl=self._doors.tls,
            ) as response:
                return response.status, await _limited(response, bytes_max)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            what = "no answer in time" if isinstance(error, TimeoutError) else str(error)
            raise PeerUnavailableError(f"peer {peer} at {url}: {what}") from error


async def _limited(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > bytes_max:
            raise aiohttp.ClientPayloadError("the answer is too large")
        parts.append(part)
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class _Refusal:
    message: str = ""


def _read(peer: str, status: int, data: bytes, of: type[T]) -> T:
    try:
        if status == 200:
            return msgspec.json.decode(data, type=of)
        message = msgspec.json.decode(data, type=_Refusal).message
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        problem = f"peer {peer} answered {status} with something else: {error}"
        raise PeerUnavailableError(problem) from error
    raise PeerUnavailableError(f"peer {peer} answered {status}: {message}")
