"""One connection to a Spark Connect server, and the meaning of its failed calls.

The calls are raw gRPC on the generated messages. Every call has a deadline. Streams are not
reattachable: for reattachable ones the server keeps results back and cuts the stream after two
minutes. A broken stream is an availability error, which the caller handles. Keepalive pings run
only during a call. A server that does not answer them (frozen, or behind a cut cable) breaks the
connection.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2

from haproc import protos, tracing, wire
from haproc.engine.errors import (
    EngineError,
    ErrorKind,
    Link,
    NoQueryError,
    RelayedError,
    kind_of_chain,
    kind_of_code,
    needs_causes,
)
from haproc.engine.interface import EngineAddress
from haproc.engine.tasks import Tasks
from haproc.failure import ErrorClass
from haproc.spark_error import NO_DETAILS, Context, Details, details

# From a failed gRPC call to an EngineError.
#
# Spark packs an ErrorInfo into the call's trailing metadata: the outermost error's class, SQLSTATE,
# Java classes and (a few) parameters, and its message, cut at 2,048 characters. The whole message,
# its places in the SQL text and the causes are fetched (FetchErrorDetails) where they matter.
# Faults of the cluster do not need them. The server keeps them for a while under an id.


_MESSAGE_CUT_AT = 2000
"""Spark cuts a status message at 2,048 characters; longer ones are fetched in full."""
_DETAILS = "grpc-status-details-bin"
_REFUSALS = (
    *(ErrorClass.NO_QUERY, ErrorClass.PATH, ErrorClass.OPTION, ErrorClass.TABLE_NAME),
    *(ErrorClass.NONDETERMINISTIC, ErrorClass.STATEMENT_TOO_COMPLEX),
)
"""The error classes with which the plugin's messages begin (haproc/spark)."""
_OF_PLUGIN = ("java.lang.IllegalArgumentException",)
_OF_FRAME = protos.base.FetchErrorDetailsResponse.QueryContext.DATAFRAME


@dataclass(frozen=True, slots=True)
class CallFailure:
    """A failed call, as its gRPC status shows it; ``link`` is None if Spark named no error."""

    code: str
    message: str
    link: Link | None = None
    error_id: str = ""
    details: Details = NO_DETAILS

    @property
    def refusal(self) -> tuple[str, str]:
        """Return class and text of a refusal by HAProc's plugin; two empty texts if it is none."""
        # The plugin cannot give an error class of its own: Spark's are a closed list.
        link, (error_class, found, rest) = self.link, self.message.partition(": ")
        is_ours = link is not None and not link.error_class and link.java_classes[:1] == _OF_PLUGIN
        return (error_class, rest) if is_ours and found and error_class in _REFUSALS else ("", "")

    @property
    def wants_details(self) -> bool:
        """True if the server knows more about the error than this, and HAProc needs it."""
        if self.link is None or not self.error_id or self.refusal[0]:
            return False
        cut = len(self.message) >= _MESSAGE_CUT_AT
        if cut or not self.link.error_class or needs_causes(self.link):
            return True
        return kind_of_chain([self.link]) is ErrorKind.APPLICATION

    def error(self) -> EngineError:
        """Return the error as the failed call shows it. It does not ask the server for causes."""
        if self.link is None:
            kind = kind_of_code(self.code)
            message = self.message or "no word about what went wrong"
            return EngineError(kind, f"{self.code}: {message}", error_class=self.code)
        refusal, parameters = self.refusal
        if refusal == ErrorClass.NO_QUERY:
            return NoQueryError(tuple(parameters.split(", ")), self.details)
        if refusal:
            return EngineError(ErrorKind.APPLICATION, parameters, error_class=refusal)
        return EngineError(
            kind_of_chain([self.link], whole=False),
            self.message,
            error_class=self.link.error_class,
            sqlstate=self.link.sqlstate,
            details=self.details,
        )


def relayed(error: grpc.aio.AioRpcError) -> RelayedError:
    """Return a failed call as a RelayedError, which gives clients the server's error unchanged."""
    failed = decode(error)
    packed = next((v for k, v in error.trailing_metadata() or () if k == _DETAILS), b"")
    return RelayedError(failed.error(), failed.code, failed.message, bytes(packed))


def decode(error: grpc.aio.AioRpcError) -> CallFailure:
    """Return the failed call's gRPC code, and the error of Spark in its trailing metadata."""
    code = error.code().name
    message = error.details() or ""
    for key, value in error.trailing_metadata() or ():
        if key == _DETAILS:
            info = _error_info(value)
            if info is not None:
                return _with_info(code, message, dict(info.metadata))
    return CallFailure(code, message)


def _error_info(packed: bytes) -> Any | None:
    try:
        status = wire.parsed(status_pb2.Status, packed)
        for detail in status.details:
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info):
                return info
    except ValueError:  # a proxy in between may have cut the metadata
        pass
    return None


def _with_info(code: str, message: str, metadata: dict[str, str]) -> CallFailure:
    try:
        java_classes = tuple(str(name) for name in json.loads(metadata.get("classes", "[]")))
    except ValueError:
        java_classes = ()
    try:
        given = json.loads(metadata.get("messageParameters", "{}"))
        parameters = {str(name): str(value) for name, value in given.items()}
    except (ValueError, AttributeError):
        parameters = {}
    link = Link(metadata.get("errorClass", ""), metadata.get("sqlState", ""), java_classes)
    described = details(java_classes, parameters)
    return CallFailure(code, message, link, metadata.get("errorId", ""), described)


def error_with_details(failure: CallFailure, response: Any) -> EngineError:
    """Return the error of a failed call, with the causes in a FetchErrorDetailsResponse.

    ``response``: the server's answer.
    """
    if not response.HasField("root_error_idx") or failure.link is None:
        return failure.error()
    chain, described = [failure.link], [failure.details]
    errors = list(response.errors)
    index, messages = response.root_error_idx, [failure.message]
    seen: set[int] = set()
    while 0 <= index < len(errors) and index not in seen:
        seen.add(index)
        link, message = _link(errors[index]), errors[index].message
        if len(seen) == 1:
            link = _merged(failure.link, link)
            chain, messages = [link], [message or failure.message]
            described = [_details(link, errors[index])]
        else:
            chain.append(link)
            messages.append(message)
            described.append(_details(link, errors[index]))
        if not errors[index].HasField("cause_idx"):
            break
        index = errors[index].cause_idx
    at = _shown(chain)
    return EngineError(
        kind_of_chain(chain),
        messages[at] or messages[0],
        error_class=chain[at].error_class,
        sqlstate=chain[at].sqlstate,
        details=described[at],
    )


def _details(link: Link, error: Any) -> Details:
    throwable = error.spark_throwable
    contexts = (
        Context(
            each.context_type == _OF_FRAME,
            each.object_type,
            each.object_name,
            each.start_index,
            each.stop_index,
            each.fragment,
            each.call_site,
            each.summary,
        )
        for each in throwable.query_contexts
    )
    return details(link.java_classes, dict(throwable.message_parameters), contexts)


def _link(error: Any) -> Link:
    throwable = error.spark_throwable
    return Link(throwable.error_class, throwable.sql_state, tuple(error.error_type_hierarchy))


def _merged(first: Link, second: Link) -> Link:
    return Link(
        first.error_class or second.error_class,
        first.sqlstate or second.sqlstate,
        first.java_classes or second.java_classes,
    )


def _shown(chain: list[Link]) -> int:
    """Return the index of the error in ``chain`` that the client gets.

    That is the first one with an error class whose verdict decides; else the first one with an
    error class; else the outermost.
    """
    named = [at for at, link in enumerate(chain) if link.error_class]
    return next((at for at in named if not needs_causes(chain[at])), named[0] if named else 0)


# One connection to a Spark Connect server, shared by all its sessions.


_SERVICE = "/spark.connect.SparkConnectService/"
_KIND = {"ExecutePlan": "unary_stream", "AddArtifacts": "stream_unary"}
_CONNECT_TIMEOUT_MS = 5000
"""The time limit of one attempt to connect (gRPC's name for the option misleads). 100 ms were too
few for a server just started."""
_LAST_CALLS_TIMEOUT_S = 1.0
"""The time for unfinished interrupts when the connection closes. Chosen."""


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits of the connection to a Spark server: sizes and times."""

    message_bytes_max: int = 128 * 1024 * 1024
    """The largest message in either direction: Spark's own default."""
    control_timeout_s: float = 10.0
    """The deadline of calls that run no statement: interrupts, states, error details. Chosen."""
    small_statement_timeout_s: float = 60.0
    """The deadline of HAProc's own small statements (USE, a table's columns) and of settings: a
    cold server on a busy machine took over 10 s for the first call of a session."""
    keepalive_interval_s: float = 10.0
    """The interval of pings during a call. The server accepts them because it sends progress
    reports (every 2 s). Chosen, not measured."""
    ping_timeout_s: float = 20.0
    """The time for the answer to a ping. Chosen: longer than a server's garbage collection."""
    reconnect_backoff_s_max: float = 1.0
    """The longest pause before the next attempt to reach a server again."""
    interrupt_wait_s: float = 15.0
    """The time that an interrupted statement may take to end. Chosen, not measured."""
    applied_bytes_max: int = 1024 * 1024
    """The most bytes kept of a write's result; the rest is dropped."""
    history_rows: int = 64
    """The number of a table's newest commits that are searched first for a transaction marker."""
    tables_at_once: int = 4
    """The number of tables with histories that are read at the same time."""
    session_touch_interval_s: float = 600.0
    """The interval of calls in idle sessions, which keep them: the server drops a session after an
    hour without a call."""


class Channel:
    """The connection to one Spark server: makes its calls, and sends the token with each."""

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
        """Start ExecutePlan; return the call, which yields messages (None for an unreadable one).

        Raises EngineError for a request that is larger than servers take.
        """
        self.check_bytes(len(request))
        return self._traced("ExecutePlan", self._execute, request, timeout_s)

    def _traced(self, rpc: str, call: Any, request: Any, timeout_s: float) -> Any:
        """Start a call that runs a statement, with its own trace span if its request has one."""
        span = tracing.statement(rpc)
        if span is None:
            return call(request, timeout=timeout_s, metadata=self._metadata)
        started = call(request, timeout=timeout_s, metadata=(*self._metadata, *span.headers))
        started.add_done_callback(lambda _: span.end())
        return started

    async def unary(self, name: str, request: Any, timeout_s: float) -> Any:
        """Make a call with one answer; return the answer, or None if it is not readable.

        Raises grpc.aio.AioRpcError if the call fails.
        """
        data = request.SerializeToString()
        self.check_bytes(len(data))
        return await self._unary[name](data, timeout=timeout_s, metadata=self._metadata)

    def relay(self, name: str) -> Any:
        """Return the gRPC call of this name; its requests and answers are bytes, not parsed."""
        if name not in self._raw:
            make = getattr(self._channel, _KIND.get(name, "unary_unary"))
            self._raw[name] = make(_SERVICE + name)
        call = self._raw[name]
        if name == "ExecutePlan":
            return lambda request, timeout_s: self._traced(name, call, request, timeout_s)
        return lambda request, timeout_s: call(request, timeout=timeout_s, metadata=self._metadata)

    def in_background(self, call: Coroutine[Any, Any, None]) -> None:
        """Run a call in the background; nothing waits for its outcome."""
        task = asyncio.create_task(call)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def aclose(self) -> None:
        """Close the connection; unfinished calls are cancelled."""
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
    """Return a function that parses an answer; it returns None if that fails (`wire.parsed`)."""

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
