"""The choice of a cluster that is fresh enough for a query.

Every level becomes one number, the *need*: the number of records, counted from the log's beginning,
that the query's cluster must have applied before the query starts. All records below it must be
applied; records that were applied out of order above it do not count.

- ``session``: what the client wrote and saw before.
- ``linearizable``: the log's end, read after the request came. Every write that was acknowledged
  before that is below it.
- ``bounded``: that end less ``lag_max``. The bound never rests on an end that was known earlier,
  nor on a peer's report about itself: a cluster that runs a peer's query waits for the same number.

A need never changes once it is known, so a cluster that goes on applying reaches it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from haproc.config.model import Consistency
from haproc.route.model import Freshness

LEVELS_OF_THE_LOG = frozenset({Consistency.BOUNDED, Consistency.LINEARIZABLE})
"""Read levels for which the log must be asked for its end."""


EVERYBODY: Final = ""
"""Stands for any cluster in `need`; no cluster has this name."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Another cluster that might run the query, as its HAProc last reported it.

    ``applied``: its cursor in that report; None if it is unknown.
    """

    name: str
    serving: bool
    applied: int | None


@dataclass(frozen=True, slots=True)
class Serve:
    """A decision: run the query here, now."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A decision: wait until this cluster has applied the needed records, or the time is over."""


@dataclass(frozen=True, slots=True)
class Forward:
    """A decision: let the cluster ``peer`` run the query."""

    peer: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """A decision: refuse the query, because no cluster can run it.

    ``why``: the reason for the client, with each cluster's progress.
    """

    why: str


Decision: TypeAlias = Serve | Wait | Forward | Refuse


def need(wanted: Freshness, cluster: str, log_end: int) -> int:
    """Return how many records, from the log's beginning, a cluster must have applied for a query.

    ``cluster``: the one that would run it; with `EVERYBODY` the number is enough for any cluster.
    ``log_end`` is used only at the levels in `LEVELS_OF_THE_LOG`.
    """
    if wanted.level is Consistency.ANY:
        return 0
    least = max([wanted.after_offset, *(at for name, at in wanted.seen if name != cluster)])
    match wanted.level:
        case Consistency.LINEARIZABLE:
            return max(least, log_end)
        case Consistency.BOUNDED:
            return max(least, log_end - wanted.lag_max)
    return least


def decide(
    wanted: Freshness,
    me: str,
    applied: int,
    log_end: int,
    peers: Sequence[Candidate],
    *,
    waited: bool,
    nearer: bool = False,
    may_forward: bool,
    tried: Collection[str] = (),
) -> Decision:
    """Decide whether the query runs here, waits, goes to a peer, or is refused.

    ``me``: this cluster, which has applied ``applied`` records. ``waited``: True if the query has
    already waited in vain for this cluster. ``nearer``: True if this cluster applied more during
    that wait, or is about to, and there is time left. ``tried``: peers that could not run the
    query.
    """
    if applied >= need(wanted, me, log_end):
        return Serve()
    fit = [p for p in peers if p.name not in tried and _fits(p, wanted, log_end)]
    if fit and may_forward and (waited or wanted.level is Consistency.BOUNDED):
        return Forward(max(fit, key=_applied).name)
    # If no peer is fresh enough, the query goes on waiting here: elsewhere it would begin anew.
    if not waited or (nearer and not fit):
        return Wait()
    return Refuse(_why(wanted, me, applied, log_end, peers))


def _fits(peer: Candidate, wanted: Freshness, log_end: int) -> bool:
    return peer.serving and _applied(peer) >= need(wanted, peer.name, log_end)


def _applied(peer: Candidate) -> int:
    return -1 if peer.applied is None else peer.applied


def _why(wanted: Freshness, me: str, applied: int, log_end: int, peers: Iterable[Candidate]) -> str:
    lags = [_lag_text(me, applied, need(wanted, me, log_end))]
    for peer in peers:
        if not peer.serving or peer.applied is None:
            lags.append(f"{peer.name} is out of service")
        else:
            lags.append(_lag_text(peer.name, peer.applied, need(wanted, peer.name, log_end)))
    return f"all clusters are down or too far behind for {asked_for(wanted)}: {', '.join(lags)}"


def _lag_text(name: str, applied: int, needed: int) -> str:
    missing = needed - applied
    return f"{name} has what is needed" if missing <= 0 else f"{name} lacks {records(missing)}"


def records(count: int) -> str:
    """Return a number of records in words: "1 record", "2 records"."""
    return "1 record" if count == 1 else f"{count} records"


def asked_for(wanted: Freshness) -> str:
    """Return the read level, and its bound if it has one, as a text for error messages."""
    if wanted.level is Consistency.BOUNDED:
        return f"consistency bounded (acceptable_offset_lag {wanted.lag_max})"
    return f"consistency {wanted.level.value}"
