"""Which clusters are in sync, and how far all of them are. Values in, values out.

A cluster is *in sync* while its HAProc is alive, applies the log as usual, and lags by a limit of
records at most: what it has applied behind a record that takes long is no lag. One that is out of
service (its Spark is down, it is stuck, cut off, leaving) is not: no client is served there, and
nobody should wait for it. One that recovers is as soon as its lag is within the limit, which is
before it serves: what is acknowledged from then on has waited for it. One of which nothing can be
known yet counts, too: a HAProc that just began must not take those it has hardly heard for gone.

The *high watermark* is the offset below which every cluster in sync has applied everything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from haproc.membership.messages import Own
from haproc.membership.state import HOPELESS, State
from haproc.membership.view import Peer

IN_SYNC_STATES: Final = frozenset({State.READY, State.READ_ONLY, State.RECOVERING})


@dataclass(frozen=True, slots=True)
class ClusterProgress:
    """How one cluster stands.

    ``cursor``: below it, it had applied everything when it told; None if it never told.
    ``sound``: its tables are those at its cursor, as far as is known.
    """

    in_sync: bool
    cursor: int | None = None
    sound: bool = True


def end_of_log(log_end: int, peers: Iterable[Peer]) -> int:
    """Return the newest end of the log that anybody told of."""
    ends = [peer.report.log_end for peer in peers if peer.report is not None]
    return max([log_end, *ends])


def places(
    me: str,
    own: Own,
    peers: Mapping[str, Peer],
    unheard: Collection[str],
    lag_max: int,
) -> dict[str, ClusterProgress]:
    """Return every cluster's place; ``own`` is what this HAProc tells of itself.

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
