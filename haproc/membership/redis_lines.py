"""Sends heartbeats and reports through Redis, and directly to peers that Redis does not reach."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from redis.asyncio import Connection, Sentinel, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from haproc.backoff import Backoff
from haproc.config.model import Config
from haproc.config.model import Redis as Settings
from haproc.config.sections import is_client_url
from haproc.config.services import RedisUrl, parse_redis_url
from haproc.failure import RequestError
from haproc.membership.connections import Links
from haproc.membership.exchange import SETTLE_INTERVALS, Envelope, Exchange, Receipt, Seal, Way
from haproc.membership.peers import Member
from haproc.membership.state import Beat, ClusterReport, PeerMessage

# A ring's channel in Redis: one kept connection, which reconnects by itself, also to a new master.
#
# It uses RESP3, in which one connection may both publish and subscribe. A message is published only
# after the one before was answered: a frozen Redis holds one message, not a queue of old
# heartbeats. Answers come in the order of the commands, so a count gives the number of missing
# answers.


logger = logging.getLogger(__name__)

_PREFIX: Final = "haproc"
_REASON_LENGTH_MAX: Final = 300


def channel_of(ring: str) -> str:
    """Return the name of the Redis channel on which a ring's HAProcs publish their messages."""
    return f"{_PREFIX}:{ring}"


def key_of(ring: str, cluster: str) -> str:
    """Return the Redis key under which a cluster's HAProc keeps its last message."""
    return f"{_PREFIX}:{ring}:{cluster}"


class RedisChannel:
    """The connection of one HAProc to Redis; `run_forever` opens it and keeps it open.

    ``on_message`` receives every message that is published in the ring, also the HAProc's own.
    ``on_kept`` receives the message under each peer's key, once for each new connection.
    ``on_change`` receives "" when the channel can be used, and the reason when it cannot.
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
        """Read the keys of these peers from the next connection on."""
        self._others = [key_of(self._ring, name) for name in peers]

    @property
    def ready(self) -> bool:
        """True if the connection is open and Redis has answered all earlier commands."""
        return self._connection is not None and not self._owed

    def publish(self, data: bytes, keep: bool) -> None:
        """Publish a message if there is a connection; with ``keep`` also store it in Redis."""
        connection = self._connection
        if connection is None:
            return
        commands: list[tuple[Any, ...]] = [("PUBLISH", self._channel, data)]
        if keep:
            ttl_ms = round(self._settings.key_ttl_s * 1000)
            commands.append(("SET", self._key, data, "PX", ttl_ms))
        self._send(connection, commands)

    async def run_forever(self) -> None:
        """Connect, and connect again after each failure, until cancelled."""
        pauses = Backoff(self._pause_s, self._patience_s)
        while True:
            began = asyncio.get_running_loop().time()
            try:
                await self._live()
            except (RedisError, OSError, TimeoutError) as error:
                self._on_change(self._reason(error))
            except Exception as error:  # a bug of HAProc: the mesh is used, and this retries
                logger.exception("%s: the channel in Redis failed", self._key)
                self._on_change(self._reason(error))
            if asyncio.get_running_loop().time() - began > 2 * self._patience_s:
                pauses.reset()
            await asyncio.sleep(pauses.pause_s())

    async def aclose(self) -> None:
        """Close Sentinel's client and end a running write, after `run_forever` was cancelled."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)
        if self._sentinel is not None:
            await self._sentinel.aclose()

    # -- one connection ----------------------------------------------------------------------

    async def _live(self) -> None:
        """Connect to the Redis master, subscribe, and read until the connection fails."""
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
        reason = str(error) or ("no answer" if isinstance(error, TimeoutError) else repr(error))
        where = f"the sentinels at {self._url.shown}" if self._url.master else self._url.shown
        return f"Redis ({where}): {reason[:_REASON_LENGTH_MAX]}"


async def _write(connection: Connection, packed: bytes, before: asyncio.Task[None] | None) -> None:
    if before is not None and not before.done():
        await before
    try:
        await connection.send_packed_command(packed, check_health=False)
    except (RedisError, OSError):
        await connection.disconnect(nowait=True)  # the reader gets an error


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


@dataclass(slots=True)
class Tally:
    """Counts of messages since the last `take_tally`.

    ``fallbacks``: changes from Redis to direct HTTP. ``refused``: received messages that were not
    used, by reason.
    """

    published: int = 0
    fallbacks: int = 0
    refused: dict[Receipt, int] = field(default_factory=dict)


class RedisLines:
    """Sends messages to peers through Redis, and over the mesh (direct HTTP) where Redis fails.

    The messages of a tick are published as one. Half an interval later `Exchange` names the peers
    that cannot have received it. These get it over the mesh, and later ones at once, until Redis is
    proven to work again. When the connection is lost, they get it at that moment. One or two
    heartbeats in every window always go over the mesh: they keep its connections open for that
    case.

    ``identity``: cluster and incarnation. Nothing is sent or received before `listen` was called.
    """

    def __init__(self, config: Config, identity: tuple[str, str], mesh: Links) -> None:
        self._rules = config.membership
        self._cluster, self._incarnation = identity
        self._mesh = mesh
        self._url = config.client_url(self._cluster)
        self._peers = frozenset(c.name for c in config.clusters) - {self._cluster}
        self._seal = Seal(config.secret, config.ring)
        self._exchange = Exchange(config.membership, identity, self._peers)
        self._loop = asyncio.get_running_loop()
        self._beat: Beat | None = None
        self._report: ClusterReport | None = None
        self._owed: frozenset[str] = frozenset()
        """Peers to which the messages of this tick have gone only through Redis so far."""
        self._timer: asyncio.TimerHandle | None = None
        self._warm_at = 0.0
        self._warned_at = float("-inf")
        self._published = b""
        self.urls: dict[str, str] = {}
        """By cluster, the address for clients that its HAProc has reported."""
        self.reason = "Redis is not connected yet"
        """Why Redis is not in use, for people; empty if it is in use."""
        self.changed_at = self._loop.time()
        """The time at which the transport in use changed last."""
        self._tally = Tally()
        self._shown: Way | None = None
        self._channel = RedisChannel(
            config,
            self._cluster,
            on_message=self._take,
            on_kept=self._take_kept,
            on_change=self._change,
        )

    def listen(
        self,
        deliver: Callable[[PeerMessage], None],
        recall: Callable[[ClusterReport], None],
    ) -> None:
        """Begin to receive; called once.

        ``deliver`` receives each message of a peer. ``recall`` receives the report in the message
        under each peer's Redis key, which may be some seconds old. (Both are made after this
        object.)
        """
        self._deliver, self._recall = deliver, recall
        self._task = asyncio.ensure_future(self._channel.run_forever())

    def follow(self, members: Sequence[Member]) -> None:
        """Send to these members, and receive from them, from now on."""
        self._mesh.follow(members)
        self._peers = frozenset(each.name for each in members) - {self._cluster}
        self._owed &= self._peers
        self._exchange.follow(self._peers, self._loop.time())
        self._channel.follow(self._peers)
        self.urls = {name: url for name, url in self.urls.items() if name in self._peers}

    # -- questions ---------------------------------------------------------------------------

    @property
    def way(self) -> Way:
        """The transport in use: Redis or direct HTTP."""
        return self._exchange.way

    def way_to(self, peer: str) -> Way:
        """Return the transport of messages to this peer: Redis or the mesh."""
        return Way.MESH if peer in self._exchange.by_mesh else Way.REDIS

    def take_tally(self) -> Tally:
        """Return the counts since the last call, and begin to count from zero."""
        tally, self._tally = self._tally, Tally()
        return tally

    def silent(self) -> frozenset[str]:
        """Return the peers that gave no sign of life over the mesh for ``window_s`` of its use."""
        now, window_s = self._loop.time(), self._rules.window_s
        return frozenset(
            name for name in self._mesh.silent() if self._exchange.meshed_s(name, now) >= window_s
        )

    # -- sending -----------------------------------------------------------------------------

    def send(self, message: PeerMessage) -> None:
        """Send a message to every peer, through Redis or the mesh.

        A heartbeat begins the next published message; a report is added to it.
        """
        if isinstance(message, Beat):
            self._begin()
            self._beat = message
        else:
            self._report = message
        now_by_mesh = self._peers - self._owed
        if now_by_mesh:
            self._mesh.send(message, to=now_by_mesh)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._settle()  # a tick came early, or this timer late
        self._beat = self._report = None
        self._owed = self._peers - self._exchange.by_mesh
        if (now := self._loop.time()) >= self._warm_at:
            self._warm_at = now + self._rules.window_s / 2
            self._owed = frozenset()
        self._loop.call_soon(self._publish)
        after_s = SETTLE_INTERVALS * self._rules.heartbeat_interval_s
        self._timer = self._loop.call_later(after_s, self._settle)

    def _publish(self) -> None:
        if not self._channel.ready or self._beat is None:
            return
        number, received = self._exchange.publish(self._loop.time())
        identity = (self._cluster, self._incarnation)
        envelope = Envelope(*identity, number, received, self._url, self._beat, self._report)
        self._published = self._seal.close(envelope)
        self._channel.publish(self._published, keep=self._report is not None)
        self._tally.published += 1

    def _settle(self) -> None:
        """Send the messages of this tick over the mesh to the peers that Redis has not reached."""
        self._timer = None
        self._catch_up(self._exchange.settle(self._loop.time()))
        self._show()

    def _catch_up(self, by_mesh: Iterable[str]) -> None:
        late = self._owed & frozenset(by_mesh)
        self._owed -= late
        if late:
            for message in (self._beat, self._report):
                if message is not None:
                    self._mesh.send(message, to=late)

    # -- receiving --------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        if data == self._published:
            self._exchange.echo()
            return
        envelope = self._seal.open(data)
        if envelope is None:
            self._refused(Receipt.STRANGE)
            return
        receipt = self._exchange.receive(envelope, self._loop.time())
        if receipt is not Receipt.TAKEN:
            self._refused(receipt)
            return
        self._note_url(envelope)
        for message in (envelope.beat, envelope.report):
            if message is not None and message.cluster == envelope.cluster:
                with contextlib.suppress(RequestError):  # a peer that has left the ring
                    self._deliver(message)

    def _take_kept(self, data: bytes) -> None:
        """Use the report in a message from a peer's Redis key; it is no sign of life."""
        envelope = self._seal.open(data)
        if envelope is None or envelope.cluster not in self._peers:
            self._refused(Receipt.STRANGE)
            return
        if envelope.cluster not in self.urls:
            self._note_url(envelope)
        if envelope.report is not None and envelope.report.cluster == envelope.cluster:
            self._recall(envelope.report)

    def _note_url(self, envelope: Envelope) -> None:
        if envelope.url != self.urls.get(envelope.cluster) and is_client_url(envelope.url):
            self.urls[envelope.cluster] = envelope.url

    def _refused(self, receipt: Receipt) -> None:
        refused = self._tally.refused
        refused[receipt] = refused.get(receipt, 0) + 1
        now = self._loop.time()
        if receipt is Receipt.STRANGE and now - self._warned_at > 60:
            self._warned_at = now
            logger.warning("%s: in Redis are messages of no HAProc of this ring", self._cluster)

    # -- the connection ----------------------------------------------------------------------

    def _change(self, reason: str) -> None:
        """Note whether the Redis channel can be used; ``reason``: why not; empty: it can."""
        if not reason:
            self._exchange.connected()
            return
        self.reason = reason
        self._exchange.lost(self._loop.time())
        self._catch_up(self._peers)
        self._shown = self._shown or Way.REDIS  # its absence from the start is reported, too
        self._show()

    def _show(self) -> None:
        """Write it to the program's log if heartbeats now go another way.

        The ways are: through Redis, or directly to each peer.
        """
        way = self._exchange.way
        if way is (self._shown or Way.MESH):
            return
        self._shown, self.changed_at = way, self._loop.time()
        if way is Way.REDIS:
            self.reason = ""
            logger.info("%s: heartbeats go through Redis", self._cluster)
            return
        self._tally.fallbacks += 1
        self.reason = self.reason or "Redis: what is published does not come back in time"
        logger.warning("%s: heartbeats go to each peer directly: %s", self._cluster, self.reason)

    async def aclose(self) -> None:
        """Stop sending and receiving, and close all connections."""
        if self._timer is not None:
            self._timer.cancel()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._channel.aclose()
        await self._mesh.aclose()
