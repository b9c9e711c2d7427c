"""What one HAProc knows of its ring, from what its peers tell it. Time is an argument.

Heartbeats and reports of an older incarnation are passed over: one whose claim stands before that
of the incarnation known. While the known one is heard, another without a later claim does not
count either; once it is not heard, whoever speaks for the cluster does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from haproc.config.model import Membership
from haproc.membership.detector import Detector
from haproc.membership.judgement import Evidence, PeerStatus, standing_of
from haproc.membership.messages import Beat, ClusterReport


@dataclass(slots=True)
class Peer:
    """One peer; times are of the caller's clock."""

    detector: Detector
    standing: PeerStatus = PeerStatus.DOWN
    changed_at: float = 0.0
    """When it became alive, or was called down."""
    updated_at: float | None = None
    """When it last told its state and progress."""
    beat: Beat | None = None
    report: ClusterReport | None = None
    met: bool = False
    """Whether it was alive at any time, as far as this process knows."""

    @property
    def alive(self) -> bool:
        """Whether anybody hears it."""
        return self.standing is not PeerStatus.DOWN


class RingView:
    """See the module."""

    def __init__(self, rules: Membership, peers: Iterable[str], now_s: float) -> None:
        self._rules = rules
        self._checked_at = now_s
        self.peers = {name: Peer(Detector(rules, now_s), changed_at=now_s) for name in peers}

    def follow(self, names: Iterable[str], now_s: float) -> None:
        """Go by these peers from now on; what is known of those that stay is kept."""
        rules = self._rules
        self.peers = {
            name: self.peers.get(name) or Peer(Detector(rules, now_s), changed_at=now_s)
            for name in names
        }

    def heartbeat(self, beat: Beat, now_s: float) -> bool:
        """Take in a heartbeat; False if it does not count. True may mean that others changed."""
        peer = self.peers[beat.cluster]
        if not self._counts(peer, beat.incarnation, beat.epoch, now_s):
            return False
        if peer.beat is not None and peer.beat.incarnation != beat.incarnation:
            peer.report = None  # another process: what the earlier one told is history
        peer.beat = beat
        peer.detector.heard(now_s)
        return True

    def report(self, report: ClusterReport, now_s: float) -> bool:
        """Take in a report; False if it does not count."""
        peer = self.peers[report.cluster]
        if not self._counts(peer, report.incarnation, report.epoch, now_s):
            return False
        peer.report, peer.updated_at = report, now_s
        return True

    def check(self, now_s: float) -> list[str]:
        """Judge every peer; return the names of those whose standing changed."""
        rules = self._rules
        pause_s = now_s - self._checked_at
        if pause_s > rules.check_interval_s + rules.missed_in_a_row * rules.heartbeat_interval_s:
            for peer in self.peers.values():
                peer.detector.resumed(now_s)
        self._checked_at = now_s
        for peer in self.peers.values():
            peer.detector.check(now_s)
        if all(
            peer.detector.up and peer.standing is PeerStatus.HEARD for peer in self.peers.values()
        ):
            return []
        return self.confirm(now_s)

    def confirm(self, now_s: float) -> list[str]:
        """Draw conclusions from what peers say they hear; return who changed."""
        heard = {name for name, peer in self.peers.items() if peer.detector.up}
        hears = {name: peer.beat.hears for name, peer in self.peers.items() if peer.beat}
        changed = []
        for name, peer in self.peers.items():
            standing = standing_of(name, heard, hears)
            if standing is not peer.standing:
                changed.append(name)
                if (standing is PeerStatus.DOWN) != (peer.standing is PeerStatus.DOWN):
                    peer.changed_at = now_s
                peer.standing = standing
                peer.met |= peer.alive
        return changed

    def hears(self, now_s: float) -> tuple[str, ...]:
        """Return whom this HAProc hears now, for its own heartbeats."""
        return tuple(name for name, peer in self.peers.items() if peer.detector.hears(now_s))

    def given_up(self, name: str, now_s: float) -> bool:
        """Return whether a peer is down and has been silent for a whole window: don't ask it.

        So is one that the ring no longer has.
        """
        peer = self.peers.get(name)
        if peer is None:
            return True
        return not peer.alive and peer.detector.silent_s(now_s) >= self._rules.window_s

    def unheard(self, now_s: float) -> frozenset[str]:
        """Return the peers that were never alive here, and were not listened to for a window.

        One heartbeat makes no peer alive, so whoever just began cannot call it gone.
        """
        return frozenset(
            name
            for name, peer in self.peers.items()
            if not peer.met and peer.detector.watched_s(now_s) < self._rules.window_s
        )

    def evidence(self, log_lost: bool, silent: Iterable[str]) -> Evidence:
        """Return what speaks for this HAProc's own isolation."""
        heard = frozenset(name for name, peer in self.peers.items() if peer.detector.up)
        seen = (name for name, peer in self.peers.items() if peer.beat and peer.beat.log_up)
        return Evidence(
            log_lost, heard, frozenset(seen), frozenset(silent), frozenset(self.peers) - heard
        )

    @staticmethod
    def _counts(peer: Peer, incarnation: str, epoch: int, now_s: float) -> bool:
        known = peer.beat or peer.report
        if known is None or known.incarnation == incarnation:
            return True
        return epoch > known.epoch or not peer.detector.hears(now_s)
