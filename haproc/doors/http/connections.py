"""The connections of one listener: how many, how long they may be silent, and their errors."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias, cast

from aiohttp import HttpVersion11, StreamReader, web
from aiohttp.http_exceptions import LineTooLong

from haproc.doors.http.bodies import body_of
from haproc.doors.http.statuses import status_of
from haproc.failure import ErrorClass, RequestError, busy, refused

# Connections whose client sends no more, while a request of theirs runs.
#
# A client may have closed its sending side and wait for the answer, or be gone: both look the same.
# So it is answered. Until the answer begins, it gets an interim one (``100 Continue``, which every
# HTTP/1.1 client skips) now and then. If the client is gone, its system refuses the first one, and
# the next write fails. Then the connection is lost, and its requests are cancelled as usual.


PROBES_S: Final = (0.5, 0.5)
"""The pauses before the first probes of a half-closed connection: most requests end before."""
PROBE_S: Final = 10.0
"""The pause before each later probe."""
INTERIM: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class HalfClosed:
    """Probes whether the client of a half-closed connection is still there.

    A probe is an interim answer (``100 Continue``); if the client is gone, writing fails.
    """

    def __init__(self, whole: int, transport: asyncio.Transport, takes: Callable[[], bool]) -> None:
        self.whole = whole
        """The number of complete requests that came on the connection."""
        self._transport, self._takes = transport, takes
        self._left = list(PROBES_S)
        self._timer: asyncio.TimerHandle | None = None

    def wait(self) -> None:
        """Send a probe after a pause, and again and again, until `end` is called."""
        after_s = self._left.pop(0) if self._left else PROBE_S
        self._timer = asyncio.get_running_loop().call_later(after_s, self._probe)

    def end(self) -> None:
        """Send no more probes."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _probe(self) -> None:
        if not self._transport.is_closing():
            if self._takes():
                self._transport.write(INTERIM)
            self.wait()


# The connections of one listener: their number, their time limits, and their errors.
#
# A stranger can open connections, send parts of a request, and take nothing of an answer. This must
# not keep others out, and none of its content enters the log: it may hold a token.
#
# - A head must be complete `HEAD_S` after its first byte, the first head of a connection `HEAD_S`
#   after its opening. Between requests a connection may be idle for `KEEPALIVE_S`.
# - A client that takes nothing of an answer for `STALL_S` is cut off.
# - A client that has closed its side gets the answers to its complete requests, and nothing else
#   (`HalfClosed`).
# - If all places are taken, the connection that has waited longest without a running request is
#   closed: of the user with the most connections; strangers count as one user. A new connection is
#   refused only if every place has a running request.
# - A request that is not HTTP is answered in the form of every other error, and logged in one line
#   now and then, without its content.


_LOG = logging.getLogger(__name__)

HEAD_S: Final = 10.0
"""The time limit of a request's head, as in other servers and proxies (HAProxy's manual: 5 to 10
s); not measured."""
KEEPALIVE_S: Final = 75.0
"""A connection without a request is closed after this time."""
STALL_S: Final = 60.0
"""A client that accepts no bytes for this time is cut off, since its answer stays in memory."""
CONNECTIONS_MAX: Final = 1000
WARNING_PAUSE_S: Final = 10.0
"""The least time between two lines in the program's log about unreadable requests."""
_LINE_BYTES_MAX: Final = 16 << 10
"""The most bytes of a request's first line, and of each header."""
_STRANGER: Final = ""
"""Stands for the user of a connection that has sent no token yet."""
_HEADERS_MAX: Final = 128
"""The most headers of a request, as in aiohttp by default."""


class Placed(Protocol):
    """A connection that holds a permit."""

    @property
    def is_expendable(self) -> bool:
        """True if it may be closed to make room: no request runs, and it may be a stranger's."""
        ...

    def force_close(self) -> None:
        """Close the connection at once."""
        ...


class ConnectionPermits:
    """The permits of a limited number of connections. If all are taken, one connection is closed.

    Of the connections without a running request, this is one of the user with the most connections,
    the one with the oldest last request. So many connections, of strangers or of one user, do not
    push out the few of others.
    """

    def __init__(self, connections_max: int, cluster: str) -> None:
        self._connections_max = connections_max
        self._whose: dict[Placed, str] = {}
        self._crowds: dict[str, dict[Placed, None]] = {}
        self.full = _answer(busy(f"{connections_max} connections are open here"), cluster)
        """The answer to a client that gets no permit."""
        self._warning = ThrottledWarning("%d connections are open (limits.connections_max)")

    def __len__(self) -> int:
        return len(self._whose)

    def take(self, connection: Placed) -> bool:
        """Give the connection a permit; return False if all are taken and none can be freed."""
        if len(self._whose) >= self._connections_max and not self._make_room():
            self._warning.warn(len(self._whose))
            return False
        self._enter(connection, _STRANGER)
        return True

    def received(self, connection: Placed, user: str | None = None) -> None:
        """Note that a request came on the connection; ``user``: its user, None if not known yet."""
        if connection in self._whose:
            whose = self._whose[connection]
            self.give_back(connection)
            self._enter(connection, whose if user is None else user)

    def give_back(self, connection: Placed) -> None:
        """Take the connection's permit back; no error if it has none."""
        whose = self._whose.pop(connection, None)
        if whose is not None:
            crowd = self._crowds[whose]
            del crowd[connection]
            if not crowd:
                del self._crowds[whose]

    def _enter(self, connection: Placed, user: str) -> None:
        self._whose[connection] = user
        self._crowds.setdefault(user, {})[connection] = None

    def _make_room(self) -> bool:
        for crowd in sorted(self._crowds.values(), key=len, reverse=True):
            for connection in crowd:
                if connection.is_expendable:
                    self.give_back(connection)
                    connection.force_close()
                    return True
        return False


class ThrottledWarning:
    """Writes a warning to the program's log at most every `WARNING_PAUSE_S`.

    It counts the warnings that it left out, and writes their number with the next one.
    """

    def __init__(self, message: str) -> None:
        self._message = message
        self._next_s = 0.0
        self._kept = 0

    def warn(self, *values: object) -> None:
        """Write the warning, unless the last one was written too recently."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            self._kept += 1
            return
        self._next_s = now_s + WARNING_PAUSE_S
        _LOG.warning(self._message, *values)
        if self._kept:
            _LOG.warning("%d more such lines were left out before this one", self._kept)
        self._kept = 0


Shortcut: TypeAlias = Callable[[bytes], tuple[bytes, bytes]]
"""Handles the requests at the beginning of the received bytes; returns answers and other bytes."""


def no_shortcut(data: bytes) -> tuple[bytes, bytes]:
    """Return all bytes for aiohttp, and no answers."""
    return b"", data


class Connections:
    """Makes the object that handles a new connection of a listener (aiohttp's protocol).

    ``shortcut`` handles what a connection receives, until it leaves bytes over; from then on
    aiohttp does. A client that ``shortcut`` has answered is no stranger, and its connection is
    kept.
    """

    def __init__(
        self,
        server: web.Server,
        permits: ConnectionPermits,
        cluster: str,
        shortcut: Shortcut = no_shortcut,
    ) -> None:
        self.server = server
        self.permits = permits
        self.cluster = cluster
        self.shortcut = shortcut
        self.unreadable = ThrottledWarning("a request from %s could not be read (%s)")
        self.broken = ThrottledWarning("a connection from %s ended with %s at %s")

    def __call__(self) -> Connection:
        """Return the object for a new connection."""
        return Connection(self)

    def following(self, handshake: Placed) -> Connection:
        """Return the object for a connection after its TLS handshake; it takes over the permit."""
        return Connection(self, handshake)


class Connection(web.RequestHandler):
    """One connection. It uses private parts of aiohttp's class, which may change."""

    __slots__ = (
        "_answered", "_came", "_door", "_half_closed", "_handshake", "_head", "_known", "_last",
        "_peer", "_short", "_stall",
    )  # fmt: skip

    def __init__(self, door: Connections, handshake: Placed | None = None) -> None:
        super().__init__(
            door.server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # that switches it off
            keepalive_timeout=KEEPALIVE_S,
            max_line_size=_LINE_BYTES_MAX,
            max_field_size=_LINE_BYTES_MAX,
            max_headers=_HEADERS_MAX,
            auto_decompress=False,  # see haproc.doors.http.reading
        )
        self._door = door
        self._handshake = handshake
        self._head: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._peer = ""
        self._short = True
        """True until the shortcut has left bytes over for aiohttp."""
        self._known = self._came = False
        """True if the shortcut has answered: at any time, and since the last look at the time
        limit."""
        self._answered = 0
        """How many requests were answered, of those that aiohttp counts in `_request_count`."""
        self._last: StreamReader | None = None
        """The body of the newest request."""
        self._half_closed: HalfClosed | None = None

    @property
    def is_idle(self) -> bool:
        """True if the connection waits for a request, and has received none of it."""
        return self._waiter is not None and not self._waiter.done()

    @property
    def is_expendable(self) -> bool:
        """True if it may be closed to make room: no request runs, and it may be a stranger's."""
        return not (self._known or self._is_busy)

    def is_of(self, user: str) -> None:
        """Note the user of the connection's present request."""
        self._door.permits.received(self, user)

    @property
    def _is_busy(self) -> bool:
        return not self.is_idle and bool(self._request_in_progress or self._messages)

    # -- asyncio.Protocol ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._peer = str((transport.get_extra_info("peername") or ("?",))[0])
        self._await_head()
        permits = self._door.permits
        if self._handshake is not None:
            permits.give_back(self._handshake)
        if not permits.take(self):
            kept = cast(asyncio.Transport, transport)
            kept.write(permits.full)
            kept.close()

    def data_received(self, data: bytes) -> None:
        if self._short and not (data := self._left_by_shortcut(data)):
            return
        super().data_received(data)
        if self._messages:
            self._last = self._messages[-1][1]
        if self._messages or self._request_in_progress:
            self._stop_head()
            self._door.permits.received(self)
        else:
            self._await_head()

    def _left_by_shortcut(self, data: bytes) -> bytes:
        answers, rest = self._door.shortcut(data)
        if answers and self.transport is not None:
            self._known = self._came = True
            self.transport.write(answers)
        self._short = not rest
        return rest

    def eof_received(self) -> bool:  # type: ignore[override]  # as in asyncio
        """Note that the client sends no more; return True if the connection stays open for answers.

        Incomplete requests are not begun. TLS has no half-closed connections.
        """
        transport, last = self.transport, self._last
        if transport is None or last is None or transport.get_extra_info("sslcontext") is not None:
            return False
        whole = self._request_count - (not last.is_eof())
        if self._answered >= whole:
            return False
        self._half_closed = HalfClosed(whole, transport, self._takes_interim)
        self._half_closed.wait()
        return True

    def _takes_interim(self) -> bool:
        """True if a probe can be sent now: the client uses HTTP/1.1, and no answer has begun."""
        request = self._current_request
        if request is None or request.version < HttpVersion11:
            return False
        return request.writer.output_size == 0

    async def _handle_request(
        self,
        request: web.BaseRequest,
        start_time: float | None,
        request_handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
    ) -> tuple[web.StreamResponse, bool]:
        try:
            return await super()._handle_request(request, start_time, request_handler)
        finally:
            self._answered += 1
            if self._half_closed is not None and self._answered >= self._half_closed.whole:
                self.close()  # after this answer

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._half_closed is not None:
            self._half_closed.end()
        self._door.permits.give_back(self)
        self._stop_head()
        self._stop_stall()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch(None)

    def resume_writing(self) -> None:
        self._stop_stall()
        super().resume_writing()

    def _watch(self, left_before: int | None) -> None:
        """Cut the client off if it has accepted no bytes since the last look.

        ``left_before``: the number of unsent bytes at that time; None: this is the first look.
        """
        if self.transport is None:
            return
        left = self.transport.get_write_buffer_size()
        if left_before is not None and left >= left_before:
            self.transport.abort()
        else:
            self._stall = asyncio.get_running_loop().call_later(STALL_S, self._watch, left)

    def _await_head(self) -> None:
        if self._head is None:
            self._head = asyncio.get_running_loop().call_later(HEAD_S, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head = None
        if self._came:
            self._came = False
            self._head = asyncio.get_running_loop().call_later(KEEPALIVE_S, self._head_is_late)
        elif not self._is_busy:
            self.force_close()

    def _stop_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _stop_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    # -- what is not HTTP ------------------------------------------------------------------

    def log_exception(self, *args: object, **kw: object) -> None:
        """Write to the program's log what ended the connection, but not the client's data."""
        error = kw.get("exc_info")
        where = traceback.extract_tb(error.__traceback__) if isinstance(error, Exception) else []
        last = f"{where[-1].filename}:{where[-1].lineno}" if where else "an unknown place"
        self._door.broken.warn(self._peer, type(error).__name__, last)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer an unreadable request.

        aiohttp's own answer and log message would repeat its content.
        """
        self._door.unreadable.warn(request.remote, type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer is under way already")
        error = _unread(exc)
        response = web.Response(
            body=_json(error, self._door.cluster),
            status=status_of(error),
            content_type="application/json",
            charset="utf-8",
        )
        response.force_close()
        return response


def _unread(error: BaseException | None) -> RequestError:
    """Return the error for a request whose head aiohttp cannot read.

    aiohttp has no error of its own for too many headers, so the message always names the limits.
    """
    what = "the request is not HTTP as it is understood here"
    if isinstance(error, LineTooLong):
        what = f"a line of the request's head is longer than {_LINE_BYTES_MAX} bytes"
    limits = f"a head has at most {_HEADERS_MAX} headers, and {_LINE_BYTES_MAX} bytes in a line"
    return refused(ErrorClass.BAD_REQUEST, what, limits)


def _json(error: RequestError, cluster: str) -> bytes:
    return json.dumps(body_of(error, cluster), separators=(",", ":")).encode()


def _answer(error: RequestError, cluster: str) -> bytes:
    """Return a complete HTTP answer for a client that gets no permit."""
    body = _json(error, cluster)
    head = (
        "HTTP/1.1 429 Too Many Requests\r\nContent-Type: application/json; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
