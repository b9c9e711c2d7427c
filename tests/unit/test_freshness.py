"""Tests of the clusters that may run a query: each has applied what the query's level promises."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.config.model import Consistency
from haproc.route.freshness import Candidate, Forward, Refuse, Serve, Wait, decide, need
from haproc.route.model import Freshness

NAMES = ("a", "b", "c", "d")
offsets = st.integers(0, 40)
freshness_levels = st.builds(
    Freshness,
    st.sampled_from(Consistency),
    offsets,
    offsets,
    st.dictionaries(st.sampled_from(NAMES), offsets).map(lambda seen: tuple(sorted(seen.items()))),
)
peers_s = st.lists(
    st.builds(Candidate, st.sampled_from(NAMES[1:]), st.booleans(), st.none() | offsets),
    unique_by=lambda peer: peer.name,
)


@given(
    freshness_levels,
    offsets,
    offsets,
    peers_s,
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sets(st.just("b")),
)
def test_query_runs_only_on_a_cluster_that_is_fresh_enough(
    requirement: Freshness,
    applied: int,
    log_end: int,
    peers: list[Candidate],
    waited: bool,
    nearer: bool,
    may_forward: bool,
    already_tried: set[str],
) -> None:
    decision = decide(
        requirement,
        "a",
        applied,
        log_end,
        peers,
        waited=waited,
        nearer=nearer,
        may_forward=may_forward,
        tried=already_tried,
    )
    missing = need(requirement, "a", log_end) - applied
    fit = {
        peer.name: peer.applied
        for peer in peers
        if peer.serving
        and peer.applied is not None
        and peer.applied >= need(requirement, peer.name, log_end)
        and peer.name not in already_tried
    }
    match decision:
        case Serve():
            assert missing <= 0
        case Wait():
            assert missing > 0 and (not waited or (nearer and not fit))
        case Forward(name):
            assert missing > 0 and may_forward
            assert fit[name] == max(fit.values())
        case Refuse(why):
            assert missing > 0 and waited and not (fit and may_forward)
            assert fit or not nearer
            assert f"a lacks {missing} record" in why
            assert all(peer.name in why for peer in peers)
    if missing > 0 and fit and may_forward and requirement.level is Consistency.BOUNDED:
        assert isinstance(decision, Forward)


@given(freshness_levels, offsets, st.sampled_from(NAMES))
def test_needed_offset_follows_from_the_level(
    requirement: Freshness, log_end: int, name: str
) -> None:
    needed = need(requirement, name, log_end)
    others = [offset for cluster, offset in requirement.seen if cluster != name]
    session = max([requirement.after_offset, *others])
    match requirement.level:
        case Consistency.ANY:
            assert needed == 0
        case Consistency.SESSION:
            assert needed == session
        case Consistency.BOUNDED:
            assert log_end - needed <= requirement.lag_max and needed >= session
        case Consistency.LINEARIZABLE:
            assert needed >= log_end and needed >= session


@given(freshness_levels, offsets, offsets)
def test_needed_offset_of_any_and_session_does_not_depend_on_the_log_end(
    requirement: Freshness, one: int, other: int
) -> None:
    if requirement.level in (Consistency.ANY, Consistency.SESSION):
        assert need(requirement, "a", one) == need(requirement, "a", other)


@pytest.mark.parametrize(
    ("level", "waited", "expected"),
    [
        (Consistency.BOUNDED, False, Forward("c")),
        (Consistency.SESSION, False, Wait()),
        (Consistency.LINEARIZABLE, False, Wait()),
        (Consistency.SESSION, True, Forward("c")),
        (Consistency.LINEARIZABLE, True, Forward("c")),
    ],
)
def test_only_bounded_queries_are_forwarded_without_waiting(
    level: Consistency, waited: bool, expected: object
) -> None:
    requirement = Freshness(level, lag_max=1, after_offset=10)
    peers = [Candidate("b", True, 10), Candidate("c", True, 12), Candidate("d", False, 99)]
    found = decide(requirement, "a", 3, 10, peers, waited=waited, may_forward=True)
    assert found == expected


def test_refusal_contains_the_bound_and_the_lag_of_each_cluster() -> None:
    requirement = Freshness(Consistency.BOUNDED, lag_max=5)
    peers = [Candidate("b", True, 80), Candidate("c", False, 99), Candidate("d", True, None)]
    found = decide(requirement, "a", 50, 100, peers, waited=True, may_forward=True)
    assert found == Refuse(
        "all clusters are down or too far behind for consistency bounded (acceptable_offset_lag "
        "5): a lacks 45 records, b lacks 15 records, c is out of service, d is out of service"
    )
