"""Tests of the judgement of peers: when one counts as down, and when a HAProc is isolated."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haproc.membership.view import Evidence, Reachability, isolated, status_of

REACHABLE, UNREACHABLE, DOWN = Reachability.REACHABLE, Reachability.UNREACHABLE, Reachability.DOWN


@pytest.mark.parametrize(
    ("up", "reported_up", "status"),
    [
        ({"c", "b"}, {"b": ()}, REACHABLE),
        ({"b"}, {"b": ("c",)}, UNREACHABLE),
        ({"b"}, {"b": ("a",)}, DOWN),
        ({"b"}, {}, DOWN),
        # the report of a peer that is not up any more is old
        (set(), {"b": ("c",)}, DOWN),
        ({"b"}, {"b": (), "d": ("c",)}, DOWN),
    ],
)
def test_status_of_a_peer_is_down_only_if_no_cluster_receives_it(
    up: set[str], reported_up: dict[str, tuple[str, ...]], status: Reachability
) -> None:
    assert status_of("c", up, reported_up) is status


def evidence(
    log_lost: bool = True, up: str = "", log_seen_by: str = "", silent: str = ""
) -> Evidence:
    peers = frozenset("bc")
    return Evidence(
        log_lost,
        frozenset(up),
        frozenset(log_seen_by),
        frozenset(silent),
        peers - frozenset(up),
    )


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (evidence(silent="bc"), "neither the log nor b and c"),
        (evidence(up="b", log_seen_by="b"), "but b can reach it"),
        (evidence(up="bc", log_seen_by="bc"), "but b and c can reach it"),
        # the log is there: two dead peers don't take the third out
        (evidence(log_lost=False, silent="bc"), ""),
        (evidence(log_lost=False), ""),
        # the log is away for all, as far as anybody knows
        (evidence(up="bc"), ""),
        (evidence(up="b", silent="c"), ""),
        # no peer is up, but whoever refuses connections is reached
        (evidence(silent="b"), ""),
        (evidence(), ""),
        # the report of a peer that is not up any more does not count
        (evidence(log_seen_by="b", silent="c"), ""),
    ],
)
def test_isolated_requires_evidence(known: Evidence, why: str) -> None:
    assert why in isolated(known) and bool(why) is bool(isolated(known))


def test_isolated_is_never_true_of_a_ring_of_one_cluster() -> None:
    assert isolated(Evidence(True)) == ""


names = st.frozensets(st.sampled_from("bcd"))


@settings(deadline=None)
@given(st.booleans(), names, names, names)
def test_isolated_is_never_true_while_the_log_is_reached(
    lost: bool, up: frozenset[str], seen: frozenset[str], silent: frozenset[str]
) -> None:
    found = isolated(Evidence(lost, up, seen, silent, frozenset("bcd") - up))
    assert not found or lost
    if lost and up & seen:
        assert found
