"""The ring as one HAProc sees it, cluster by cluster: what ``GET /clusterStatus`` shows."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dmq import Json
from haproc.config.model import Config
from haproc.membership.insync import ClusterProgress, end_of_log, places
from haproc.membership.judgement import PeerStatus
from haproc.membership.messages import Own
from haproc.membership.roster import Neighbour
from haproc.membership.view import Peer

_NO_URLS: Mapping[str, str] = types.MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One cluster. Of one that is down, how far it was last; None for what it never told.

    ``direct``: whether this HAProc hears it, and not only others do. ``in_sync``: see
    `haproc.membership.insync`. ``since``: when
    its state began, or when it was called down. Times are text (ISO 8601).
    """

    name: str
    url: str
    alive: bool
    direct: bool
    state: str
    incarnation: str | None
    cursor: int | None
    log_end: int | None
    lag: int | None
    in_sync: bool
    since: str
    last_update: str | None

    def body(self) -> dict[str, Json]:
        """Return it as JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def cluster_views(
    config: Config,
    me: str,
    incarnation: str,
    own: Own,
    peers: Mapping[str, Peer],
    text_of: Callable[[float], str],
    now: str,
    members: Sequence[Neighbour] = (),
    urls: Mapping[str, str] = _NO_URLS,
) -> list[ClusterView]:
    """Return all clusters in ring order; ``text_of`` writes a time of the view as text.

    ``members``: the ring's clusters, if they are not those of the configuration. ``urls``: where
    clients reach peers' clusters, as these told; else as is known of the members.
    """
    log_end = end_of_log(own.log_end, peers.values())
    limit = config.membership.in_sync_lag_max
    found = places(me, own, peers, (), limit)
    views = []
    for cluster in members or config.clusters:
        name, url = cluster.name, urls.get(cluster.name, cluster.client_url)
        if name != me:
            views.append(_of_peer(name, url, peers[name], log_end, found[name], text_of))
            continue
        lag = own.lag + log_end - own.log_end
        reported = (own.state.value, incarnation, own.cursor, own.log_end, lag, found[me].in_sync)
        views.append(ClusterView(name, url, True, True, *reported, own.since, now))
    return views


def _of_peer(
    name: str,
    url: str,
    peer: Peer,
    log_end: int,
    place: ClusterProgress,
    text_of: Callable[[float], str],
) -> ClusterView:
    beat, report = peer.beat, peer.report
    reported = beat or report
    lag = report.lag_at(log_end) if report is not None else None
    since = report.since if peer.alive and report is not None else text_of(peer.changed_at)
    return ClusterView(
        name,
        url,
        alive=peer.alive,
        direct=peer.standing is PeerStatus.HEARD,
        state=reported.state.value if reported is not None and peer.alive else "",
        incarnation=reported.incarnation if reported is not None else None,
        cursor=report.cursor if report is not None else None,
        log_end=report.log_end if report is not None else None,
        lag=lag,
        in_sync=place.in_sync and lag is not None,
        since=since,
        last_update=text_of(peer.updated_at) if peer.updated_at is not None else None,
    )
