"""HTTP over blocking sockets: kept connections, each used by one thread at a time.

Twin of `haclient.aio.transport`. http.client reads and writes through `_Watched`, which waits for
at most ``silence_s`` at a time. If nothing has arrived, the waiting thread itself probes the server
on a fresh connection. So a request needs no second thread.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import queue
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Generic, TypeVar, cast

from haclient.failover import Liveness, Policy, Pulse
from haclient.protocol import Body, Broken, DeadlinePassed, Hung, NotReached, WireError
from haclient.settings import Server, Settings

T = TypeVar("T")

now = time.monotonic
sleep = time.sleep
Lock = threading.Lock
StateLock = threading.RLock
"""Reentrant: Python may run a finalizer that makes a request while its thread has the lock."""

_IDLE_MAX_S = 15.0
"""An unused connection is closed after this time, before any server closes it.

aiohttp's servers do so after 75 s.
"""
_IDLE_CONNECTIONS_MAX = 64
_READ_BYTES = 1 << 18
DOCUMENT_BYTES_MAX = 1 << 20
_NEVER = float("inf")


def spawn(function: Callable[[], None]) -> None:
    """Run the function in a thread of its own; it must end by itself."""
    threading.Thread(target=function, name="haclient", daemon=True).start()


class _Race(Generic[T]):
    """Collects the results of two functions in threads; results that come later are discarded."""

    def __init__(self, discard: Callable[[T], None]) -> None:
        self._discard = discard
        self._ended: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._over = False

    def start(self, runner: Callable[[], T]) -> None:
        spawn(lambda: self._run(runner))

    def _run(self, runner: Callable[[], T]) -> None:
        try:
            ended: tuple[T | None, BaseException | None] = runner(), None
        except BaseException as error:
            ended = None, error
        with self._lock:
            if not self._over:
                self._ended.put(ended)
                return
        if ended[1] is None:
            self._discard(cast(T, ended[0]))

    def next(self, timeout_s: float | None) -> T:
        """Return the next result; raises the function's error, or queue.Empty after the timeout."""
        result, error = self._ended.get(timeout=timeout_s)
        if error is not None:
            raise error
        return cast(T, result)

    def end(self) -> None:
        with self._lock:
            self._over = True
        with contextlib.suppress(queue.Empty):
            while True:
                result, error = self._ended.get_nowait()
                if error is None:
                    self._discard(cast(T, result))


def race(
    first: Callable[[], T],
    other: Callable[[], T],
    after_s: float,
    wins: Callable[[T], bool],
    discard: Callable[[T], None],
) -> list[T]:
    """Run ``first``, and if it takes longer than ``after_s`` also ``other``, until one result wins.

    Also ends when both have ended without a winner. Returns the results in the order in which they
    ended. The loser's thread ends when its statement has been cancelled on the server; its result
    is discarded.
    """
    running: _Race[T] = _Race(discard)
    ended: list[T] = []
    try:
        running.start(first)
        try:
            return [running.next(after_s)]
        except queue.Empty:
            running.start(other)
        while len(ended) < 2 and not any(wins(each) for each in ended):
            ended.append(running.next(None))
        return ended
    finally:
        running.end()


def beside(work: Callable[[T], None], items: Iterator[T], at_once: int) -> None:
    """Run ``work`` for each item, for up to ``at_once`` items at the same time.

    The caller's thread makes the items. After the first error no further work is begun; the error
    is raised when all begun work has ended.
    """
    with ThreadPoolExecutor(at_once, "haclient") as pool:
        running: set[Future[None]] = set()
        while not any(each.done() and each.exception() for each in running):
            if len(running) < at_once:
                if (item := next(items, None)) is None:
                    break
                running.add(pool.submit(work, item))
                continue
            done, running = wait(running, return_when=FIRST_COMPLETED)
            running |= {each for each in done if each.exception()}
        for each in running:
            each.result()


class _Watched:
    """A socket for http.client, with a deadline and probes of the server's liveness."""

    def __init__(self, sock: socket.socket, server: Server, transport: Transport) -> None:
        self.sock = sock
        self.deadline = _NEVER
        self.hung_before = 0
        self._server = server
        self._transport = transport
        self._pieces: list[bytes] = []
        self._reading = False
        self._closed = False

    def sendall(self, data: bytes) -> None:
        """Keep a piece of the request; `flush` sends all pieces, small ones in one packet."""
        self._pieces.append(data)

    def flush(self) -> None:
        """Send the pieces of the request that `sendall` received."""
        view = memoryview(b"".join(self._pieces))
        self._pieces.clear()
        liveness = Liveness()
        while view:
            try:
                view = view[self._wait(lambda: self.sock.send(view)) :]  # noqa: B023
            except TimeoutError:
                liveness = self._check(liveness)

    def has_answer(self) -> bool:
        """True if data has arrived, or the connection has ended; always False with TLS."""
        if isinstance(self.sock, ssl.SSLSocket):
            return False
        return bool(select.select([self.sock], [], [], 0)[0])

    def receive_into(self, buffer: Any) -> int:
        """Receive at least one byte into ``buffer``; return the number, 0 at the end."""
        liveness = Liveness()
        while True:
            try:
                size = self._wait(lambda: self.sock.recv_into(buffer))
                self._transport.hung_in_a_row = 0
                return size
            except TimeoutError:
                liveness = self._check(liveness)

    def _wait(self, operation: Callable[[], int]) -> int:
        remaining = self.deadline - now()
        if remaining <= 0:
            raise DeadlinePassed("the deadline passed")
        self.sock.settimeout(min(self._transport.policy.silence_s, remaining))
        return operation()

    def _check(self, liveness: Liveness) -> Liveness:
        """Probe the silent server until it answers or refuses; return the counts of failed probes.

        Raises Hung if the server counts as hung.
        """
        policy = self._transport.policy
        while now() < self.deadline:
            pulse = self._transport.pulse(self._server)
            liveness = liveness.after(pulse)
            if liveness.hung(policy, self.hung_before):
                self._transport.hung_in_a_row += 1
                raise Hung(f"{self._server} accepts connections but does not answer")
            if pulse is not Pulse.SILENT:
                break
        return liveness

    def makefile(self, mode: str, *_: object) -> io.BufferedReader:
        self._reading = True
        return io.BufferedReader(_Reader(self), 1 << 16)

    def reader_closed(self) -> None:
        """Note that the response has been read; close the socket if http.client has closed it."""
        self._reading = False
        if self._closed:
            self.sock.close()

    def close(self) -> None:
        self._closed = True
        if not self._reading:
            self.sock.close()

    def abort(self) -> None:
        """Close the socket, also during a read."""
        self._reading = False
        self.close()


class _Reader(io.RawIOBase):
    def __init__(self, watched: _Watched) -> None:
        self._watched = watched

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._watched.receive_into(buffer)

    def close(self) -> None:
        if not self.closed:
            self._watched.reader_closed()
        super().close()


class _Connection:
    """One HTTP connection to a server."""

    def __init__(self, server: Server, transport: Transport, sock: socket.socket) -> None:
        self.watched = _Watched(sock, server, transport)
        self.http = http.client.HTTPConnection(server.host, server.port)
        self.http.sock = cast(socket.socket, self.watched)
        self.used_at = now()

    def usable(self) -> bool:
        """True if an unused connection will probably work: it is not old, and was not closed."""
        if now() - self.used_at > _IDLE_MAX_S or self.http.sock is None:
            return False
        sock = self.watched.sock
        sock.settimeout(0)
        try:
            sock.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            return True
        except OSError:
            return False
        return False

    def close(self) -> None:
        self.watched.abort()
        self.http.close()


class Response:
    """A server's answer: its status and headers, and the body, which is still to be read."""

    def __init__(
        self,
        connection: _Connection,
        answer: http.client.HTTPResponse,
        release: Callable[..., None],
    ) -> None:
        self.status = answer.status
        self._answer = answer
        self._connection: _Connection | None = connection
        self._release = release

    def header(self, name: str) -> str | None:
        """Return the value of a header; None if the answer does not have it."""
        return self._answer.headers.get(name)

    def without_deadline(self) -> None:
        """Remove the deadline, for a caller that reads slowly; a hung server still ends it."""
        if self._connection is not None:
            self._connection.watched.deadline = _NEVER

    def read_some(self) -> bytes:
        """Return the next bytes of the body; empty at its end. Raises WireError."""
        if self._connection is None:
            return b""
        with _wire_errors(self._connection):
            data = self._answer.read1(_READ_BYTES)
            if not data and self._answer.length:
                raise Broken("the answer broke off")
        if not data:
            connection, self._connection = self._connection, None
            keep = not self._answer.will_close
            self._answer.close()
            self._release(connection, keep)
        return data

    def close(self) -> None:
        """Close the connection if the body was not read to its end."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


@contextmanager
def _wire_errors(connection: _Connection) -> Iterator[None]:
    try:
        yield
    except WireError:
        connection.close()
        raise
    except (OSError, http.client.HTTPException, ValueError) as error:
        connection.close()
        raise Broken(f"the connection broke: {error or type(error).__name__}") from error
    except BaseException:  # a KeyboardInterrupt must not leave half an answer behind
        connection.close()
        raise


def _send_in_pieces(watched: _Watched, body: Iterator[bytes]) -> bool:
    """Send a body in chunks until it or the answer arrives; return True if all was sent."""
    for piece in body:
        if not piece:
            continue
        watched.sendall(b"%x\r\n" % len(piece) + piece + b"\r\n")
        watched.flush()
        if watched.has_answer():
            return False
    watched.sendall(b"0\r\n\r\n")
    watched.flush()
    return True


class Transport:
    """The connections to all servers; many threads use them."""

    def __init__(self, settings: Settings) -> None:
        self.policy: Policy = settings.policy
        self.hung_in_a_row = 0
        """The number of attempts that ended at hung servers since the last answer."""
        self._idle: dict[int, deque[_Connection]] = {}
        self._tls = settings.tls
        # The user's files are read at once: their errors are the caller's.
        self._context = settings.tls.context() if settings.tls else None
        self._closed = False

    def request(
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
        connection = self._checkout(server, deadline)
        connection.watched.deadline = deadline
        connection.watched.hung_before = self.hung_in_a_row
        whole = True
        with _wire_errors(connection):
            client = connection.http
            client.putrequest(method, server.prefix + path, skip_accept_encoding=True)
            for name, value in headers.items():
                client.putheader(name, value)
            if isinstance(body, bytes):
                client.putheader("Content-Length", str(len(body)))
                client.endheaders(body or None)
                connection.watched.flush()
            else:
                client.putheader("Transfer-Encoding", "chunked")
                client.endheaders()
                whole = _send_in_pieces(connection.watched, body)
            answer = client.getresponse()
        return Response(
            connection, answer, lambda used, keep: self._checkin(server, used, keep=keep and whole)
        )

    def connect(self, server: Server, timeout_s: float) -> socket.socket:
        """Open a socket to the server. Raises NotReached."""
        with ExitStack() as failed:
            try:
                sock = socket.create_connection((server.host, server.port), timeout_s)
                failed.callback(sock.close)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if server.secure:
                    self._context = self._context or self._tls.context()
                    sock = self._context.wrap_socket(sock, server_hostname=server.host)
            except (OSError, ValueError) as error:
                raise NotReached(f"{server} cannot be reached: {error}") from error
            failed.pop_all()
            return sock

    def pulse(self, server: Server) -> Pulse:
        """Probe a server on a new connection; return if it is alive, refuses, or is silent."""
        try:
            answer = self._get(server, "/healthz", {})
        except NotReached as error:
            refused = isinstance(error.__cause__, ConnectionRefusedError)
            return Pulse.REFUSED if refused else Pulse.SILENT
        return Pulse.SILENT if answer is None else Pulse.ALIVE

    def fetch(self, server: Server, path: str, headers: dict[str, str]) -> tuple[int, bytes] | None:
        """Return status and body of a small document, over a new connection.

        None if it does not arrive in time.
        """
        try:
            return self._get(server, path, headers)
        except NotReached:
            return None

    def _get(self, server: Server, path: str, headers: dict[str, str]) -> tuple[int, bytes] | None:
        """Return status and body of a GET; None if no answer came in time. Raises NotReached."""
        limit = self.policy.probe_timeout_s
        client = http.client.HTTPConnection(server.host, server.port)
        client.sock = self.connect(server, limit)
        client.sock.settimeout(limit)
        try:
            client.request("GET", server.prefix + path, headers={**headers, "Connection": "close"})
            with client.getresponse() as answer:
                return answer.status, answer.read(DOCUMENT_BYTES_MAX)
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            client.close()

    def _checkout(self, server: Server, deadline: float) -> _Connection:
        idle = self._idle.setdefault(server.index, deque())
        while True:
            try:
                connection = idle.pop()
            except IndexError:
                limit = min(self.policy.connect_timeout_s, max(0.001, deadline - now()))
                return _Connection(server, self, self.connect(server, limit))
            if connection.usable():
                return connection
            connection.close()

    def _checkin(self, server: Server, connection: _Connection, *, keep: bool) -> None:
        idle = self._idle.setdefault(server.index, deque())
        if not keep or self._closed or len(idle) >= _IDLE_CONNECTIONS_MAX:
            connection.close()
            return
        connection.used_at = now()
        idle.append(connection)
        if self._closed:  # just now, by another thread
            self.close()

    def close(self) -> None:
        """Close every unused connection; those in use close when their answer is read."""
        self._closed = True
        for idle in list(self._idle.values()):
            with suppress(IndexError):  # it is empty
                while True:
                    idle.pop().close()
