"""One connection to a Spark Connect server, shared by all its sessions.

The calls are raw gRPC on the generated messages. Every call has a deadline. Streams are not
reattachable: the server then keeps no results back and does not cut the stream after two minutes
(it does for reattachable ones); a stream that breaks is an availability error, and what to do about
that is decided above. Keepalive pings run only while a call does, and a server that does not answer
them (frozen, or behind a cut cable) breaks the connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from haproc import protos, tracing, wire
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import EngineAddress
from haproc.engine.tasks import Tasks

_SERVICE = "/spark.connect.SparkConnectService/"
_KIND = {"ExecutePlan": "unary_stream", "AddArtifacts": "stream_unary"}
_CONNECT_TIMEOUT_MS = 5000
"""For one attempt (gRPC's name for it misleads); 100 ms were too few for a server just started."""
_LAST_CALLS_TIMEOUT_S = 1.0
"""The time for interrupts under way when the connection closes. Chosen."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Bounds and deadlines of a connection."""

    message_bytes_max: int = 128 * 1024 * 1024
    """One message in either direction: Spark's own default."""
    control_timeout_s: float = 10.0
    """For calls that run no statement: interrupts, states, error details. Chosen."""
    small_statement_timeout_s: float = 60.0
    """For statements of the engine's own (USE, a table's columns), and settings: a cold server on a
    busy machine took over 10 s for the first call of a session."""
    keepalive_interval_s: float = 10.0
    """A running call's connection is pinged this often; a server's progress reports (2 s) keep it
    from minding that. Chosen, not measured."""
    ping_timeout_s: float = 20.0
    """The time that a ping may take. Chosen: longer than a server's garbage collection."""
    reconnect_backoff_s_max: float = 1.0
    """A server that comes back is noticed at most this late."""
    interrupt_wait_s: float = 15.0
    """The time that an interrupted statement may take to end. Chosen, not measured."""
    applied_bytes_max: int = 1024 * 1024
    """The most bytes kept of a write's result; longer ones lose their end."""
    history_rows: int = 64
    """The number of a table's newest commits that are read at first for its last mark."""
    tables_at_once: int = 4
    """The number of tables whose histories are read at the same time."""
    session_touch_interval_s: float = 600.0
    """Idle sessions are touched this often; the server drops them after an hour by default."""


class Channel:
    """The calls of one server, with its token on each of them."""

    def __init__(self, address: EngineAddress, limits: EngineLimits) -> None:
        self.limits = limits
        self.address = address
        self.tasks = Tasks(time.monotonic)
        self._background: set[asyncio.Task[None]] = set()
        self.closing = asyncio.Event()
        self._metadata = (("authorization", f"Bearer {address.token}"),) if address.token else ()
        self._raw: dict[str, Any] = {}
        target = f"{address.host}:{address.port}"
        options = _options(limits)
        if address.tls:
            roots = address.ca_file.read_bytes() if address.ca_file is not None else None
            self._channel = grpc.aio.secure_channel(
                target, grpc.ssl_channel_credentials(roots), options=options
            )
        else:
            self._channel = grpc.aio.insecure_channel(target, options=options)
        base = protos.base
        self._execute = self._channel.unary_stream(
            _SERVICE + "ExecutePlan", response_deserializer=_reader(base.ExecutePlanResponse)
        )
        self._unary = {
            name: self._channel.unary_unary(
                _SERVICE + name, response_deserializer=_reader(getattr(base, f"{name}Response"))
            )
            for name in (
                "Config",
                "AnalyzePlan",
                "Interrupt",
                "GetStatus",
                "FetchErrorDetails",
                "ReleaseSession",
            )
        }

    def execute(self, request: bytes, timeout_s: float) -> Any:
        """Start ExecutePlan; the messages (None: not readable) are read from the returned call.

        Raises EngineError for a request that is larger than servers take.
        """
        self.check_bytes(len(request))
        return self._traced("ExecutePlan", self._execute, request, timeout_s)

    def _traced(self, rpc: str, call: Any, request: Any, timeout_s: float) -> Any:
        """Start a call that runs a statement, with a span of its own if its request has one."""
        span = tracing.statement(rpc)
        if span is None:
            return call(request, timeout=timeout_s, metadata=self._metadata)
        started = call(request, timeout=timeout_s, metadata=(*self._metadata, *span.headers))
        started.add_done_callback(lambda _: span.end())
        return started

    async def unary(self, name: str, request: Any, timeout_s: float) -> Any:
        """Make one of the calls that have one answer (None: it is not readable).

        Raises grpc.aio.AioRpcError.
        """
        data = request.SerializeToString()
        self.check_bytes(len(data))
        return await self._unary[name](data, timeout=timeout_s, metadata=self._metadata)

    def relay(self, name: str) -> Any:
        """Return the call of this name, of bytes that are nobody's message here."""
        if name not in self._raw:
            make = getattr(self._channel, _KIND.get(name, "unary_unary"))
            self._raw[name] = make(_SERVICE + name)
        call = self._raw[name]
        if name == "ExecutePlan":
            return lambda request, timeout_s: self._traced(name, call, request, timeout_s)
        return lambda request, timeout_s: call(request, timeout=timeout_s, metadata=self._metadata)

    def in_background(self, call: Coroutine[Any, Any, None]) -> None:
        """Make a call whose outcome nobody waits for."""
        task = asyncio.create_task(call)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def aclose(self) -> None:
        """Close the connection; calls under way are cancelled."""
        self.closing.set()
        if self._background:
            await asyncio.wait(self._background, timeout=_LAST_CALLS_TIMEOUT_S)
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._channel.close(None)

    def check_bytes(self, size: int) -> None:
        """Raise EngineError for a message that is larger than servers take."""
        if size > self.limits.message_bytes_max:
            raise EngineError(
                ErrorKind.APPLICATION,
                f"The statement has {size} bytes; a Spark cluster takes at most "
                f"{self.limits.message_bytes_max}. Write in smaller parts.",
                error_class="STATEMENT_TOO_LARGE",
                sqlstate="54000",
            )


def _reader(message: Any) -> Callable[[bytes], Any]:
    """Return the reader of an answer; None if it is not to be read (`wire.parsed`)."""

    def read(data: bytes) -> Any:
        try:
            return wire.parsed(message, data)
        except ValueError:
            return None

    return read


def _options(limits: EngineLimits) -> list[tuple[str, int]]:
    keepalive_ms = int(limits.keepalive_interval_s * 1000)
    ping_ms = int(limits.ping_timeout_s * 1000)
    return [
        ("grpc.max_send_message_length", limits.message_bytes_max),
        ("grpc.max_receive_message_length", limits.message_bytes_max),
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", ping_ms),
        ("grpc.http2.ping_timeout_ms", ping_ms),  # else gRPC 1.85 waits for a minute
        ("grpc.keepalive_permit_without_calls", 0),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", _CONNECT_TIMEOUT_MS),
        ("grpc.max_reconnect_backoff_ms", int(limits.reconnect_backoff_s_max * 1000)),
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
