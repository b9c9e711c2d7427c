"""What is known of each cluster of the ring: in sync or not, its status, and its last minutes."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dmq import Json
from haproc.config.model import Config
from haproc.membership.peers import Member, founders
from haproc.membership.state import HOPELESS, Own, State
from haproc.membership.view import Peer, Reachability
from haproc.metrics import LATENCY_BUCKETS_S, Totals

# The in-sync clusters, and their common progress. Values in, values out.
#
# A cluster is *in sync* while its HAProc is alive, applies the log as usual, and lags by at most a
# limit of records; operations applied ahead of a slow one do not count as lag. A cluster that is
# out of service (its Spark is down, it is stuck, cut off, leaving) is not in sync: no client is
# served there, so no write waits for it. A recovering cluster is in sync as soon as its lag is
# within the limit, before it serves: every later acknowledged write has waited for it. A cluster
# whose state is not known yet counts, too: a HAProc that just began has had no time to receive all
# peers' messages.
#
# The *high watermark* is the offset below which every cluster in sync has applied everything.


IN_SYNC_STATES: Final = frozenset({State.READY, State.READ_ONLY, State.RECOVERING})


@dataclass(frozen=True, slots=True)
class ClusterProgress:
    """How far one cluster has come.

    ``cursor``: its last reported cursor; None if it never reported one. ``sound``: its tables are
    those of its cursor, as far as is known (it is not DIVERGED or hopeless in another way).
    """

    in_sync: bool
    cursor: int | None = None
    sound: bool = True


def end_of_log(log_end: int, peers: Iterable[Peer]) -> int:
    """Return the highest end of the log that this HAProc or a peer has reported."""
    ends = [peer.report.log_end for peer in peers if peer.report is not None]
    return max([log_end, *ends])


def all_progress(
    me: str,
    own: Own,
    peers: Mapping[str, Peer],
    unjudged: Collection[str],
    lag_max: int,
) -> dict[str, ClusterProgress]:
    """Return every cluster's progress by name.

    ``me`` and ``own``: this HAProc's cluster and report. ``unjudged``: peers that cannot be called
    down yet, because this HAProc has not listened to them for long enough. ``lag_max``: the highest
    lag of a cluster in sync.
    """
    end = end_of_log(own.log_end, peers.values())
    lag = own.lag + end - own.log_end
    found = {me: _progress(own.state, own.cursor, lag, lag_max)}
    for name, peer in peers.items():
        reported = peer.beat or peer.report
        at = peer.report.cursor if peer.report is not None else None
        lag = peer.report.lag_at(end) if peer.report is not None else 0
        if reported is None:
            found[name] = ClusterProgress(name in unjudged)
        elif peer.alive or name in unjudged:
            found[name] = _progress(reported.state, at, lag, lag_max)
        else:
            found[name] = ClusterProgress(False, at, reported.state not in HOPELESS)
    return found


def _progress(state: State, cursor: int | None, lag: int, lag_max: int) -> ClusterProgress:
    return ClusterProgress(
        state in IN_SYNC_STATES and lag <= lag_max, cursor, state not in HOPELESS
    )


def high_watermark(found: Iterable[ClusterProgress]) -> int:
    """Return the lowest cursor of the clusters in sync; 0 if none of them has reported one."""
    cursors = [
        progress.cursor for progress in found if progress.in_sync and progress.cursor is not None
    ]
    return min(cursors, default=0)


# The ring as one HAProc sees it, cluster by cluster: the content of ``GET /clusterStatus``.


_NO_URLS: Mapping[str, str] = types.MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The status of one cluster in this HAProc's view; None: the cluster never reported this.

    For a cluster that is down, the values are those of its last report. ``direct``: True if this
    HAProc receives its heartbeats itself. ``in_sync``: as a comment in this module defines it.
    ``since``: the time at which its state began, or at which it was judged to be down. Times are
    text (ISO 8601).
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
        """Return the fields as a JSON object."""
        return {name: getattr(self, name) for name in self.__slots__}


def cluster_views(
    config: Config,
    me: str,
    incarnation: str,
    own: Own,
    peers: Mapping[str, Peer],
    text_of: Callable[[float], str],
    now: str,
    members: Sequence[Member] = (),
    urls: Mapping[str, str] = _NO_URLS,
) -> list[ClusterView]:
    """Return the view of each cluster in ring order.

    ``text_of`` turns a time of ``peers`` into text. ``members``: the ring's clusters; empty: those
    of the configuration. ``urls``: by cluster, the address for clients that its HAProc reported;
    for others the address in ``members`` is taken.
    """
    log_end = end_of_log(own.log_end, peers.values())
    limit = config.membership.in_sync_lag_max
    found = all_progress(me, own, peers, (), limit)
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
    progress: ClusterProgress,
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
        direct=peer.status is Reachability.REACHABLE,
        state=reported.state.value if reported is not None and peer.alive else "",
        incarnation=reported.incarnation if reported is not None else None,
        cursor=report.cursor if report is not None else None,
        log_end=report.log_end if report is not None else None,
        lag=lag,
        in_sync=progress.in_sync and lag is not None,
        since=since,
        last_update=text_of(peer.updated_at) if peer.updated_at is not None else None,
    )


# The last minutes of a ring as one HAProc sees it, for people: lags, rates, changes of states.
#
# It is kept even if nobody watches: a user who opens the page wants to see the time before. Time is
# an argument.


SAMPLES_MAX: Final = 180
"""The most samples; one is taken each second. Chosen: three minutes fit into a view, and are 30
kB."""
CHANGES_MAX: Final = 50
QUANTILES_S: Final = 60.0
"""The quantiles of a sample are of the requests in this time before it (at most `SAMPLES_MAX`
samples)."""


@dataclass(frozen=True, slots=True)
class _Moment:
    at_s: float
    totals: Totals


class History:
    """The last minutes of the ring, for the status page: samples, and changes of states."""

    def __init__(self) -> None:
        self.samples: deque[dict[str, Json]] = deque(maxlen=SAMPLES_MAX)
        """Each has ``at``: Unix time in ms; ``lag``: in records by cluster; ``p50_s`` and
        ``p99_s``: request times in seconds. The other fields are rates per second."""
        self.changes: deque[dict[str, Json]] = deque(maxlen=CHANGES_MAX)
        """``before`` and ``after`` are states; empty: no HAProc received the cluster's
        heartbeats."""
        self._moments: deque[_Moment] = deque(maxlen=SAMPLES_MAX)
        self._states: dict[str, str] = {}

    def sample(
        self, lags: Mapping[str, int | None], totals: Totals, now_s: float, unix_s: float
    ) -> None:
        """Add a sample; ``now_s`` is monotonic time, ``unix_s`` the same moment as Unix time."""
        before = self._moments[-1] if self._moments else _Moment(now_s, totals)
        self._moments.append(_Moment(now_s, totals))
        while now_s - self._moments[0].at_s > QUANTILES_S:
            self._moments.popleft()
        passed_s = max(now_s - before.at_s, 1e-3)

        def rate(now: int, then: int) -> float:
            return round((now - then) / passed_s, 2)

        then = before.totals.by_class
        requests = {name: rate(n, then.get(name, 0)) for name, n in totals.by_class.items()}
        took = _since(totals.within, self._moments[0].totals.within)
        self.samples.append(
            {
                "at": round(unix_s * 1000),
                "lag": dict(lags),
                "applied": rate(totals.applied, before.totals.applied),
                "requests": dict(requests),
                "failed": rate(totals.failed, before.totals.failed),
                "p50_s": quantile(took, 0.5),
                "p99_s": quantile(took, 0.99),
            }
        )

    def look(self, views: Iterable[ClusterView], at: str) -> bool:
        """Store the changes of clusters' states since the last call; True if there are any.

        ``at``: the present time as text.
        """
        found = {view.name: view.state for view in views}
        changes: list[dict[str, Json]] = [
            {"at": at, "cluster": name, "before": self._states[name], "after": state}
            for name, state in found.items()
            if self._states.get(name, state) != state
        ]
        self._states = found
        self.changes.extend(changes)
        return bool(changes)


def _since(now: tuple[int, ...], then: tuple[int, ...]) -> list[int]:
    return [n - t for n, t in zip(now, then or (0,) * len(now), strict=True)]


def quantile(within: list[int], share: float) -> float | None:
    """Return the seconds in which ``share`` of the requests was answered; None without requests.

    ``within``: counts as in `Totals.within`. Between two bounds the value is interpolated, as in
    Prometheus. For requests slower than the largest bound, that bound is returned.
    """
    if not within or not within[-1]:
        return None
    rank, lower, below = share * within[-1], 0.0, 0
    for bound, count in zip(LATENCY_BUCKETS_S, within, strict=False):
        if count >= rank:
            return round(lower + (bound - lower) * (rank - below) / max(count - below, 1), 4)
        lower, below = bound, count
    return LATENCY_BUCKETS_S[-1]
