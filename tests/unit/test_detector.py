"""Heartbeat times alone decide whether a peer counts as up."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from haproc.config.model import Membership
from haproc.membership.view import Detector

RULES = Membership()
SEND_S, CHECK_S = RULES.heartbeat_interval_s, RULES.check_interval_s
MISSED, RECEIVED = RULES.missed_in_a_row, RULES.received_in_a_row
EARLY_S = 0.2 * SEND_S
DOWN_AFTER_S = MISSED * SEND_S - EARLY_S


def verdicts(beats: list[float], end_s: float, first_check_s: float = 0.0) -> list[bool]:
    """Let heartbeats arrive at these times, check at the usual interval, and return each
    verdict.
    """
    detector, found, number = Detector(RULES, 0.0), [], 0
    beats = sorted(beats)
    for n in range(int((end_s - first_check_s) / CHECK_S) + 1):
        now = first_check_s + n * CHECK_S
        while number < len(beats) and beats[number] <= now:
            detector.received(beats[number])
            number += 1
        found.append(detector.check(now))
    return found


@pytest.mark.parametrize(
    ("beats", "reported_up"),
    [
        ([], False),
        ([9.95], False),  # one alone
        ([9.85, 9.95], True),  # two in a row
        ([9.75, 9.95], False),  # a gap between them
        ([9.65, 9.75], True),  # two, and a silence that is too short to matter
        ([9.55, 9.65], False),  # silence at the window's end
        ([9.2, 9.3, 9.95], False),  # two before the silence, one after it
        ([7.95, 7.99], False),  # out of the window
        ([10.0, 10.0], False),  # twice in one interval
    ],
)
def test_detector_of_a_new_peer_reports_it_up_after_two_intervals_in_a_row(
    beats: list[float], reported_up: bool
) -> None:
    detector = Detector(RULES, 0.0)
    for at in beats:
        detector.received(at)
    assert detector.check(10.0) is reported_up


def test_detector_notices_silence_at_the_first_check_after_three_intervals() -> None:
    last = 3.0
    beats = [n * SEND_S for n in range(int(last / SEND_S) + 1)]
    found = verdicts(beats, 5.0)
    noticed_at = found.index(False, int(last / CHECK_S)) * CHECK_S
    assert last + DOWN_AFTER_S - 1e-6 <= noticed_at <= last + DOWN_AFTER_S + CHECK_S


def test_detector_notices_silence_of_whole_intervals_although_heartbeats_arrive_late() -> None:
    late_s = 0.9 * EARLY_S  # sent at the tick, judged at a later tick
    last = 3.0
    beats = [n * SEND_S + late_s for n in range(int(last / SEND_S) + 1)]
    found = verdicts(beats, 5.0, first_check_s=last + MISSED * SEND_S - 10 * CHECK_S)
    assert found[:11] == [True] * 10 + [False]


def test_detector_does_not_count_a_pause_of_the_listener_as_silence_of_the_peer() -> None:
    detector = Detector(RULES, 0.0)
    for n in range(20):
        detector.received(n * SEND_S)
    assert detector.check(2.0)
    detector.resumed(10.0)  # frozen for eight seconds
    assert detector.check(10.0) and detector.check(10.0 + DOWN_AFTER_S - SEND_S)
    assert detector.silent_s(10.1) == pytest.approx(0.1)
    assert not detector.check(10.0 + DOWN_AFTER_S + 1e-6)


def test_detector_state_of_a_peer_is_computed_for_the_current_moment() -> None:
    detector = Detector(RULES, 0.0)
    for n in range(20):
        detector.received(n * SEND_S)
    assert detector.check(2.0)
    assert detector.is_up(1.9 + DOWN_AFTER_S - 0.01)
    assert not detector.is_up(1.9 + DOWN_AFTER_S + 1e-6)


times = st.floats(min_value=0.0, max_value=6.0, allow_nan=False)
offsets = st.floats(min_value=0.0, max_value=0.2, allow_nan=False)


@settings(deadline=None)
@given(st.lists(st.floats(min_value=0.0, max_value=SEND_S * 0.99), min_size=30, max_size=60))
def test_detector_never_loses_regular_heartbeats_with_jitter(jitter: list[float]) -> None:
    beats = [n * SEND_S + late for n, late in enumerate(jitter)]
    found = verdicts(beats, beats[-1])
    assert all(found[found.index(True) :])


@settings(deadline=None)
@given(st.lists(times, max_size=60), offsets)
def test_detector_reports_a_peer_down_only_while_it_is_silent(
    beats: list[float], first: float
) -> None:
    found = verdicts(beats, 8.0, first)
    for n, (before, after) in enumerate(pairwise(found), 1):
        now = first + n * CHECK_S
        quiet = [at for at in beats if now - DOWN_AFTER_S + 1e-6 < at <= now]
        if before and not after:
            assert not quiet
        if after:
            assert [at for at in beats if now - DOWN_AFTER_S - 1e-6 <= at <= now]


@settings(deadline=None)
@given(st.lists(times, max_size=60), offsets)
@example([1.5, 1.5625, 1.90625], 0.09375)  # the last came a moment after its interval was judged
def test_detector_reports_a_peer_up_only_after_new_heartbeats_in_two_intervals(
    beats: list[float], first: float
) -> None:
    """A peer that was down must have sent again, in two different intervals."""
    found = verdicts(beats, 8.0, first)
    fell_at = 0.0
    for n, (before, after) in enumerate(pairwise([False, *found])):
        now = first + n * CHECK_S
        if before and not after:
            fell_at = now - DOWN_AFTER_S - 1e-6
        if after and not before:
            since = {at for at in beats if fell_at <= at <= now}
            assert len(since) >= RECEIVED


@settings(deadline=None)
@given(st.lists(times, max_size=60))
def test_detector_always_reports_a_silent_peer_as_down(beats: list[float]) -> None:
    assert verdicts(beats, max(beats, default=0.0) + DOWN_AFTER_S + 2 * CHECK_S)[-1] is False
