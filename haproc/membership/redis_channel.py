"""A ring's channel in Redis: one connection, kept; made anew by itself, at the new master too.

It speaks RESP3, in which one connection may both publish and be subscribed. What is published is
answered before more is: a Redis that is frozen holds one message, not a queue of old heartbeats.
Answers and messages come in the order of the connection, so a count tells what is still owed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from redis.asyncio import Connection, Sentinel, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from haproc.backoff import Backoff
from haproc.config.model import Config
from haproc.config.model import Redis as Settings
from haproc.config.redis import RedisUrl, parse_redis_url

logger = logging.getLogger(__name__)

_PREFIX: Final = "haproc"
_REASON_LENGTH_MAX: Final = 300


def channel_of(ring: str) -> str:
    """Return the channel on which a ring's HAProcs publish."""
    return f"{_PREFIX}:{ring}"


def key_of(ring: str, cluster: str) -> str:
    """Return the key under which a HAProc keeps what it told last."""
    return f"{_PREFIX}:{ring}:{cluster}"


class RedisChannel:
    """The connection of one HAProc; `run` is its life.

    ``on_message`` is given what anybody publishes; ``on_kept`` what a peer's key holds, once for
    each connection; ``on_change`` is told "" when the channel is there, else why it is not.
    """

    def __init__(
        self,
        config: Config,
        name: str,
        *,
        on_message: Callable[[bytes], None],
        on_kept: Callable[[bytes], None],
        on_change: Callable[[str], None],
    ) -> None:
        self._url = parse_redis_url(config.redis.url)
        self._settings = config.redis
        self._name = f"{_PREFIX}-{config.ring}-{name}"
        self._channel = channel_of(config.ring)
        self._key = key_of(config.ring, name)
        self._ring = config.ring
        self.follow(c.name for c in config.clusters if c.name != name)
        self._patience_s = config.membership.window_s
        self._pause_s = config.membership.check_interval_s
        self._on_message, self._on_kept = on_message, on_kept
        self._on_change = on_change
        self._sentinel = _sentinel(self._url, config.redis, self._patience_s)
        self._connection: Connection | None = None
        self._owed = 0
        self._sending: asyncio.Task[None] | None = None
        self._patience: asyncio.Timeout

    def follow(self, peers: Iterable[str]) -> None:
        """Look at these peers' keys from the next connection on."""
        self._others = [key_of(self._ring, name) for name in peers]

    @property
    def ready(self) -> bool:
        """Whether a message can be published now."""
        return self._connection is not None and not self._owed

    def publish(self, data: bytes, keep: bool) -> None:
        """Publish a message and, if asked, keep it under the own key, too."""
        connection = self._connection
        if connection is None:
            return
        commands: list[tuple[Any, ...]] = [("PUBLISH", self._channel, data)]
        if keep:
            ttl_ms = round(self._settings.key_ttl_s * 1000)
            commands.append(("SET", self._key, data, "PX", ttl_ms))
        self._send(connection, commands)

    async def run(self) -> None:
        """Be connected, until cancelled."""
        pauses = Backoff(self._pause_s, self._patience_s)
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._live()
            except (RedisError, OSError, TimeoutError) as error:
                self._on_change(self._reason(error))
            except Exception as error:  # a fault of ours: the mesh carries, and it is tried again
                logger.exception("%s: the channel in Redis failed", self._key)
                self._on_change(self._reason(error))
            if asyncio.get_running_loop().time() - began > 2 * self._patience_s:
                pauses.reset()
            await asyncio.sleep(pauses.pause_s())

    async def aclose(self) -> None:
        """Release what is left when `run` was cancelled."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        if self._sentinel is not None:
            await self._sentinel.aclose()

    # -- one connection ----------------------------------------------------------------------

    async def _live(self) -> None:
        """Connect and read until that fails."""
        async with asyncio.timeout(self._patience_s):
            host, port = await self._master()
        connection = _connection(self._url, self._settings, host, port, self._name)
        try:
            async with asyncio.timeout(self._patience_s) as self._patience:
                await connection.connect()  # type: ignore[no-untyped-call]
                self._owed = 0
                self._send(connection, [("SUBSCRIBE", self._channel)], owed=0)
                if self._others:
                    self._send(connection, [("MGET", *self._others)])
                while True:
                    answer = await connection.read_response(
                        disable_decoding=True, timeout=math.inf, push_request=True
                    )
                    self._take(connection, answer)
        finally:
            self._connection = None
            await connection.disconnect(nowait=True)

    def _take(self, connection: Connection, answer: object) -> None:
        if isinstance(answer, list) and answer[:1] == [b"message"]:
            self._on_message(answer[-1])
            return
        if isinstance(answer, list) and answer[:1] == [b"subscribe"]:
            self._connection = connection
            self._on_change("")
            return
        self._owed -= 1
        if isinstance(answer, list):
            for kept in answer:
                if isinstance(kept, bytes):
                    self._on_kept(kept)
        if not self._owed:
            now = asyncio.get_running_loop().time()
            self._patience.reschedule(now + self._patience_s)

    def _send(
        self, connection: Connection, commands: Sequence[tuple[Any, ...]], owed: int | None = None
    ) -> None:
        packed = b"".join(
            part for command in commands for part in connection.pack_command(*command)
        )
        self._owed += len(commands) if owed is None else owed
        before = self._sending
        self._sending = asyncio.ensure_future(_write(connection, packed, before))

    async def _master(self) -> tuple[str, int]:
        if self._sentinel is None:
            return self._url.servers[0]
        host, port = await self._sentinel.discover_master(self._url.master)
        return host.decode() if isinstance(host, bytes) else str(host), int(port)

    def _reason(self, error: Exception) -> str:
        said = str(error) or ("no answer" if isinstance(error, TimeoutError) else repr(error))
        where = f"the sentinels at {self._url.shown}" if self._url.master else self._url.shown
        return f"Redis ({where}): {said[:_REASON_LENGTH_MAX]}"


async def _write(connection: Connection, packed: bytes, before: asyncio.Task[None] | None) -> None:
    if before is not None and not before.done():
        await before
    try:
        await connection.send_packed_command(packed, check_health=False)
    except (RedisError, OSError):
        await connection.disconnect(nowait=True)  # the reader is told


def _tls(settings: Settings) -> Mapping[str, Any]:
    files = {
        "ssl_ca_certs": settings.ssl_ca_file,
        "ssl_certfile": settings.ssl_certificate_file,
        "ssl_keyfile": settings.ssl_key_file,
    }
    named = {key: str(file) for key, file in files.items() if file is not None}
    return {**named, "ssl_check_hostname": settings.ssl_check_hostname}


def _connection(url: RedisUrl, settings: Settings, host: str, port: int, name: str) -> Connection:
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "db": url.database,
        "username": settings.username,
        "password": settings.password or None,
        "protocol": 3,
        "client_name": name,
        "driver_info": None,
        "socket_timeout": None,
    }
    if url.tls:
        return SSLConnection(**options, **_tls(settings))
    return Connection(**options)


def _sentinel(url: RedisUrl, settings: Settings, patience_s: float) -> Sentinel | None:
    if not url.master:
        return None
    each_s = patience_s / (len(url.servers) + 1)
    options: dict[str, Any] = {
        "username": settings.sentinel_username,
        "password": settings.sentinel_password or None,
        "socket_timeout": each_s,
        "socket_connect_timeout": each_s,
        "retry": Retry(NoBackoff(), 0),
        **({"ssl": True, **_tls(settings)} if url.tls else {}),
    }
    return Sentinel(list(url.servers), sentinel_kwargs=options)  # type: ignore[no-untyped-call]
