"""What a HAProc needs to be seen by its peers, for the whole life of its process.

It works also while the HAProc waits for its log. It has the lines to the peers (the mesh, or Redis
in addition), the view of the ring (``members``) and the door for peers' messages. The member is
built later and attaches itself to the view, see `haproc.node.member`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NoReturn

from dmq import Json
from haproc.config.model import Config, StateWay
from haproc.config.tls import Certificates
from haproc.doors.operators.peers import HeartbeatDoor
from haproc.membership.clusters import ClusterView, History, cluster_views, high_watermark
from haproc.membership.connections import Links
from haproc.membership.members import Members
from haproc.membership.state import ClusterReport, time_text
from haproc.metrics import Metrics

if TYPE_CHECKING:
    from haproc.membership.redis_lines import RedisLines

MEASURE_S: Final = 1.0
"""Seconds between two updates of the metrics; chosen: nobody reads them more often."""


class Presence:
    """The lines to the peers, the view of the ring (``members``), the door for peers."""

    def __init__(
        self,
        config: Config,
        name: str,
        incarnation: str,
        metrics: Metrics,
        certificates: Certificates | None = None,
    ) -> None:
        self._config = config
        self._name = name
        self._metrics = metrics
        self._began = datetime.now(UTC)
        mesh = Links(config, name, certificates)
        redis = _redis_lines(config, (name, incarnation), mesh)
        self._redis, self._lines = redis, redis or mesh
        peers = tuple(c.name for c in config.clusters if c.name != name)
        self.members = Members(config.membership, (name, incarnation), peers, self._lines)
        self.door = HeartbeatDoor(config, self.members)
        if redis is not None:
            redis.listen(self.door.deliver, self._recall)
        self._measured = frozenset(peers)
        self.history = History()
        self.on_change: Callable[[], None] = lambda: None
        """Called after each change of the state of any cluster of the ring."""
        self.members.on_change = self._look_soon
        self._tasks = [
            asyncio.ensure_future(self.members.run_forever()),
            asyncio.ensure_future(self._measuring()),
        ]

    async def ended(self) -> None:
        """Wait for ever; raise the error of a task of this object, if one fails."""
        done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        next(iter(done)).result()

    def views(self) -> list[ClusterView]:
        """Return the status of every cluster as this HAProc sees it, in ring order."""
        members, now = self.members, datetime.now(UTC)
        return cluster_views(
            self._config,
            self._name,
            members.incarnation,
            members.own(),
            members.peers(),
            lambda at: time_text(now - timedelta(seconds=members.age_s(at))),
            time_text(now),
            members.ring,
            self._redis.urls if self._redis else {},
        )

    def status(self) -> dict[str, Json]:
        """Return the part of ``GET /clusterStatus`` that is about the ring."""
        found = self.members.all_progress()
        return {
            "in_sync": [name for name in sorted(found) if found[name].in_sync],
            "high_watermark": high_watermark(found.values()),
            "transport": self.transport(),
            "clusters": [view.body() for view in self.views()],
        }

    def transport(self) -> dict[str, Json]:
        """Return the transport of heartbeats and reports, as JSON: in general, and to each peer."""
        redis = self._redis
        if redis is None:
            way, reason, since = StateWay.MESH.value, "", self._began
        else:
            way, reason = redis.way.value, redis.reason
            since = datetime.now(UTC) - timedelta(seconds=self.members.age_s(redis.changed_at))
        return {
            "configured": self._config.state.value,
            "in_use": way,
            "reason": reason,
            "since": time_text(since),
            "peers": {
                name: redis.way_to(name).value if redis else way for name in self.members.peers()
            },
        }

    async def aclose(self) -> None:
        """Stop sending and receiving, and close the lines."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._lines.aclose()

    def _recall(self, report: ClusterReport) -> None:
        """Use a report that a peer left in Redis, unless the peer itself has sent one since."""
        peer = self.members.peers().get(report.cluster)
        if peer is not None and peer.report is None:
            self.members.report(report)

    def _look_soon(self) -> None:
        """Look for changed states in the next turn of the event loop.

        Not at once, because the caller may be in the middle of a change.
        """
        asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        if self.history.look(self.views(), time_text(datetime.now(UTC))):
            self.on_change()

    # -- metrics ---------------------------------------------------------------------------

    async def _measuring(self) -> NoReturn:
        while True:
            self.measure()
            await asyncio.sleep(MEASURE_S)

    def measure(self) -> None:
        """Set the metrics of peers, clusters in sync and transport; add a sample to the history."""
        views = self.views()
        peers = {view.name: view for view in views if view.name != self._name}
        for gone in self._measured - peers.keys():
            self._metrics.forget_peer(gone)
        self._measured = frozenset(peers)
        for name, view in peers.items():
            self._metrics.peer(name, view.alive, view.direct, view.in_sync, view.lag)
        lags = {view.name: view.lag for view in views}
        unix_s = datetime.now(UTC).timestamp()
        self.history.sample(lags, self._metrics.totals(), time.monotonic(), unix_s)
        found = self.members.all_progress().values()
        self._metrics.in_sync(sum(each.in_sync for each in found), high_watermark(found))
        redis = self._redis
        # No series for Redis without one: a 0 means that it is away.
        ways = list(StateWay) if redis else [StateWay.MESH]
        self._metrics.transport(redis.way if redis else StateWay.MESH, ways)
        if redis is not None:
            tally = redis.take_tally()
            refused = {receipt.value: count for receipt, count in tally.refused.items()}
            self._metrics.redis(tally.published, tally.fallbacks, refused)


def _redis_lines(config: Config, identity: tuple[str, str], mesh: Links) -> RedisLines | None:
    if config.state is not StateWay.REDIS:
        return None
    try:
        # An extra, which is not always installed.
        from haproc.membership.redis_lines import RedisLines
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "redis":
            raise
        raise OSError(
            "state: redis needs the package redis: pip install 'haproc[redis]'"
        ) from error
    return RedisLines(config, identity, mesh)
