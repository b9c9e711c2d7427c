"""Sends heartbeats and reports to the peers, and judges from theirs which peers are up.

One timer does everything: at every tick it sends a heartbeat, and at some ticks it judges the peers
and sends a report. Ticks are multiples of the interval by the wall clock. So HAProcs whose clocks
agree wake each other once in an interval, not with every message, which costs a quarter less.
Clocks that differ do no harm. The decisions are in `haproc.membership.view`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

from haproc.config.model import Membership
from haproc.membership.clusters import ClusterProgress, all_progress
from haproc.membership.peers import Member
from haproc.membership.state import Beat, ClusterReport, Own, PeerMessage, State, time_text
from haproc.membership.view import Peer, RingView, isolated

logger = logging.getLogger(__name__)


class Subject(Protocol):
    """The built member of this HAProc, which knows what is reported to the peers."""

    def own(self) -> Own:
        """Return the facts to report now; called at every tick."""
        ...

    def isolate(self, why: str) -> None:
        """Note why this HAProc is cut off from the ring; empty: it is not cut off any more."""
        ...


class Lines(Protocol):
    """The connections by which messages go to the peers."""

    def send(self, message: PeerMessage) -> None:
        """Send a message to every peer now; if one does not receive it, it is not sent again."""
        ...

    def silent(self) -> frozenset[str]:
        """Return the peers that neither answer nor refuse connections."""
        ...

    def follow(self, members: Sequence[Member]) -> None:
        """Send to these members from now on; this HAProc may be among them, and is left out."""
        ...


class Members:
    """This HAProc's view of the ring's members, and its own reports to them.

    It reports STARTING until `attach` is called.
    """

    def __init__(
        self,
        rules: Membership,
        identity: tuple[str, str],
        peers: tuple[str, ...],
        lines: Lines,
        unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._rules = rules
        self.cluster, self.incarnation = identity
        self._lines = lines
        self._subject: Subject | None = None
        self._unix_ms = unix_ms
        self.since = self._now_text()
        """The time at which this HAProc's present state began, as text."""
        self.ring: tuple[Member, ...] = ()
        """The ring's clusters according to the log; empty while the log names none."""
        self._clock = asyncio.get_running_loop().time
        self._view = RingView(rules, peers, self._clock())
        self._isolated = ""
        self.on_change: Callable[[], None] = lambda: None
        """Called when the state of any cluster may have changed."""
        self._check_at = self._report_at = 0.0

    def attach(self, subject: Subject) -> None:
        """Report the state and progress of ``subject`` from now on."""
        self._subject = subject

    # -- questions ---------------------------------------------------------------------------

    def own(self) -> Own:
        """Return what this HAProc reports about itself now."""
        return self._subject.own() if self._subject else Own(State.STARTING, self.since)

    def all_progress(self) -> dict[str, ClusterProgress]:
        """Return every cluster's progress by name, for writes that may have to wait for it."""
        own, limit = self.own(), self._rules.in_sync_lag_max
        judged, unjudged = self.judged(), self.unjudged()
        return all_progress(self.cluster, own, judged, unjudged, limit)

    def peers(self) -> Mapping[str, Peer]:
        """Judge the peers now, and return what is known of them."""
        self._check()
        return self._view.peers

    def judged(self) -> Mapping[str, Peer]:
        """Return what was known of the peers when they were last judged at a tick.

        For callers that do something if a peer is down: between the checks, a peer could look
        silent only because this busy process has not read its messages yet.
        """
        return self._view.peers

    def unjudged(self) -> frozenset[str]:
        """Return the peers that cannot be called down yet, because this process has just begun."""
        return self._view.unjudged(self._clock())

    def is_gone(self, peer: str) -> bool:
        """True if a peer is down, and this HAProc has received nothing from it for ``window_s``.

        Also True for a peer that the ring does not have any more.
        """
        return self._view.is_gone(peer, self._clock())

    def ready(self) -> frozenset[str]:
        """Return the peers that are alive and report the state READY."""
        return frozenset(
            name
            for name, peer in self.peers().items()
            if peer.alive and peer.beat is not None and peer.beat.state is State.READY
        )

    def age_s(self, at: float) -> float:
        """Return the seconds since ``at``, a time by the clock of this view."""
        return self._clock() - at

    # -- peers' messages --------------------------------------------------------------------

    def knows(self, peer: str) -> bool:
        """True if the ring has a peer of this name."""
        return peer in self._view.peers

    def follow(self, members: Sequence[Member]) -> None:
        """Use these clusters as the ring from now on: one was added or removed."""
        self.ring = tuple(members)
        names = [each.name for each in members if each.name != self.cluster]
        self._view.follow(names, self._clock())
        self._lines.follow(members)

    def heartbeat(self, beat: Beat) -> None:
        """Take a heartbeat into the view; one of a peer that the ring does not have is ignored."""
        if not self.knows(beat.cluster):
            return
        before = self._view.peers[beat.cluster].beat
        taken = self._view.heartbeat(beat, self._clock())
        if taken and (before is None or before.hears != beat.hears):
            self._log(self._view.confirm(self._clock()))
        if taken and (before is None or before.state is not beat.state):
            self.on_change()

    def report(self, report: ClusterReport) -> None:
        """Take a peer's report of its state and progress into the view."""
        if self.knows(report.cluster):
            self._view.report(report, self._clock())

    # -- running -----------------------------------------------------------------------------

    def state_changed(self) -> None:
        """Send a report of this HAProc's new state at the next tick."""
        self.since = self._now_text()
        self._report_at = 0.0
        self.on_change()

    def report_now(self) -> None:
        """Send this HAProc's heartbeat and report at once."""
        self._report_at = 0.0
        self._send(self._clock())

    async def run_forever(self) -> None:
        """Send heartbeats and reports, and judge the peers, until cancelled."""
        interval_s = self._rules.heartbeat_interval_s
        next_at = self._clock()
        while True:
            if self._clock() - next_at > interval_s:
                # The loop was busy. Messages that came meanwhile must be read before peers are
                # judged; uvloop runs timers before it reads.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            self.tick()
            wait_s = until_tick(interval_s, time.time())
            next_at = self._clock() + wait_s
            await asyncio.sleep(wait_s)

    def tick(self) -> None:
        """Send a heartbeat; also judge the peers and send a report if these are due.

        Called every ``heartbeat_interval_s``.
        """
        now = self._clock()
        if now >= self._check_at:
            # A little early rather than a whole tick late.
            early_s = self._rules.heartbeat_interval_s / 2
            self._check_at = now + self._rules.check_interval_s - early_s
            self._check()
        self._send(now)

    def _send(self, now: float) -> None:
        own = self.own()
        cluster, incarnation = self.cluster, self.incarnation
        up = self._view.peers_up(now)
        self._lines.send(Beat(cluster, incarnation, own.epoch, up, own.log_up, own.state))
        if now >= self._report_at:
            self._report_at = now + self._rules.report_interval_s
            state = (own.state, own.since, own.cursor, own.log_end, own.lag)
            self._lines.send(ClusterReport(cluster, incarnation, own.epoch, *state))

    def _check(self) -> None:
        self._log(self._view.check(self._clock()))
        log_lost = self.own().log_lost
        found = isolated(self._view.evidence(log_lost, self._lines.silent())) if log_lost else ""
        if found != self._isolated:
            self._isolated = found
            if self._subject is not None:
                self._subject.isolate(found)

    def _now_text(self) -> str:
        return time_text(datetime.fromtimestamp(self._unix_ms() / 1000, UTC))

    def _log(self, changed: list[str]) -> None:
        for name in changed:
            logger.info("%s: %s is %s", self.cluster, name, self._view.peers[name].status)
        if changed:
            self.on_change()


def until_tick(interval_s: float, wall_s: float) -> float:
    """Return the seconds until the next tick: half of ``interval_s`` to one and a half."""
    left_s = interval_s - wall_s % interval_s
    return left_s if left_s >= interval_s / 2 else left_s + interval_s
