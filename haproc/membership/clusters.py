"""The ring cluster by cluster: which are in sync, and what ``GET /clusterStatus`` shows."""

from __future__ import annotations

import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dmq import Json
from haproc.config.model import Config
from haproc.membership.peers import Neighbour, founders
from haproc.membership.state import HOPELESS, Own, State
from haproc.membership.view import Peer, PeerStatus

# Which clusters are in sync, and how far all of them are. Values in, values out.
#
# A cluster is *in sync* while its HAProc is alive, applies the log as usual, and lags by a limit of
# records at most: what it has applied behind a record that takes long is no lag. One that is out of
# service (its Spark is down, it is stuck, cut off, leaving) is not: no client is served there, and
# nobody should wait for it. One that recovers is as soon as its lag is within the limit, which is
# before it serves: what is acknowledged from then on has waited for it. A cluster whose state
# cannot be known yet counts, too: a HAProc that just began must not take peers for gone whose
# messages it has hardly had time to receive.
#
# The *high watermark* is the offset below which every cluster in sync has applied everything.


IN_SYNC_STATES: Final = frozenset({State.READY, State.READ_ONLY, State.RECOVERING})


@dataclass(frozen=True, slots=True)
class ClusterProgress:
    """The progress of one cluster.

    ``cursor``: it had applied everything below when it reported; None if it never reported.
    ``sound``: its tables are those at its cursor, as far as is known.
    """

    in_sync: bool
    cursor: int | None = None
    sound: bool = True


def end_of_log(log_end: int, peers: Iterable[Peer]) -> int:
    """Return the newest end of the log that any HAProc reported."""
    ends = [peer.report.log_end for peer in peers if peer.report is not None]
    return max([log_end, *ends])


def places(
    me: str,
    own: Own,
    peers: Mapping[str, Peer],
    unheard: Collection[str],
    lag_max: int,
) -> dict[str, ClusterProgress]:
    """Return every cluster's place; ``own`` is this HAProc's own report.

    ``unheard``: peers that this HAProc has not listened to for long enough to call them gone.
    """
    end = end_of_log(own.log_end, peers.values())
    lag = own.lag + end - own.log_end
    found = {me: _place(own.state, own.cursor, lag, lag_max)}
    for name, peer in peers.items():
        reported = peer.beat or peer.report
        at = peer.report.cursor if peer.report is not None else None
        lag = peer.report.lag_at(end) if peer.report is not None else 0
        if reported is None:
            found[name] = ClusterProgress(name in unheard)
        elif peer.alive or name in unheard:
            found[name] = _place(reported.state, at, lag, lag_max)
        else:
            found[name] = ClusterProgress(False, at, reported.state not in HOPELESS)
    return found


def _place(state: State, cursor: int | None, lag: int, lag_max: int) -> ClusterProgress:
    return ClusterProgress(
        state in IN_SYNC_STATES and lag <= lag_max, cursor, state not in HOPELESS
    )


def high_watermark(found: Iterable[ClusterProgress]) -> int:
    """Return the offset that all clusters in sync have applied; 0 if none is."""
    cursors = [place.cursor for place in found if place.in_sync and place.cursor is not None]
    return min(cursors, default=0)


# The ring as one HAProc sees it, cluster by cluster: what ``GET /clusterStatus`` shows.


_NO_URLS: Mapping[str, str] = types.MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ClusterView:
    """One cluster. Of one that is down, how far it was last; None for facts that it never reported.

    ``direct``: True if this HAProc receives its heartbeats itself. ``in_sync``: see
    `haproc.membership.clusters`. ``since``: when its state began, or when it was called down. Times
    are text (ISO 8601).
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

    ``members``: the ring's clusters, if they are not those of the configuration. ``urls``: the
    addresses of peers' clusters for clients, as reported; else as the members' records have them.
    """
    log_end = end_of_log(own.log_end, peers.values())
    limit = config.membership.in_sync_lag_max
    found = places(me, own, peers, (), limit)
    views = []
    for cluster in members or founders(config):
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
