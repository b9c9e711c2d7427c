"""A PySpark session on a channel of ours."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession

from haclient.exceptions import InterfaceError
from haclient.settings import Failover, Server, Settings, order_of, policy_of, whole
from haclient.spark_connect.address import Address, read_address
from haclient.spark_connect.channel import RingChannel
from haclient.spark_connect.errors import GivenUp

_RETRY_FIRST_MS = 5
"""PySpark's pause before it attaches to a broken stream again; the next server is there already."""
_OPTIONS = (
    # Channels to one server share a connection otherwise, and probes would hang with it.
    ("grpc.use_local_subchannel_pool", 1),
    # While calls are under way, a connection that died unsaid is found within 30 s. HAProcs take
    # pings every 5 s. Chosen.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)


def open_session(
    url: str,
    *,
    order: str = "ordered",
    client_number: int | None = None,
    tls_roots: str | Path | None = None,
    on_failover: Callable[[Failover], None] | None = None,
    **policy: Any,
) -> SparkSession:
    """Return a new session; raises InterfaceError. What the options are: `haclient.spark`."""
    address = read_address(url)
    settings = Settings(
        servers=address.servers,
        order=order_of(order),
        client_number=whole("client_number", client_number),
        discover=False,
        policy=policy_of(policy),
        on_failover=on_failover,
    )
    builder = RingBuilder(address, settings, _certificates(tls_roots))
    # As PySpark's own builder does: pyspark.sql.functions asks for it.
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    session = SparkSession.builder.channelBuilder(builder).create()
    session.client.set_retry_policies([_Retries()])
    return session


def _certificates(path: str | Path | None) -> bytes | None:
    try:
        return None if path is None else Path(path).read_bytes()
    except OSError as error:
        raise InterfaceError(f"tls_roots cannot be read: {error}") from error


class RingBuilder(DefaultChannelBuilder):  # type: ignore[misc]
    """Makes the channel of a session; its host is the first server's, which PySpark shows."""

    def __init__(self, address: Address, settings: Settings, roots: bytes | None) -> None:
        super().__init__(address.of(address.servers[0]))
        self._address = address
        self._settings = settings
        self._roots = roots

    def toChannel(self) -> RingChannel:
        """Return a channel to all servers."""
        return RingChannel(self._settings, self._open)

    def _open(self, server: Server) -> grpc.Channel:
        one = _ServerBuilder(self._address.of(server), self._roots)
        for name, value in (*_OPTIONS, *self._channel_options):
            one.setChannelOption(name, value)
        for interceptor in self._interceptors:
            one.add_interceptor(interceptor)
        return one.toChannel()

    def __deepcopy__(self, memo: dict[int, Any]) -> RingBuilder:
        """Return a builder with parameters of its own, as PySpark wants for a cloned session."""
        twin = copy.copy(self)
        twin._params = dict(self._params)
        return twin


class _ServerBuilder(DefaultChannelBuilder):  # type: ignore[misc]
    """PySpark's channel to one server, if need be with other certificates to trust."""

    def __init__(self, url: str, roots: bytes | None) -> None:
        super().__init__(url)
        self._roots = roots

    def toChannel(self) -> grpc.Channel:
        """Return the channel."""
        if self._roots is None or not self.use_ssl:
            return super().toChannel()
        credentials = grpc.ssl_channel_credentials(self._roots)
        if self.token is not None:
            credentials = grpc.composite_channel_credentials(
                credentials, grpc.access_token_call_credentials(self.token)
            )
        return self._secure_channel(self.endpoint, credentials)


class _Retries(DefaultPolicy):  # type: ignore[misc]
    """PySpark's own retries, but for what was given up after having been tried everywhere."""

    def __init__(self) -> None:
        super().__init__(initial_backoff=_RETRY_FIRST_MS)

    def can_retry(self, e: BaseException) -> bool:
        """Whether to ask again."""
        return not isinstance(e, GivenUp) and bool(super().can_retry(e))
