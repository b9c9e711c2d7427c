"""Tests of the in-sync set and the high watermark (docs/proofs/fences.md, "Write concern")."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.config.model import Membership
from haproc.membership.clusters import IN_SYNC_STATES, ClusterProgress, all_progress, high_watermark
from haproc.membership.state import HOPELESS, SERVING, Beat, ClusterReport, Own, State
from haproc.membership.view import Detector, Peer, Reachability

LAG_MAX = 10


def peer(
    state: State = State.READY,
    cursor: int | None = 100,
    log_end: int = 100,
    status: Reachability = Reachability.REACHABLE,
) -> Peer:
    beat = Beat("b", "1", 1, (), True, state)
    report = None
    if cursor is not None:
        report = ClusterReport("b", "1", 1, state, "-", cursor, log_end, log_end - cursor)
    return Peer(Detector(Membership(), 0), status, beat=beat, report=report)


def place(
    of: Peer, own_state: State = State.READY, own_cursor: int = 100, log_end: int = 100
) -> ClusterProgress:
    return all_progress("a", says(own_state, own_cursor, log_end), {"b": of}, (), LAG_MAX)["b"]


def says(state: State, cursor: int, log_end: int, lag: int | None = None) -> Own:
    lag = log_end - cursor if lag is None else lag
    return Own(state, "-", cursor=cursor, log_end=log_end, lag=lag)


def own(state: State, cursor: int, log_end: int, of: Peer | None = None) -> ClusterProgress:
    peers = {"b": of} if of is not None else {}
    return all_progress("a", says(state, cursor, log_end), peers, (), LAG_MAX)["a"]


@pytest.mark.parametrize("state", State)
def test_in_sync_set_contains_clusters_that_serve_or_are_about_to_serve(state: State) -> None:
    expected = state in {State.READY, State.READ_ONLY, State.RECOVERING}
    assert own(state, 100, 100).in_sync is expected
    assert place(peer(state)).in_sync is expected
    assert place(peer(state)).sound is (state not in HOPELESS)


def test_in_sync_states_include_every_state_that_serves_clients() -> None:
    assert SERVING <= IN_SYNC_STATES


def test_lag_counts_against_the_newest_log_end_that_any_cluster_knows() -> None:
    assert place(peer(cursor=90)).in_sync
    assert not place(peer(cursor=89)).in_sync
    assert not place(peer(cursor=90), log_end=101).in_sync
    assert own(State.READY, 90, 95, peer(log_end=100)).in_sync
    assert not own(State.READY, 90, 95, peer(log_end=101)).in_sync


def test_records_applied_behind_a_slow_record_count_as_no_lag() -> None:
    far = peer(cursor=0)
    assert far.report is not None
    behind = replace(far, report=replace(far.report, lag=9))
    assert not place(far).in_sync
    assert place(behind) == ClusterProgress(True, 0)
    assert not place(behind, log_end=102).in_sync  # it has told nothing of those two
    mine = all_progress("a", says(State.READY, 0, 100, lag=9), {}, (), LAG_MAX)["a"]
    assert mine == ClusterProgress(True, 0)


def test_recovering_cluster_is_in_sync_once_it_is_near_the_log_end() -> None:
    assert not place(peer(State.RECOVERING, cursor=50)).in_sync
    assert place(peer(State.RECOVERING, cursor=95)).in_sync


def test_cluster_that_is_down_leaves_the_in_sync_set_and_its_cursor_is_kept() -> None:
    assert place(peer(status=Reachability.DOWN)) == ClusterProgress(False, 100)
    assert place(peer(status=Reachability.UNREACHABLE)).in_sync


def test_live_cluster_without_a_report_is_in_sync_with_an_unknown_cursor() -> None:
    assert place(peer(cursor=None)) == ClusterProgress(True, None)


def test_cluster_never_seen_is_in_sync_until_its_heartbeats_can_be_judged() -> None:
    silent = Peer(Detector(Membership(), 0))
    for unheard, expected in ((("b",), True), ((), False)):
        found = all_progress("a", says(State.READY, 100, 100), {"b": silent}, unheard, LAG_MAX)
        assert found["b"] == ClusterProgress(expected)
    once = peer(status=Reachability.DOWN)  # it told, and was not heard a second time yet
    for unheard, expected in ((("b",), True), ((), False)):
        found = all_progress("a", says(State.READY, 100, 100), {"b": once}, unheard, LAG_MAX)
        assert found["b"].in_sync is expected


def test_high_watermark_is_the_lowest_cursor_of_the_in_sync_clusters() -> None:
    assert (
        high_watermark(
            [ClusterProgress(True, 9), ClusterProgress(True, 7), ClusterProgress(False, 3)]
        )
        == 7
    )
    assert high_watermark([ClusterProgress(False, 3), ClusterProgress(True, None)]) == 0


@given(
    st.lists(
        st.builds(
            peer,
            st.sampled_from(State),
            st.integers(0, 120),
            st.integers(80, 120),
            st.sampled_from(Reachability),
        ),
        max_size=4,
    ),
    st.integers(0, 100),
)
def test_high_watermark_is_applied_by_all_in_sync_clusters_and_lags_within_the_limit(
    peers: list[Peer], cursor: int
) -> None:
    named = dict(zip("bcde", peers, strict=False))
    found = all_progress("a", says(State.READY, cursor, 100), named, (), LAG_MAX)
    mark = high_watermark(found.values())
    cursors = [p.cursor for p in found.values() if p.in_sync and p.cursor is not None]
    assert all(mark <= each for each in cursors)
    end = max([100, *(p.report.log_end for p in peers if p.report is not None)])
    assert not cursors or end - mark <= LAG_MAX
