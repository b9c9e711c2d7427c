"""One HAProc among its peers, for the whole life of its process: also while it waits for its log.

Puts together the lines to the peers, the view of the ring and the doors on which peers tell
theirs. ``describe`` says what is told of this HAProc; who knows it sets it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from dmq import Json
from haproc.config.model import Config
from haproc.doors.heartbeats import HeartbeatDoor
from haproc.doors.metrics import Metrics
from haproc.membership.clusters import ClusterView, cluster_views
from haproc.membership.insync import Place, high_watermark, places
from haproc.membership.links import Links
from haproc.membership.members import Members, Own
from haproc.membership.roster import Neighbour
from haproc.membership.state import State
from haproc.route.freshness import Peer as Reader
from haproc.route.reads import readers


class Presence:
    """See the module."""

    def __init__(self, config: Config, name: str, incarnation: str, metrics: Metrics) -> None:
        self._config = config
        self._name = name
        self._metrics = metrics
        self.incarnation = incarnation
        began = time_text(datetime.now(UTC))
        self.describe: Callable[[], Own] = lambda: Own(State.STARTING, began)
        self.on_isolated: Callable[[str], None] = lambda why: None
        self._links = Links(config, name)
        self.members = Members(
            config.membership,
            (name, incarnation),
            tuple(c.name for c in config.clusters if c.name != name),
            self._links,
            lambda: self.describe(),
            on_isolated=lambda why: self.on_isolated(why),
        )
        self._ring: tuple[Neighbour, ...] = ()
        self.door = HeartbeatDoor(config, self.members)
        self._task = asyncio.ensure_future(self.members.run())

    async def ended(self) -> None:
        """Wait for ever; raises what this part died of, which nothing should make it do."""
        await asyncio.shield(self._task)

    def follow(self, members: Sequence[Neighbour]) -> None:
        """Go by these clusters from now on: one was added or removed."""
        names = {each.name for each in members}
        for gone in self.members.peers().keys() - names:
            self._metrics.forget_peer(gone)
        self._ring = tuple(members)
        self.members.follow([each.name for each in members])
        self._links.follow(members)

    def clusters(self) -> list[Json]:
        """Return every cluster as it is seen from here; also keeps the metrics."""
        views = self.views()
        for view in views:
            if view.name != self._name:
                self._metrics.peer(view.name, view.alive, view.direct, view.in_sync, view.lag)
        found = self.places()
        count = sum(place.in_sync for place in found.values())
        self._metrics.in_sync(count, high_watermark(found.values()))
        return [view.body() for view in views]

    def readers(self) -> list[Reader]:
        """Return what is known of the other clusters as places to run queries."""
        return readers(self.members.peers())

    def places(self) -> dict[str, Place]:
        """Return how every cluster stands, as far as writes may have to wait for it."""
        own, limit = self.describe(), self._config.membership.in_sync_lag_max
        peers, unheard = self.members.judged(), self.members.unheard()
        return places(self._name, own.state, own.cursor, own.log_end, peers, unheard, limit)

    def in_sync(self) -> dict[str, Json]:
        """Return the in-sync set and the high watermark, for ``GET /clusterStatus``."""
        found = self.places()
        names: list[Json] = [name for name in sorted(found) if found[name].in_sync]
        return {"in_sync": names, "high_watermark": high_watermark(found.values())}

    async def aclose(self) -> None:
        """Fall silent."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._links.aclose()

    def views(self) -> list[ClusterView]:
        """Return every cluster as it is seen from here."""
        members, now = self.members, datetime.now(UTC)
        return cluster_views(
            self._config,
            self._name,
            self.incarnation,
            self.describe(),
            members.peers(),
            lambda at: time_text(now - timedelta(seconds=members.age_s(at))),
            time_text(now),
            self._ring,
        )


def time_text(at: datetime) -> str:
    """Return a time as answers show it."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
