"""One server's circuit breaker (haclient/choosing.py)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from haclient.choosing import CLOSED, Breaker

FIRST_S, LONGEST_S = 2.0, 60.0


def failed(breaker: Breaker, now: float) -> Breaker:
    return breaker.failed(FIRST_S, LONGEST_S, now)


def tried(breaker: Breaker, now: float) -> Breaker:
    return breaker.tried(FIRST_S, LONGEST_S, now)


def test_breaker_opens_for_twice_as_long_each_time_up_to_the_maximum() -> None:
    breaker, now, spans = CLOSED, 0.0, []
    for _ in range(7):
        breaker = failed(breaker, now)
        assert breaker.open_until is not None
        spans.append(breaker.open_until - now)
        now = breaker.open_until
        assert not breaker.is_open(now)
    assert spans == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_open_breaker_counts_no_failures() -> None:
    breaker = failed(CLOSED, 0.0)
    assert failed(breaker, 1.0) == breaker


def test_half_open_breaker_lets_one_request_through() -> None:
    trial = tried(failed(CLOSED, 0.0), 2.0)
    assert trial.on_trial and trial.is_open(2.0), "the others stay away"
    assert tried(trial, 2.5) is trial
    assert failed(trial, 2.5) == Breaker(2, 6.5)


def test_breaker_whose_trial_never_ended_allows_another() -> None:
    trial = tried(failed(CLOSED, 0.0), 2.0)
    assert not trial.is_open(4.0)
    assert tried(trial, 4.0).open_until == 6.0


def test_closed_breaker_is_not_changed_by_a_try() -> None:
    assert tried(CLOSED, 5.0) is CLOSED


@given(st.lists(st.tuples(st.booleans(), st.floats(0.0, 100.0)), max_size=60))
def test_breaker_is_never_open_for_longer_than_the_maximum(steps: list[tuple[bool, float]]) -> None:
    breaker, now = CLOSED, 0.0
    for fails, pause_s in steps:
        now += pause_s
        breaker = failed(breaker, now) if fails else tried(breaker, now)
        assert not breaker.is_open(now + LONGEST_S * (1 + 1e-9))
        assert not fails or breaker.is_open(now)
