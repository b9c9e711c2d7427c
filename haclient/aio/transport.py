"""HTTP over aiohttp, with probes that show if a silent server is still alive.

Twin of `haclient.sync.transport`. When a server has sent nothing for ``silence_s``, one series of
probes serves all requests that wait for it; if the server counts as hung, they stop waiting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TypeVar

import aiohttp
from yarl import URL

from haclient.failover import Liveness, Policy, Pulse
from haclient.protocol import Body, Broken, DeadlinePassed, Hung, NotReached
from haclient.settings import Server, Settings

T = TypeVar("T")

now = time.monotonic
sleep = asyncio.sleep
Lock = asyncio.Lock

_IDLE_MAX_S = 15.0
"""An unused connection is closed after this time, before any server closes it.

aiohttp's servers do so after 75 s.
"""
_READ_BYTES = 1 << 18
DOCUMENT_BYTES_MAX = 1 << 20
_NEVER = float("inf")
_tasks: set[asyncio.Task[None]] = set()


class StateLock:
    """A lock that does nothing: the code that it protects never awaits, so no other task runs."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def spawn(function: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the function as a task of its own; it must end by itself."""
    task = asyncio.get_running_loop().create_task(function())
    _tasks.add(task)  # the loop itself holds tasks weakly
    task.add_done_callback(_tasks.discard)


async def race(
    first: Callable[[], Awaitable[T]],
    other: Callable[[], Awaitable[T]],
    after_s: float,
    wins: Callable[[T], bool],
    discard: Callable[[T], Awaitable[None]],
) -> list[T]:
    """Run ``first``, and if it takes longer than ``after_s`` also ``other``, until one result wins.

    Also ends when both have ended without a winner. Returns the results in the order in which they
    ended. The loser is cancelled, and its result discarded.
    """
    tasks = [asyncio.ensure_future(first())]
    ended: list[T] = []
    try:
        pending = set(tasks)
        done, _ = await asyncio.wait(pending, timeout=after_s)
        if not done:
            tasks.append(asyncio.ensure_future(other()))
            pending = set(tasks)
        else:
            pending = set()
            ended += [task.result() for task in done]
        while pending and not any(wins(each) for each in ended):
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            won = [task for task in done if wins(task.result())][:1]
            lost = [task for task in done if not wins(task.result())]
            ended += [task.result() for task in lost + won]
        return ended
    finally:
        for task in tasks:
            task.cancel()
        for late in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(late, BaseException) and not any(late is each for each in ended):
                await discard(late)


async def beside(work: Callable[[T], Awaitable[None]], items: Iterator[T], at_once: int) -> None:
    """Run ``work`` for each item, for up to ``at_once`` items at the same time.

    A thread makes the items. After the first error no further work is begun; the error is raised
    when all begun work has ended.
    """
    running: set[asyncio.Future[None]] = set()
    try:
        while not any(task.done() and task.exception() for task in running):
            if len(running) < at_once:
                if (item := await asyncio.to_thread(next, items, None)) is None:
                    break
                running.add(asyncio.ensure_future(work(item)))
                continue
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            running |= {task for task in done if task.exception()}
        for error in await asyncio.gather(*running, return_exceptions=True):
            if error is not None:
                raise error
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class _Watch:
    """Ends one wait for a server at the deadline, or when the server counts as hung."""

    __slots__ = (
        *("_deadline", "_hung", "_hung_before", "_liveness", "_scope", "_server"),
        *("_timer", "_transport"),
    )

    def __init__(self, transport: Transport, server: Server, deadline: float) -> None:
        self._transport = transport
        self._server = server
        self._deadline = deadline
        self._liveness = Liveness()
        self._hung = False
        self._hung_before = transport.hung_in_a_row

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        remaining = None if self._deadline == _NEVER else max(0.0, self._deadline - now())
        self._scope = asyncio.timeout(remaining)
        await self._scope.__aenter__()
        silence_s = self._transport.policy.silence_s
        self._timer = loop.call_later(silence_s, self._transport.listen, self._server, self)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
        self._transport.listen_no_more(self._server, self)
        try:
            await self._scope.__aexit__(kind, error, trace)
        except TimeoutError:
            if self._hung:
                self._transport.hung_in_a_row += 1
                message = f"{self._server} accepts connections but does not answer"
                raise Hung(message) from None
            raise DeadlinePassed("the deadline passed") from None
        if kind is None:
            self._transport.hung_in_a_row = 0

    def received(self, pulse: Pulse) -> None:
        """Note the result of a probe; end the wait if the server now counts as hung."""
        self._liveness = self._liveness.after(pulse)
        hung = self._liveness.hung(self._transport.policy, self._hung_before)
        if hung and not self._scope.expired():
            self._hung = True
            self._scope.reschedule(asyncio.get_running_loop().time())


class Response:
    """A server's answer: its status and headers, and the body, which is still to be read."""

    def __init__(
        self,
        transport: Transport,
        server: Server,
        answer: aiohttp.ClientResponse,
        deadline: float,
    ) -> None:
        self.status = answer.status
        self._transport = transport
        self._server = server
        self._answer = answer
        self._deadline = deadline

    def header(self, name: str) -> str | None:
        """Return the value of a header; None if the answer does not have it."""
        return self._answer.headers.get(name)

    def without_deadline(self) -> None:
        """Remove the deadline, for a caller that reads slowly; a hung server still ends it."""
        self._deadline = _NEVER

    async def read_some(self) -> bytes:
        """Return the next bytes of the body; empty at its end. Raises WireError."""
        with _wire_errors(self._server):
            content = self._answer.content
            if (data := content.read_nowait()) or content.at_eof():
                return data  # a small answer comes with its head
            async with _Watch(self._transport, self._server, self._deadline):
                return await content.readany()

    async def close(self) -> None:
        """Close the response, and the connection, too, if the body was not read to its end."""
        self._answer.close()


async def _in_pieces(body: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (piece := await asyncio.to_thread(next, body, None)) is not None:
        yield piece


@contextmanager
def _wire_errors(server: Server) -> Iterator[None]:
    try:
        yield
    except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
        raise NotReached(f"{server} cannot be reached: {error}") from error
    except (aiohttp.ClientError, OSError, ValueError) as error:
        message = f"the connection to {server} broke: {error or type(error).__name__}"
        raise Broken(message) from error


class Transport:
    """The connections to all servers; belongs to the event loop that uses it first."""

    def __init__(self, settings: Settings) -> None:
        self.policy: Policy = settings.policy
        self._tls = settings.tls.context() if settings.tls else True
        self.hung_in_a_row = 0
        """The number of attempts that ended at hung servers since the last answer."""
        self._session: aiohttp.ClientSession | None = None
        self._probe_session: aiohttp.ClientSession | None = None
        self._listening: dict[Server, set[_Watch]] = {}
        """For each server, the waits that need the results of its probes."""
        self._probing: dict[Server, asyncio.Task[None]] = {}
        self._closed = False

    async def request(
        self,
        server: Server,
        method: str,
        path: str,
        headers: dict[str, str],
        body: Body,
        deadline: float,
    ) -> Response:
        """Send a request; return the answer's status and headers, with the body unread.

        Raises WireError.
        """
        if self._closed:
            raise NotReached("the connection is closed")
        if self._session is None:
            self._session = self._open(self.policy.connect_timeout_s, keep=True)
        with _wire_errors(server):
            async with _Watch(self, server, deadline):
                answer = await self._session.request(
                    method,
                    URL(server.url + path, encoded=True),
                    headers=headers,
                    data=(body or None) if isinstance(body, bytes) else _in_pieces(body),
                    allow_redirects=False,
                )
        return Response(self, server, answer, deadline)

    def listen(self, server: Server, watch: _Watch) -> None:
        """Send the results of a server's probes to ``watch``; start the probes if none run."""
        self._listening.setdefault(server, set()).add(watch)
        probing = self._probing.get(server)
        if probing is None or probing.done():
            task = asyncio.get_running_loop().create_task(self._probe(server))
            self._probing[server] = task

    def listen_no_more(self, server: Server, watch: _Watch) -> None:
        """Send no more probe results to ``watch``; harmless if it gets none."""
        self._listening.get(server, set()).discard(watch)

    async def _probe(self, server: Server) -> None:
        listening = self._listening[server]
        while listening:
            pulse = await self._pulse(server)
            for watch in tuple(listening):
                watch.received(pulse)
            if pulse is not Pulse.SILENT:
                await asyncio.sleep(self.policy.silence_s)

    async def _pulse(self, server: Server) -> Pulse:
        """Probe a server on a new connection; return if it is alive, refuses, or is silent."""
        try:
            await self._get(server, "/healthz", {})
        except aiohttp.ClientConnectorError as error:
            refused = isinstance(error.os_error, ConnectionRefusedError)
            return Pulse.REFUSED if refused else Pulse.SILENT
        except (aiohttp.ClientError, OSError):
            return Pulse.SILENT
        return Pulse.ALIVE

    async def fetch(
        self, server: Server, path: str, headers: dict[str, str]
    ) -> tuple[int, bytes] | None:
        """Return status and body of a small document, over a new connection; None if that fails."""
        try:
            return await self._get(server, path, headers)
        except (aiohttp.ClientError, OSError, ValueError):
            return None

    async def _get(self, server: Server, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        if self._closed:
            raise aiohttp.ClientConnectionError("the connection is closed")
        if self._probe_session is None:
            self._probe_session = self._open(self.policy.probe_timeout_s, keep=False)
        url = URL(server.url + path, encoded=True)
        request = self._probe_session.get(url, headers=headers, allow_redirects=False)
        async with asyncio.timeout(self.policy.probe_timeout_s), request as answer:
            body = bytearray()
            async for part in answer.content.iter_any():
                body += part
                if len(body) > DOCUMENT_BYTES_MAX:
                    raise ValueError("the answer is too large")
            return answer.status, bytes(body)

    def _open(self, connect_timeout_s: float, *, keep: bool) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=0,
            ssl=self._tls,
            **({"keepalive_timeout": _IDLE_MAX_S} if keep else {"force_close": True}),
        )
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("Accept", "Content-Type", "User-Agent"),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),
            read_bufsize=_READ_BYTES,
        )

    async def close(self) -> None:
        """Close every connection."""
        self._closed = True
        for probing in self._probing.values():
            probing.cancel()
        for session in (self._session, self._probe_session):
            if session is not None:
                await session.close()
        self._session = self._probe_session = None
