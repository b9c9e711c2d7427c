"""Who is called down, and when a HAProc counts as cut off itself."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haproc.membership.view import Evidence, PeerStatus, isolated, standing_of

HEARD, UNREACHABLE, DOWN = PeerStatus.HEARD, PeerStatus.UNREACHABLE, PeerStatus.DOWN


@pytest.mark.parametrize(
    ("heard", "hears", "standing"),
    [
        ({"c", "b"}, {"b": ()}, HEARD),
        ({"b"}, {"b": ("c",)}, UNREACHABLE),
        ({"b"}, {"b": ("a",)}, DOWN),
        ({"b"}, {}, DOWN),
        # what one says who is not heard any more is old
        (set(), {"b": ("c",)}, DOWN),
        ({"b"}, {"b": (), "d": ("c",)}, DOWN),
    ],
)
def test_standing_of_peer_down_only_if_nobody_hears_it(
    heard: set[str], hears: dict[str, tuple[str, ...]], standing: PeerStatus
) -> None:
    assert standing_of("c", heard, hears) is standing


def evidence(
    log_lost: bool = True, heard: str = "", log_seen_by: str = "", silent: str = ""
) -> Evidence:
    peers = frozenset("bc")
    return Evidence(
        log_lost,
        frozenset(heard),
        frozenset(log_seen_by),
        frozenset(silent),
        peers - frozenset(heard),
    )


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (evidence(silent="bc"), "neither the log nor b and c"),
        (evidence(heard="b", log_seen_by="b"), "but b can reach it"),
        (evidence(heard="bc", log_seen_by="bc"), "but b and c can reach it"),
        # the log is there: two dead peers don't take the third out
        (evidence(log_lost=False, silent="bc"), ""),
        (evidence(log_lost=False), ""),
        # the log is away for all, as far as anybody knows
        (evidence(heard="bc"), ""),
        (evidence(heard="b", silent="c"), ""),
        # nobody is heard, but whoever refuses connections is reached
        (evidence(silent="b"), ""),
        (evidence(), ""),
        # what somebody said who is not heard any more does not count
        (evidence(log_seen_by="b", silent="c"), ""),
    ],
)
def test_isolated_needs_evidence(known: Evidence, why: str) -> None:
    assert why in isolated(known) and bool(why) is bool(isolated(known))


def test_isolated_ring_of_one_never_is() -> None:
    assert isolated(Evidence(True)) == ""


names = st.frozensets(st.sampled_from("bcd"))


@settings(deadline=None)
@given(st.booleans(), names, names, names)
def test_isolated_never_while_the_log_is_reached(
    lost: bool, heard: frozenset[str], seen: frozenset[str], silent: frozenset[str]
) -> None:
    found = isolated(Evidence(lost, heard, seen, silent, frozenset("bcd") - heard))
    assert not found or lost
    if lost and heard & seen:
        assert found
