"""Lines through Redis, over those of the mesh: every message goes whichever way it arrives.

What a tick tells is published as one message. Half an interval later `Exchange` says who cannot
have received it; they get it over the mesh, and what follows at once, until Redis is seen to carry
again. When the connection is lost, that happens in the same moment. A heartbeat or two in every
window go over the mesh in any case: they keep its connections open for that moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dmq import Json
from haproc.config.hosts import is_client_url
from haproc.config.model import Config
from haproc.failure import RequestError
from haproc.membership.envelope import Envelope, Seal
from haproc.membership.exchange import SETTLE_INTERVALS, Exchange, Receipt, Way
from haproc.membership.links import HEARTBEAT_PATH, REPORT_PATH, Links
from haproc.membership.redis_channel import RedisChannel
from haproc.membership.roster import Neighbour

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Tally:
    """What was counted for a while; ``refused`` is what did not count, and why."""

    published: int = 0
    fallbacks: int = 0
    refused: dict[Receipt, int] = field(default_factory=dict)


class RedisLines:
    """See the module. ``identity``: cluster and incarnation.

    Nothing goes or comes before `listen` was called.
    """

    def __init__(self, config: Config, identity: tuple[str, str], mesh: Links) -> None:
        self._rules = config.membership
        self._cluster, self._incarnation = identity
        self._mesh = mesh
        self._url = config.cluster(self._cluster).client_url
        self._peers = frozenset(c.name for c in config.clusters) - {self._cluster}
        self._seal = Seal(config.secret, config.ring)
        self._exchange = Exchange(config.membership, identity, self._peers)
        self._loop = asyncio.get_running_loop()
        self._outbox: dict[str, Mapping[str, Json]] = {}
        self._owed: frozenset[str] = frozenset()
        """Peers that have what is in the outbox from Redis, if at all."""
        self._timer: asyncio.TimerHandle | None = None
        self._warm_at = 0.0
        self._warned_at = float("-inf")
        self._published = b""
        self.urls: dict[str, str] = {}
        """Where clients reach the peers' clusters, as these told."""
        self.reason = "Redis is not connected yet"
        """Why Redis does not carry; for people."""
        self.changed_at = self._loop.time()
        """When what carries changed last."""
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
        deliver: Callable[[str, Mapping[str, Json]], None],
        recall: Callable[[Mapping[str, Json]], None],
    ) -> None:
        """Begin; once, with whoever is told what peers say, who need these lines to be made.

        ``deliver`` takes in what a peer said, by its HTTP path; ``recall`` is given the report that
        a peer left behind, which may be some seconds old.
        """
        self._deliver, self._recall = deliver, recall
        self._task = asyncio.ensure_future(self._channel.run())

    def follow(self, members: Sequence[Neighbour]) -> None:
        """Keep lines to these from now on."""
        self._mesh.follow(members)
        self._peers = frozenset(each.name for each in members) - {self._cluster}
        self._owed &= self._peers
        self._exchange.follow(self._peers, self._loop.time())
        self._channel.follow(self._peers)
        self.urls = {name: url for name, url in self.urls.items() if name in self._peers}

    # -- what is asked -----------------------------------------------------------------------

    @property
    def way(self) -> Way:
        """What carries at the moment."""
        return self._exchange.way

    def way_to(self, peer: str) -> Way:
        """Return what carries to this peer."""
        return Way.MESH if peer in self._exchange.by_mesh else Way.REDIS

    def take_tally(self) -> Tally:
        """Return what was counted since the last call."""
        tally, self._tally = self._tally, Tally()
        return tally

    def silent(self) -> frozenset[str]:
        """Return the peers that have given no sign for a window, though the mesh was used."""
        now, window_s = self._loop.time(), self._rules.window_s
        return frozenset(
            name for name in self._mesh.silent() if self._exchange.meshed_s(name, now) >= window_s
        )

    # -- telling -----------------------------------------------------------------------------

    def send(self, path: str, body: Mapping[str, Json]) -> None:
        """Tell every peer; a heartbeat begins what goes out together."""
        if path == HEARTBEAT_PATH:
            self._begin()
        now_by_mesh = self._peers - self._owed
        self._outbox[path] = body
        if now_by_mesh:
            self._mesh.send(path, body, to=now_by_mesh)

    def _begin(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._settle()  # a tick came early, or this timer late
        self._outbox = {}
        self._owed = self._peers - self._exchange.by_mesh
        if (now := self._loop.time()) >= self._warm_at:
            self._warm_at = now + self._rules.window_s / 2
            self._owed = frozenset()
        self._loop.call_soon(self._publish)
        after_s = SETTLE_INTERVALS * self._rules.heartbeat_interval_s
        self._timer = self._loop.call_later(after_s, self._settle)

    def _publish(self) -> None:
        if not self._channel.ready or not self._outbox:
            return
        number, heard = self._exchange.publish(self._loop.time())
        said = Envelope(
            self._cluster, self._incarnation, number, heard, self._url, dict(self._outbox)
        )
        self._published = self._seal.close(said)
        self._channel.publish(self._published, keep=REPORT_PATH in self._outbox)
        self._tally.published += 1

    def _settle(self) -> None:
        """Send over the mesh what Redis has not carried."""
        self._timer = None
        self._catch_up(self._exchange.settle(self._loop.time()))
        self._show()

    def _catch_up(self, by_mesh: Iterable[str]) -> None:
        late = self._owed & frozenset(by_mesh)
        self._owed -= late
        if late:
            for path, body in self._outbox.items():
                self._mesh.send(path, body, to=late)

    # -- being told --------------------------------------------------------------------------

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
        for path, body in envelope.messages.items():
            if body.get("cluster") == envelope.cluster:
                with contextlib.suppress(RequestError):  # of another version: not understood
                    self._deliver(path, body)

    def _take_kept(self, data: bytes) -> None:
        """Take in what a peer's key holds: no sign of life, but how far it was."""
        envelope = self._seal.open(data)
        if envelope is None or envelope.cluster not in self._peers:
            self._refused(Receipt.STRANGE)
            return
        if envelope.cluster not in self.urls:
            self._note_url(envelope)
        report = envelope.messages.get(REPORT_PATH)
        if report is not None and report.get("cluster") == envelope.cluster:
            with contextlib.suppress(RequestError):
                self._recall(report)

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
        """The channel is there (no reason), or it is not."""
        if not reason:
            self._exchange.connected()
            return
        self.reason = reason
        self._exchange.lost(self._loop.time())
        self._catch_up(self._peers)
        self._shown = self._shown or Way.REDIS  # that it was never there is told, too
        self._show()

    def _show(self) -> None:
        """Say when something else carries."""
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
        """Fall silent."""
        if self._timer is not None:
            self._timer.cancel()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._channel.aclose()
        await self._mesh.aclose()
