"""One HAProc among its peers, for the whole life of its process: also while it waits for its log.

Puts together the lines to the peers (the mesh, or Redis over it), the view of the ring and the
doors on which peers tell theirs. ``describe`` says what is told of this HAProc; who knows it sets
it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from dmq import Json
from haproc.config.model import Config, StateWay
from haproc.doors.operators.heartbeats import HeartbeatDoor
from haproc.failure import RequestError
from haproc.membership.clusters import ClusterView, cluster_views
from haproc.membership.insync import Place, high_watermark, places
from haproc.membership.links import Links
from haproc.membership.members import Members, Own
from haproc.membership.roster import Neighbour
from haproc.membership.state import State
from haproc.metrics import Metrics
from haproc.route.freshness import Candidate
from haproc.route.reads import readers

if TYPE_CHECKING:
    from haproc.membership.redis_lines import RedisLines


class Presence:
    """See the module."""

    def __init__(self, config: Config, name: str, incarnation: str, metrics: Metrics) -> None:
        self._config = config
        self._name = name
        self._metrics = metrics
        self.incarnation = incarnation
        self._began = datetime.now(UTC)
        began = time_text(self._began)
        self.describe: Callable[[], Own] = lambda: Own(State.STARTING, began)
        self.on_isolated: Callable[[str], None] = lambda why: None
        mesh = Links(config, name)
        redis = _redis_lines(config, (name, incarnation), mesh)
        self._redis, self._lines = redis, redis or mesh
        self.members = Members(
            config.membership,
            (name, incarnation),
            tuple(c.name for c in config.clusters if c.name != name),
            self._lines,
            lambda: self.describe(),
            on_isolated=lambda why: self.on_isolated(why),
        )
        self._ring: tuple[Neighbour, ...] = ()
        self.door = HeartbeatDoor(config, self.members)
        if redis is not None:
            redis.deliver, redis.recall = self.door.deliver, self._recall
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
        self._lines.follow(members)

    def clusters(self) -> list[Json]:
        """Return every cluster as it is seen from here; also keeps the metrics."""
        views = self.views()
        for view in views:
            if view.name != self._name:
                self._metrics.peer(view.name, view.alive, view.direct, view.in_sync, view.lag)
        found = self.places()
        count = sum(place.in_sync for place in found.values())
        self._metrics.in_sync(count, high_watermark(found.values()))
        self._count()
        return [view.body() for view in views]

    def readers(self) -> list[Candidate]:
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

    def transport(self) -> dict[str, Json]:
        """Return what carries heartbeats and reports, for ``GET /clusterStatus``."""
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
        """Fall silent."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._lines.aclose()

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
            self._redis.urls if self._redis else {},
        )

    def _recall(self, body: Mapping[str, Json]) -> None:
        """A peer left a report behind: take it in if it has told nothing yet."""
        with contextlib.suppress(RequestError):  # of another version
            report = self.door.read_report(body)
            if self.members.peers()[report.cluster].report is None:
                self.members.report(report)

    def _count(self) -> None:
        redis = self._redis
        self._metrics.transport(redis.way.value if redis else StateWay.MESH.value, list(StateWay))
        if redis is not None:
            tally = redis.take_tally()
            refused = {receipt.value: count for receipt, count in tally.refused.items()}
            self._metrics.redis(tally.published, tally.fallbacks, refused)


def _redis_lines(config: Config, identity: tuple[str, str], mesh: Links) -> RedisLines | None:
    if config.state is not StateWay.REDIS:
        return None
    try:
        # An extra: not everybody has it installed.
        from haproc.membership.redis_lines import RedisLines
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "redis":
            raise
        raise OSError(
            "state: redis needs the package redis: pip install 'haproc[redis]'"
        ) from error
    return RedisLines(config, identity, mesh)


def time_text(at: datetime) -> str:
    """Return a time as answers show it."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
