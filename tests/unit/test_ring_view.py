"""Tests of the ring view: a HAProc's knowledge of its ring, from its peers' messages."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from haproc.config.model import Config, Membership
from haproc.membership.clusters import ClusterView, cluster_views
from haproc.membership.state import Beat, ClusterReport, Own, State
from haproc.membership.view import Reachability, RingView
from tests.unit.door_rig import make_config

RULES = Membership()
SEND_S = RULES.heartbeat_interval_s


def beat(cluster: str, incarnation: str = "1", epoch: int = 1, hears: str = "", **kw: bool) -> Beat:
    return Beat(cluster, incarnation, epoch, tuple(hears), kw.get("log_up", True), State.READY)


def report(cluster: str, cursor: int, log_end: int, incarnation: str = "1") -> ClusterReport:
    return ClusterReport(
        cluster,
        incarnation,
        1,
        State.READY,
        "2026-01-01T00:00:00Z",
        cursor,
        log_end,
        log_end - cursor,
    )


class Listener:
    """A view whose peers send at the usual interval."""

    def __init__(self) -> None:
        self.now = 100.0
        self.view = RingView(RULES, "bc", self.now)
        self._ticks = 0

    def go_on(self, seconds: float, *beats: Beat) -> list[str]:
        """Let time pass with these heartbeats at every tick; return the peers that changed."""
        changed = []
        for _ in range(round(seconds / SEND_S)):
            self.now += SEND_S
            self._ticks += 1
            for each in beats:
                self.view.heartbeat(each, self.now)
            if self._ticks % 2 == 0:
                changed += self.view.check(self.now)
        return changed

    def status(self, name: str) -> Reachability:
        return self.view.peers[name].status


def test_view_peer_that_becomes_silent_is_down() -> None:
    listener = Listener()
    assert sorted(listener.go_on(0.4, beat("b"), beat("c"))) == ["b", "c"]
    assert listener.view.peers_up(listener.now) == ("b", "c")
    assert listener.go_on(0.6, beat("b")) == ["c"]
    assert listener.status("c") is Reachability.DOWN and not listener.view.peers["c"].alive


def test_view_peer_that_another_one_receives_is_unreachable_until_that_one_does_not() -> None:
    listener = Listener()
    listener.go_on(0.4, beat("b", hears="c"), beat("c"))
    listener.go_on(3.0, beat("b", hears="c"))
    assert listener.status("c") is Reachability.UNREACHABLE and listener.view.peers["c"].alive
    assert not listener.view.is_gone("c", listener.now)
    listener.view.heartbeat(beat("b"), listener.now)
    assert listener.view.confirm(listener.now) == ["c"]
    assert listener.status("c") is Reachability.DOWN


def test_view_peer_received_once_is_unjudged_until_a_window_has_passed() -> None:
    listener = Listener()
    listener.go_on(0.1, beat("b"))
    assert not listener.view.peers["b"].alive
    assert listener.view.unjudged(listener.now) == {"b", "c"}
    listener.go_on(0.4, beat("b"))
    assert listener.view.unjudged(listener.now) == {"c"}
    listener.go_on(0.6)
    assert not listener.view.peers["b"].alive  # was alive, and is down now
    assert listener.view.unjudged(listener.now) == {"c"}
    listener.go_on(2.0)
    assert not listener.view.unjudged(listener.now)


def test_view_peer_is_gone_after_a_whole_window() -> None:
    listener = Listener()
    assert not listener.view.is_gone("c", listener.now)
    listener.go_on(0.4, beat("b"), beat("c"))
    listener.go_on(1.0, beat("b"))
    assert listener.status("c") is Reachability.DOWN
    assert not listener.view.is_gone("c", listener.now)
    listener.go_on(RULES.window_s, beat("b"))
    assert listener.view.is_gone("c", listener.now)
    assert not listener.view.is_gone("b", listener.now)
    assert listener.view.is_gone("once-a-member", listener.now)


def test_view_reports_no_peer_down_right_after_a_pause_of_its_own() -> None:
    listener = Listener()
    listener.go_on(0.4, beat("b"), beat("c"))
    listener.now += 60
    assert listener.view.check(listener.now) == []
    assert listener.go_on(0.2) == []
    assert listener.go_on(0.4) == ["b", "c"]


def test_view_ignores_an_older_incarnation_while_it_receives_the_newer_one() -> None:
    listener = Listener()
    listener.go_on(0.4, beat("b", "old", 3))
    assert listener.view.heartbeat(beat("b", "new", 9), listener.now)
    listener.go_on(0.4, beat("b", "new", 9))
    for late in (beat("b", "old", 3), beat("b", "starting", 0)):
        assert not listener.view.heartbeat(late, listener.now)
    assert not listener.view.report(
        dataclasses.replace(report("b", 5, 5, "old"), epoch=3), listener.now
    )
    last_beat = listener.view.peers["b"].beat
    assert last_beat is not None and last_beat.incarnation == "new"
    # Who is alone speaks for the cluster, whatever its claim: the log may have been made anew.
    listener.go_on(1.0)
    assert listener.view.heartbeat(beat("b", "old", 3), listener.now)


def test_view_of_a_new_incarnation_has_no_report_yet() -> None:
    listener = Listener()
    listener.go_on(0.4, beat("b"))
    listener.view.report(report("b", 7, 9), listener.now)
    listener.view.heartbeat(beat("b", "2", 8), listener.now)
    assert listener.view.peers["b"].report is None


def test_view_evidence_contains_witnesses_and_silent_peers() -> None:
    listener = Listener()
    listener.go_on(0.4, beat("b"), beat("c", log_up=False))
    found = listener.view.evidence(True, ["c"])
    assert (found.up, found.log_seen_by, found.silent) == ({"b", "c"}, {"b"}, {"c"})
    listener.go_on(1.0, beat("b"))
    assert listener.view.evidence(True, []).not_up == {"c"}


# -- as /clusterStatus shows it ----------------------------------------------------------------


def views(listener: Listener, own: Own, lag_max: int = 10) -> dict[str, ClusterView]:
    config = _config(lag_max)
    found = cluster_views(config, "a", "1", own, listener.view.peers, str, "now")
    return {view.name: view for view in found}


def _config(lag_max: int) -> Config:
    return dataclasses.replace(make_config(Path()), membership=Membership(in_sync_lag_max=lag_max))


OWN = Own(State.READY, "then", 1, cursor=95, log_end=100, lag=5)


def test_cluster_views_lag_counts_against_the_newest_known_log_end() -> None:
    listener = Listener()
    listener.go_on(0.4, beat("b"))
    listener.view.report(report("b", 108, 110), listener.now)
    shown = views(listener, OWN)
    assert (shown["a"].lag, shown["a"].in_sync) == (15, False)
    assert (shown["b"].lag, shown["b"].in_sync) == (2, True)
    assert (shown["b"].log_end, shown["b"].incarnation) == (110, "1")
    assert (shown["b"].since, shown["b"].last_update) == ("2026-01-01T00:00:00Z", str(listener.now))


def test_cluster_views_of_a_peer_that_is_down_keep_its_last_report() -> None:
    listener = Listener()
    assert views(listener, OWN)["b"] == ClusterView(
        "b", "http://127.0.0.1:0", False, False, "", None, None, None, None, False, "100.0", None
    )
    listener.go_on(0.4, beat("b"))
    listener.view.report(report("b", 100, 100), listener.now)
    listener.go_on(1.0)
    shown = views(listener, OWN)["b"]
    assert (shown.alive, shown.direct, shown.in_sync) == (False, False, False)
    assert (shown.state, shown.cursor, shown.lag) == ("", 100, 0)
    assert 100.0 < float(shown.since) <= listener.now


def test_cluster_views_of_a_state_without_sound_tables_are_not_in_sync() -> None:
    listener = Listener()
    for state in (State.DIVERGED, State.TOO_FAR_BEHIND, State.STARTING):
        own = dataclasses.replace(OWN, state=state)
        assert not views(listener, own)["a"].in_sync
    assert views(listener, OWN)["a"].in_sync


def test_view_follows_an_added_cluster_and_forgets_a_removed_one() -> None:
    listener = Listener()
    listener.go_on(0.6, beat("b"), beat("c"))
    listener.view.follow("bd", listener.now)
    assert sorted(listener.view.peers) == ["b", "d"]
    assert (
        listener.status("b") is Reachability.REACHABLE and listener.status("d") is Reachability.DOWN
    )
    assert listener.view.is_gone("c", listener.now)
    assert listener.go_on(0.6, beat("b"), beat("d")) == ["d"]
