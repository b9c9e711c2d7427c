"""The gRPC listener of the Spark Connect door, its health check, and how it sends clients away."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import grpc
import grpc.aio

from dmq import Json
from haproc.config.model import Address, Connect
from haproc.config.tls import Certificates, Pem
from haproc.doors.connect.calls import abort
from haproc.doors.connect.errors import call_end
from haproc.doors.http.connections import HEAD_S
from haproc.engine.rewriting import fields_of
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome

# Figures of the Spark Connect door for operators: numbers, never names or statements.


@dataclass(frozen=True, slots=True)
class Figures:
    """Numbers of the Spark Connect door for operators.

    - ``statements``: how many run now, by the effect of their plans (`Does`);
    - ``operations``: how many run, or have ended and were not released by their clients;
    - ``resumed``: how many results broke off and were continued by a new run of their request,
      since this HAProc started.
    """

    statements: Mapping[str, int]
    operations: int
    resumed: int

    def fields(self) -> dict[str, Json]:
        """Return the numbers in the form of the answer to ``/clusterStatus``."""
        return {
            "statements": dict(self.statements),
            "operations": self.operations,
            "resumed": self.resumed,
        }


# gRPC's health service: it shows if this door takes new requests.
#
# It needs no token and reveals nothing else, so that load balancers and clients may call it before
# they send anything. haclient calls it on each new connection.


HEALTH: Final = "grpc.health.v1.Health"
_SERVICE: Final = 1
"""The field of HealthCheckRequest with the service's name; empty means the whole server."""
SERVICE: Final = b"spark.connect.SparkConnectService"
SERVING: Final = b"\x08\x01"
NOT_SERVING: Final = b"\x08\x02"
"""Serialized HealthCheckResponses."""


def health_handler(serves: Callable[[], bool]) -> grpc.GenericRpcHandler:
    """Return the handler of health checks; it calls ``serves`` at each one for the answer."""

    async def check(request: bytes, context: Any) -> bytes:
        try:
            service = b"".join(fields_of(request, _SERVICE)[-1:])
        except ValueError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is no health check")
        if service not in (b"", SERVICE):
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return SERVING if serves() else NOT_SERVING

    method = grpc.unary_unary_rpc_method_handler(check)
    return grpc.method_handlers_generic_handler(HEALTH, {"Check": method})


# A server that is about to close sends its clients away first.
#
# If a call arrives just as its server shuts down, gRPC ends it with CANCELLED. Clients of Spark
# Connect do not repeat that: a program would see it. So for a moment, until no more calls come,
# each is answered UNAVAILABLE, with a pause (`DRAINING_RETRY_S`) that is longer than that moment:
# each client comes once, and finds the door closed when it comes again.


_TURN_S: Final = 0.01
_QUIET_TURNS: Final = 10
_TURNS_MAX: Final = 50
"""Half a second. Turns of the event loop are counted, not time: if the loop was busy, calls that
came meanwhile are accepted before its next turn."""


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The handlers of one gRPC server; after `send_away` they refuse every call."""

    def __init__(self, handlers: grpc.GenericRpcHandler) -> None:
        self._handlers = handlers
        self._leaving = False
        self._refused = 0

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a call; None if there is no such call."""
        handler = self._handlers.service(handler_call_details)
        if handler is None or not self._leaving:
            return handler
        self._refused += 1
        return _refusing(handler)

    async def send_away(self) -> None:
        """Refuse all new calls from now on; return once no more come, or after half a second."""
        self._leaving = True
        quiet = 0
        for _ in range(_TURNS_MAX):
            before = self._refused
            await asyncio.sleep(_TURN_S)
            quiet = quiet + 1 if self._refused == before else 0
            if quiet == _QUIET_TURNS:
                return


def _refusing(handler: Any) -> Any:
    """Return a handler of the same kind that refuses every call: the client shall try again."""

    async def refuse(_: Any, context: Any) -> None:
        error = RequestError(
            FailureKind.AVAILABILITY,
            "this HAProc closes its door",
            error_class=ErrorClass.DRAINING,
            outcome=WriteOutcome.NOT_SENT,
        )
        await abort(context, call_end(error))

    if handler.request_streaming:
        return grpc.stream_unary_rpc_method_handler(refuse)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(refuse)
    return grpc.unary_unary_rpc_method_handler(refuse)


# The door's listener: a gRPC server while it is open.
#
# A stopped gRPC server cannot start again, so each opening makes a new one. Closing sends clients
# on their connections elsewhere (GOAWAY) and refuses new ones, while running calls end.


HANDSHAKE_S: Final = HEAD_S
"""The time a client has to begin, as at the HTTP doors; after it, its connection is closed."""
MESSAGE_BYTES_MAX: Final = 128 << 20
"""The most bytes of a message, as in Spark's own servers and clients."""


class ConnectListener:
    """The listener of the Spark Connect door; closed until `open` is called."""

    def __init__(
        self,
        handlers: grpc.GenericRpcHandler,
        address: Address,
        settings: Connect,
        *,
        shutdown_s: float = 30.0,
        serves: Callable[[], bool],
        figures: Callable[[], Figures],
        end: Callable[[], Awaitable[None]],
        certificates: Certificates | None = None,
    ) -> None:
        """``serves``: True if a health check shall succeed; ``figures``: numbers for operators.

        ``end`` is awaited in `aclose`, after the last server has ended. With ``certificates`` the
        listener speaks TLS only.
        """
        self._health = health_handler(lambda: serves() and self.is_open)
        self.figures = figures
        self._end = end
        self._handlers = handlers
        self._settings = settings
        self._certificates = certificates
        self._shutdown_s = shutdown_s
        self._server: tuple[Any, Handlers] | None = None
        self._changing = asyncio.Lock()
        self._ending: set[asyncio.Task[None]] = set()
        self.address = address
        """The address in the configuration."""
        self.port = address.port
        """The port that is open; not the configured one if that is 0."""

    @property
    def url(self) -> str:
        """The address to which PySpark connects."""
        return f"sc://{Address(self.address.host, self.port)}"

    @property
    def is_open(self) -> bool:
        """True if connections are accepted."""
        return self._server is not None

    async def open(self) -> None:
        """Accept connections; OSError if that fails.

        It is harmless if the listener is open already.
        """
        async with self._changing:
            if self._server is not None:
                return
            server = grpc.aio.server(options=_options(self._settings))
            handlers = Handlers(self._handlers)
            server.add_generic_rpc_handlers((handlers, self._health))
            self.port = self._listen(server)
            try:
                await server.start()
            except BaseException:  # cancellation, too: nothing is left listening
                self._stop(server)
                raise
            self._server = server, handlers

    def _listen(self, server: Any) -> int:
        where, certificates = str(self.address), self._certificates
        try:
            if certificates is None:
                return int(server.add_insecure_port(where))
            return int(server.add_secure_port(where, _credentials(certificates)))
        except RuntimeError as error:  # the error has no text
            raise _why_not(self.address) from error

    async def close(self) -> None:
        """Refuse connections and new calls from now on; calls that run can still end."""
        async with self._changing:
            if self._server is None:
                return
            (server, handlers), self._server = self._server, None
            try:
                await handlers.send_away()
            finally:
                self._stop(server)
            await asyncio.sleep(0)

    def _stop(self, server: Any) -> None:
        task = asyncio.create_task(server.stop(self._shutdown_s))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def aclose(self) -> None:
        """Close the listener for good; wait at most ``shutdown_s`` for calls that run."""
        await self.close()
        if self._ending:
            await asyncio.wait(self._ending, timeout=self._shutdown_s)
        await self._end()


def _credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """Return credentials with which each new connection uses the certificates of that moment."""
    last = certificates.now.pem

    def changed() -> Any:
        """Return new certificates if they have changed; gRPC calls this in threads of its own."""
        nonlocal last
        pem = certificates.now.pem
        if pem is last:
            return None
        last = pem
        return _configuration(pem)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(last), changed, require_client_authentication=certificates.requires_clients
    )


def _configuration(pem: Pem) -> Any:
    pairs = [(pem.key, pem.certificate)]
    return grpc.ssl_server_certificate_configuration(pairs, root_certificates=pem.ca or None)


def _why_not(address: Address) -> OSError:
    """Return the error that says why this process cannot listen on an address."""
    try:
        family, _, _, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM
        )[0]
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(where)
    except OSError as error:
        return error
    return OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def _options(settings: Connect) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.server_handshake_timeout_ms", int(HANDSHAKE_S * 1000)),
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_concurrent_streams", settings.streams_max),
        # PySpark's clients ping every minute; more often does no harm.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
