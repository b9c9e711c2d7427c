"""What a HAProc knows of its peers from their messages: which are up, which are down.

Time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from haproc.config.model import Membership
from haproc.membership.state import Beat, ClusterReport

# The decision if a peer is up, from the times at which its heartbeats were received.
#
# The last ``window_s`` are cut into intervals of the length at which heartbeats are sent; the
# newest one ends now. Each interval is full (it has a heartbeat) or empty. A check walks the window
# from its oldest interval to its newest. ``missed_in_a_row`` empty intervals at its end mean that
# the peer is not up. ``received_in_a_row`` full ones without such a silence after them mean that it
# is up. Otherwise it is as it was at the last check.
#
# HAProcs tick together, so at a check a heartbeat is mostly a little younger than whole intervals.
# Therefore the newest interval ends a little after now (`_EARLY_INTERVALS`): three intervals after
# the last heartbeat the check finds three empty ones, not two.
#
# Times in which nobody listened do not count: when checks stop for a while (this process was
# frozen, or its event loop was busy), the intervals before the next check count as not watched.
# Time is an argument; it never goes back.


_EARLY_INTERVALS = 0.2
"""How far after now the newest interval ends, in intervals. Chosen: of the usual 100 ms, this is
more than a heartbeat's delay on a busy machine."""


class Detector:
    """Judges from one peer's heartbeats if it is up; before the first judgement it is not."""

    __slots__ = ("_received_at", "_rules", "_watched_since", "up")

    def __init__(self, rules: Membership, now_s: float) -> None:
        self._rules = rules
        self._received_at: deque[float] = deque(maxlen=4 * _intervals(rules))
        self._watched_since = now_s
        self.up = False
        """True if the last check found that the peer is up."""

    def received(self, now_s: float) -> None:
        """Record that a heartbeat was received at ``now_s``."""
        self._received_at.append(now_s)

    def resumed(self, now_s: float) -> None:
        """Note that this HAProc could receive nothing until now: silence proves nothing."""
        self._watched_since = now_s

    def check(self, now_s: float) -> bool:
        """Judge all heartbeats of the window anew; return True if the peer is up."""
        if self.is_up(now_s):
            return True  # the walk would give the same, and costs more
        ahead_s = now_s + _EARLY_INTERVALS * self._rules.heartbeat_interval_s
        was_up = self.up
        self.up = judged(was_up, self._received_at, self._watched_since, ahead_s, self._rules)
        if was_up and not self.up:
            # Heartbeats before the silence do not end it; the last one is kept for its length.
            last = self._received_at[-1]
            self._received_at.clear()
            self._received_at.append(last)
        return self.up

    def is_up(self, now_s: float) -> bool:
        """True if the last check found the peer up, and it was not silent for long since."""
        rules = self._rules
        limit_s = (rules.missed_in_a_row - _EARLY_INTERVALS) * rules.heartbeat_interval_s
        return self.up and self.silent_s(now_s) < limit_s

    def watched_s(self, now_s: float) -> float:
        """Return how long this HAProc has been able to receive heartbeats without a break."""
        return now_s - self._watched_since

    def silent_s(self, now_s: float) -> float:
        """Return how long the peer has sent no heartbeat while this HAProc could receive."""
        last = self._received_at[-1] if self._received_at else self._watched_since
        return now_s - max(last, self._watched_since)


def judged(
    up: bool, received_at: Iterable[float], watched_since: float, now_s: float, rules: Membership
) -> bool:
    """Return True if the peer is up, by the rules in this module's comment.

    ``up``: the last judgement. ``received_at``: when heartbeats came. ``watched_since``: since when
    this HAProc could receive them.
    """
    interval_s, count = rules.heartbeat_interval_s, _intervals(rules)
    full = bytearray(count)
    for at in received_at:
        age = int(max(0.0, now_s - at) / interval_s)
        if age < count:
            full[age] = 1
    missed = received = best = 0
    for age in range(count - 1, -1, -1):
        if full[age]:
            missed, received = 0, received + 1
            best = max(best, received)
        elif (age + 1) * interval_s <= now_s - watched_since + interval_s * 1e-6:
            missed, received = missed + 1, 0
            if missed >= rules.missed_in_a_row:
                best = 0
    if missed >= rules.missed_in_a_row:
        return False
    return up or best >= rules.received_in_a_row


def _intervals(rules: Membership) -> int:
    return max(1, round(rules.window_s / rules.heartbeat_interval_s))


# The peers that are down, and the case that this HAProc itself is cut off. Values in, decisions
# out.
#
# A peer counts as down only if neither this HAProc nor any of its live peers receives its
# heartbeats. So a broken line between two HAProcs takes none out of service, and a HAProc that is
# cut off does not convince others.
#
# Isolation needs evidence. The silence of all peers is none: two peers may be dead, and a HAProc
# that reaches the log has the ring's truth and serves on. A log that cannot be reached is none
# either: it may be away for all, and then queries are still answered everywhere. Both together are
# evidence, or a peer that reaches the log.


class Reachability(StrEnum):
    """Whether heartbeats of a peer arrive: here, only at other HAProcs, or nowhere (DOWN)."""

    REACHABLE = "reachable"
    UNREACHABLE = "unreachable"
    """Heartbeats do not arrive here, but at a live peer."""
    DOWN = "down"


def status_of(
    peer: str, up: Collection[str], reported_up: Mapping[str, Collection[str]]
) -> Reachability:
    """Return whether heartbeats of ``peer`` arrive here, only at a live peer, or nowhere.

    ``up``: the peers that are up for this HAProc. ``reported_up``: by peer, those that are up for
    it.
    """
    if peer in up:
        return Reachability.REACHABLE
    if any(peer in reported_up.get(other, ()) for other in up):
        return Reachability.UNREACHABLE
    return Reachability.DOWN


@dataclass(frozen=True, slots=True)
class Evidence:
    """The facts from which `isolated` concludes that this HAProc is cut off from the ring."""

    log_lost: bool
    """The log has not answered for so long that peers must have noticed it, too, if the log itself
    is away."""
    up: frozenset[str] = frozenset()
    """Peers whose heartbeats arrive here."""
    log_seen_by: frozenset[str] = frozenset()
    """Peers that report that the log answers them."""
    silent: frozenset[str] = frozenset()
    """Peers that neither answer nor refuse connections."""
    not_up: frozenset[str] = frozenset()
    """Peers whose heartbeats do not arrive here."""


def isolated(evidence: Evidence) -> str:
    """Return why this HAProc is cut off from the ring, for people; empty: it is not."""
    e = evidence
    if not e.log_lost:
        return ""
    witnesses = sorted(e.up & e.log_seen_by)
    if witnesses:
        return f"the log cannot be reached from here, but {_names(witnesses)} can reach it"
    if not e.up and e.not_up and e.not_up <= e.silent:
        return f"neither the log nor {_names(sorted(e.not_up))} can be reached from here"
    return ""


def _names(names: list[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else names[0]


@dataclass(slots=True)
class Peer:
    """What is known of one peer; times are of the clock of the caller of `RingView`."""

    detector: Detector
    status: Reachability = Reachability.DOWN
    changed_at: float = 0.0
    """The time at which it became alive, or went down."""
    updated_at: float | None = None
    """The time at which its last report of state and progress came; None: none came."""
    beat: Beat | None = None
    report: ClusterReport | None = None
    met: bool = False
    """True if it has been alive at some time since this process began."""

    @property
    def alive(self) -> bool:
        """True if this HAProc or a live peer receives its heartbeats."""
        return self.status is not Reachability.DOWN


class RingView:
    """What one HAProc knows of its peers from their messages. Time is an argument.

    A message of an older incarnation is ignored: one whose claim is before the known incarnation's
    in the log. While heartbeats of the known incarnation arrive, another one without a later claim
    is ignored, too. When they stop, any incarnation of the cluster is accepted.
    """

    def __init__(self, rules: Membership, peers: Iterable[str], now_s: float) -> None:
        self._rules = rules
        self._checked_at = now_s
        self.peers = {name: Peer(Detector(rules, now_s), changed_at=now_s) for name in peers}

    def follow(self, names: Iterable[str], now_s: float) -> None:
        """Keep a view of these peers from now on; what is known of those that stay is kept."""
        rules = self._rules
        self.peers = {
            name: self.peers.get(name) or Peer(Detector(rules, now_s), changed_at=now_s)
            for name in names
        }

    def heartbeat(self, beat: Beat, now_s: float) -> bool:
        """Take a heartbeat into the view; False if it is ignored, because of its incarnation."""
        peer = self.peers[beat.cluster]
        if not self._counts(peer, beat.incarnation, beat.epoch, now_s):
            return False
        if peer.beat is not None and peer.beat.incarnation != beat.incarnation:
            peer.report = None  # another process: the earlier one's reports are out of date
        peer.beat = beat
        peer.detector.received(now_s)
        return True

    def report(self, report: ClusterReport, now_s: float) -> bool:
        """Take a report into the view; False if it is ignored, because of its incarnation."""
        peer = self.peers[report.cluster]
        if not self._counts(peer, report.incarnation, report.epoch, now_s):
            return False
        peer.report, peer.updated_at = report, now_s
        return True

    def check(self, now_s: float) -> list[str]:
        """Judge from the heartbeats which peers are up; return those whose status has changed."""
        rules = self._rules
        pause_s = now_s - self._checked_at
        if pause_s > rules.check_interval_s + rules.missed_in_a_row * rules.heartbeat_interval_s:
            for peer in self.peers.values():
                peer.detector.resumed(now_s)
        self._checked_at = now_s
        for peer in self.peers.values():
            peer.detector.check(now_s)
        if all(
            peer.detector.up and peer.status is Reachability.REACHABLE
            for peer in self.peers.values()
        ):
            return []
        return self.confirm(now_s)

    def confirm(self, now_s: float) -> list[str]:
        """Set every peer's status, also by peers' reports of each other; return those changed."""
        up = {name for name, peer in self.peers.items() if peer.detector.up}
        reported_up = {name: peer.beat.hears for name, peer in self.peers.items() if peer.beat}
        changed = []
        for name, peer in self.peers.items():
            status = status_of(name, up, reported_up)
            if status is not peer.status:
                changed.append(name)
                if (status is Reachability.DOWN) != (peer.status is Reachability.DOWN):
                    peer.changed_at = now_s
                peer.status = status
                peer.met |= peer.alive
        return changed

    def peers_up(self, now_s: float) -> tuple[str, ...]:
        """Return the peers that are up now, to be named in this HAProc's own heartbeats."""
        return tuple(name for name, peer in self.peers.items() if peer.detector.is_up(now_s))

    def is_gone(self, name: str, now_s: float) -> bool:
        """True if a peer is down and silent for ``window_s``, so that requests are useless.

        Also True for a peer that the ring does not have any more.
        """
        peer = self.peers.get(name)
        if peer is None:
            return True
        return not peer.alive and peer.detector.silent_s(now_s) >= self._rules.window_s

    def unjudged(self, now_s: float) -> frozenset[str]:
        """Return the peers that were never alive and not listened to for a whole window yet.

        It takes several heartbeats until a peer counts as alive, so a HAProc that has just begun
        cannot judge it yet.
        """
        return frozenset(
            name
            for name, peer in self.peers.items()
            if not peer.met and peer.detector.watched_s(now_s) < self._rules.window_s
        )

    def evidence(self, log_lost: bool, silent: Iterable[str]) -> Evidence:
        """Return the facts from which `isolated` decides if this HAProc is cut off from the ring.

        ``silent``: the peers that neither answer nor refuse connections.
        """
        up = frozenset(name for name, peer in self.peers.items() if peer.detector.up)
        seen = (name for name, peer in self.peers.items() if peer.beat and peer.beat.log_up)
        return Evidence(
            log_lost, up, frozenset(seen), frozenset(silent), frozenset(self.peers) - up
        )

    @staticmethod
    def _counts(peer: Peer, incarnation: str, epoch: int, now_s: float) -> bool:
        known = peer.beat or peer.report
        if known is None or known.incarnation == incarnation:
            return True
        return epoch > known.epoch or not peer.detector.is_up(now_s)
