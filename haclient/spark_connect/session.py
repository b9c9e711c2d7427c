"""Opens a PySpark session on a gRPC channel that leads to several servers."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession

from haclient import failover
from haclient.exceptions import DatabaseError, InterfaceError
from haclient.protocol import Leaving, WireError
from haclient.settings import (
    Failover,
    Server,
    Settings,
    TlsFiles,
    order_of,
    policy_of,
    tls_files,
    whole,
)
from haclient.spark_connect.calls import (
    Begun,
    Ended,
    GivenUp,
    Lost,
    Method,
    Options,
    download,
    judged,
    named,
    unary,
    upload,
)
from haclient.spark_connect.links import Link, Links
from haclient.sync.ring import Ring, Work
from haclient.sync.transport import StateLock, now
from haclient.sync.view import View

# `sc://a:15002,b:15002/;token=…`: PySpark's connection string with several servers.
#
# The text behind the servers holds for all of them; PySpark reads it.


SCHEME = "sc://"
PORT = 15002
"""The port of a server whose address states none; it is Spark's usual port."""


@dataclass(frozen=True, slots=True)
class Address:
    """PySpark's connection string, in two parts: the servers, and the parameters behind them."""

    servers: tuple[Server, ...]
    parameters: str
    """The text from the slash on; it may contain a token."""

    def of(self, server: Server) -> str:
        """Return PySpark's connection string for one of the servers alone."""
        return server.url + self.parameters


def read_address(url: str) -> Address:
    """Parse a connection string with several servers. Raises InterfaceError."""
    if not url.startswith(SCHEME):
        raise InterfaceError("expected the servers as 'sc://host:port,host:port/;name=value'")
    authority, slash, rest = url.removeprefix(SCHEME).partition("/")
    secure = any(each.strip().lower() == "use_ssl=true" for each in rest.split(";"))
    texts = [text for each in authority.split(",") if (text := each.strip())]
    servers = tuple(_server(index, text, secure) for index, text in enumerate(texts))
    if not servers:
        raise InterfaceError("no server is given: expected for instance 'sc://a:15002,b:15002'")
    if len({server.url for server in servers}) < len(servers):
        raise InterfaceError("a server is listed twice")
    return Address(servers, slash + rest)


def _server(index: int, text: str, secure: bool) -> Server:
    try:
        parts = urllib.parse.urlsplit(f"//{text}")
        port = parts.port or PORT
    except ValueError as error:
        raise InterfaceError(f"{text!r} is not the address of a server: {error}") from error
    if not parts.hostname or parts.netloc != text or "@" in text or ";" in text:
        raise InterfaceError(
            f"{text!r} is not the address of a server (host:port); parameters stand behind a slash"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return Server(index, f"{SCHEME}{host}:{port}", secure, parts.hostname, port, "")


# A gRPC channel to several servers, for the stubs of Spark Connect.
#
# To its caller it is like any channel. `haclient.sync.ring` runs each call by the failover policy,
# `calls` makes it at one server. A client goes back to a preferred server only between calls, and
# not while the server in use has something that no other can have, such as a checkpoint.


_REATTACH_S = 5.0
"""After a stream ends early, the client stays with its server for this time.

Servers end long streams early, and PySpark then attaches to them again.
"""
_RELEASE_S = 2.0
"""The time limit of Release calls: if they fail, the server releases later by itself. Chosen."""
_BOUND = frozenset({"checkpoint_command_result", "ml_command_result"})
"""Kinds of responses that name an object which exists only on this server."""


class RingChannel(grpc.Channel):  # type: ignore[misc]
    """The gRPC channel of one PySpark session, to all servers; threads share it."""

    def __init__(self, settings: Settings, open_channel: Callable[[Server], grpc.Channel]) -> None:
        self.links = Links(settings.policy, open_channel)
        self.view = View(settings, self.links, self._stays)
        self._settings = settings
        self._ring = Ring(settings, self.view)
        self._cut_at = -math.inf
        self._bound_to: int | None = None

    def _stays(self) -> bool:
        bound = self._bound_to == self.view.current.index
        return self.links.busy or bound or now() - self._cut_at < _REATTACH_S

    def try_servers(self, request_id: str, timeout: float | None, work: Work[Any]) -> Any:
        """Do the work at one server after another until one answers. Raises RpcError."""
        try:
            ended = self._ring.try_servers(
                request_id, math.inf if timeout is None else timeout, work
            )
        except DatabaseError as error:
            raise GivenUp(error) from None
        if isinstance(ended, Ended):
            if ended.lost is not None and ended.server is not None:
                self.broke(ended.server, ended.lost, request_id)
            self.settle()
            if ended.error is not None:
                raise ended.error
        return ended

    def settle(self) -> None:
        """Go back to a preferred server if possible, and if no other call is running."""
        if not self._stays():
            self.view.settled()

    def saw(self, link: Link, response: Any) -> None:
        """Note a response of a stream: its server lives, and may now have an object of its own."""
        self.links.received(link)
        if response.WhichOneof("response_type") in _BOUND:
            self._bound_to = link.server.index

    def cut(self, last: Any) -> None:
        """Note that a stream has ended; without a final response PySpark will attach to it again.

        ``last``: its last response, or None.
        """
        if last is None or last.WhichOneof("response_type") != "result_complete":
            self._cut_at = now()

    def broke(self, server: Server, wire: WireError, request_id: str) -> None:
        """Note that a server failed in the middle of a stream, and report the failover."""
        policy, at = self._settings.policy, now()
        if isinstance(wire, Leaving):
            self.view.left(server)
        else:
            self.view.update(lambda memory: failover.failed(policy, memory, server.index, at))
        memory = self.view.memory
        following = min(memory.preferred, key=lambda each: failover.rank(memory, each, at))
        if self._settings.on_failover is not None:
            url = self.view.server(following).url
            self._settings.on_failover(Failover(request_id, server.url, url, str(wire)))

    # -- grpc.Channel ----------------------------------------------------------------------

    def unary_unary(self, method: str, *serializers: Any, **more: Any) -> _Unary:
        """Return the object that calls a method with one request and one response."""
        made = Method(self.links, method, lambda c: c.unary_unary(method, *serializers, **more))
        release = method.rpartition("/")[2].startswith("Release")
        return _Unary(self, made, unary, _RELEASE_S if release else None)

    def unary_stream(self, method: str, *serializers: Any, **more: Any) -> _Download:
        """Return the object that calls a method with one request and a stream of responses."""
        made = Method(self.links, method, lambda c: c.unary_stream(method, *serializers, **more))
        return _Download(self, made)

    def stream_unary(self, method: str, *serializers: Any, **more: Any) -> _Upload:
        """Return the object that calls a method with a stream of requests and one response."""
        made = Method(self.links, method, lambda c: c.stream_unary(method, *serializers, **more))
        return _Upload(self, made, upload)

    def stream_stream(self, method: str, *serializers: Any, **more: Any) -> Any:
        """Raise NotImplementedError: Spark Connect has no method with streams both ways."""
        raise NotImplementedError(f"{method}: streams in both directions are not repeated")

    def subscribe(self, callback: Any, try_to_connect: bool | None = False) -> None:
        """Raise NotImplementedError: the connections to several servers have no common state."""
        raise NotImplementedError("the channel has a connection to each server that it uses")

    def unsubscribe(self, callback: Any) -> None:
        """Do nothing: `subscribe` is not possible."""

    def close(self) -> None:
        """End all calls and close all connections."""
        self.view.close()
        self.links.close()

    def __enter__(self) -> RingChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Single:
    """The object that calls a gRPC method with one response."""

    def __init__(
        self,
        channel: RingChannel,
        method: Method,
        work: Callable[[Method, Any, Options], Work[Ended]],
        timeout_s: float | None = None,
    ) -> None:
        self._channel = channel
        self._method = method
        self._work = work
        self._timeout_s = timeout_s

    def __call__(self, request: Any, timeout: float | None = None, *args: Any, **kw: Any) -> Any:
        return self.with_call(request, timeout, *args, **kw)[0]

    def with_call(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: Any = None,
        wait_for_ready: Any = None,
        compression: Any = None,
    ) -> tuple[Any, Any]:
        options = Options(metadata, credentials, wait_for_ready, compression)
        timeout = self._timeout_s if timeout is None else timeout
        ended = self._channel.try_servers("", timeout, self._work(self._method, request, options))
        return ended.response, ended.call

    def future(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError("calls of this channel block")


class _Unary(_Single, grpc.UnaryUnaryMultiCallable):  # type: ignore[misc]
    pass


class _Upload(_Single, grpc.StreamUnaryMultiCallable):  # type: ignore[misc]
    pass


class _Download(grpc.UnaryStreamMultiCallable):  # type: ignore[misc]
    def __init__(self, channel: RingChannel, method: Method) -> None:
        self._channel = channel
        self._method = method

    def __call__(
        self,
        request: Any,
        timeout: float | None = None,
        metadata: Any = None,
        credentials: Any = None,
        wait_for_ready: Any = None,
        compression: Any = None,
    ) -> Responses:
        options = Options(metadata, credentials, wait_for_ready, compression)
        work = download(self._method, request, options)
        request_id = named(request)
        return Responses(
            self._channel, request_id, lambda: self._channel.try_servers(request_id, timeout, work)
        )


class Responses(Iterator[Any]):
    """The responses of a stream; the request is sent when the first one is read."""

    def __init__(self, channel: RingChannel, request_id: str, begin: Callable[[], Begun]) -> None:
        self._channel = channel
        self._request_id = request_id
        self._begin: Callable[[], Begun] | None = begin
        self._begun: Begun | None = None
        self._last: Any = None
        self._lock = StateLock()

    def __next__(self) -> Any:
        begin, self._begin = self._begin, None
        if begin is not None:
            self._begun = begin()
            response = self._begun.first
        elif self._begun is not None:
            response = self._following(self._begun)
        else:
            raise StopIteration
        if response is None:
            self._end()
            self._channel.cut(self._last)
            raise StopIteration
        self._last = response
        self._channel.saw(self._begun.link, response)
        return response

    def _following(self, begun: Begun) -> Any:
        """Return the next response, None at the end. Raises RpcError."""
        try:
            return next(begun.call, None)
        except grpc.RpcError as error:
            wire = judged(self._channel.links, begun.link, error)
            self._end(broken=wire is not None)
            if wire is None:
                raise
            self._channel.broke(begun.link.server, wire, self._request_id)
            raise Lost(str(wire), error) from error

    def _end(self, *, broken: bool = False) -> None:
        with self._lock:
            begun, self._begun = self._begun, None
        if begun is not None:
            self._channel.links.leave(begun.link, broken=broken)
            self._channel.settle()

    def cancel(self) -> bool:
        """End the call; return False if it has not begun, or has ended."""
        begun = self._begun
        self._begin = None
        if begun is not None:
            begun.call.cancel()
            self._end()
        return begun is not None

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # the interpreter may be ending
            self.cancel()


# A PySpark session on a channel of HAProc's client.


_RETRY_FIRST_MS = 5
"""PySpark's pause before it attaches to a broken stream again.

The next server is ready by then.
"""
_OPTIONS = (
    # Otherwise channels to one server share a connection, and probes would hang with it.
    ("grpc.use_local_subchannel_pool", 1),
    # A silently dead connection with calls is found within 30 s. HAProcs take pings every 5 s.
    # Chosen.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)


def open_session(
    url: str,
    *,
    order: str = "ordered",
    client_number: int | None = None,
    ca_file: str | Path | None = None,
    certificate_file: str | Path | None = None,
    key_file: str | Path | None = None,
    on_failover: Callable[[Failover], None] | None = None,
    **policy: Any,
) -> SparkSession:
    """Open a PySpark session; the options are those of `haclient.spark`. Raises InterfaceError."""
    address = read_address(url)
    settings = Settings(
        servers=address.servers,
        order=order_of(order),
        client_number=whole("client_number", client_number),
        tls=tls_files(ca_file, certificate_file, key_file),
        discover=False,
        policy=policy_of(policy),
        on_failover=on_failover,
    )
    builder = RingBuilder(address, settings, _credentials(settings.tls))
    # PySpark's own builder does the same: pyspark.sql.functions reads it.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    session = SparkSession.builder.channelBuilder(builder).create()
    session.client.set_retry_policies([_Retries()])
    return session


def _credentials(files: TlsFiles) -> grpc.ChannelCredentials | None:
    """Return gRPC's credentials from the user's TLS files, None without files.

    Raises InterfaceError.
    """
    if not files:
        return None
    files.context()  # its errors name the fault; gRPC's do not
    ca, certificate, key = files.contents()
    return grpc.ssl_channel_credentials(ca, key or certificate, certificate)


class RingBuilder(DefaultChannelBuilder):  # type: ignore[misc]
    """Makes a session's channel; as its host PySpark shows that of the first server."""

    def __init__(self, address: Address, settings: Settings, credentials: Any) -> None:
        super().__init__(address.of(address.servers[0]))
        self._address = address
        self._settings = settings
        self._credentials = credentials

    def toChannel(self) -> RingChannel:
        """Return the channel that leads to all servers."""
        return RingChannel(self._settings, self._open)

    def _open(self, server: Server) -> grpc.Channel:
        one = _ServerBuilder(self._address.of(server), self._credentials)
        for name, value in (*_OPTIONS, *self._channel_options):
            one.setChannelOption(name, value)
        for interceptor in self._interceptors:
            one.add_interceptor(interceptor)
        return one.toChannel()

    def __deepcopy__(self, memo: dict[int, Any]) -> RingBuilder:
        """Return a copy with parameters of its own, which PySpark needs for a cloned session."""
        twin = copy.copy(self)
        twin._params = dict(self._params)
        return twin


class _ServerBuilder(DefaultChannelBuilder):  # type: ignore[misc]
    """Makes PySpark's channel to one server, with the user's TLS files if there are any."""

    def __init__(self, url: str, credentials: Any) -> None:
        super().__init__(url)
        self._credentials = credentials

    def toChannel(self) -> grpc.Channel:
        """Return the channel to the one server."""
        credentials = self._credentials
        if credentials is None or not self.use_ssl:
            return super().toChannel()
        if self.token is not None:
            credentials = grpc.composite_channel_credentials(
                credentials, grpc.access_token_call_credentials(self.token)
            )
        return self._secure_channel(self.endpoint, credentials)


class _Retries(DefaultPolicy):  # type: ignore[misc]
    """PySpark's policy of retries, but without retries of calls that every server has failed."""

    def __init__(self) -> None:
        super().__init__(initial_backoff=_RETRY_FIRST_MS)

    def can_retry(self, e: BaseException) -> bool:
        """True if PySpark should try the call again after the error ``e``."""
        return not isinstance(e, GivenUp) and bool(super().can_retry(e))
