"""Tests of the log's past ends: since() returns no offset beyond the true end at that time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from haproc.replicate.log_state.idempotency_window import MARGIN_S, Past

RECORDS = 10
UNIX_MS = 1_790_000_000_000


def seen(*ends: tuple[float, int]) -> Past:
    past = Past(RECORDS)
    for now_s, end in ends:
        past.observe(now_s, end)
    return past


def test_since_first_attempt_is_the_end_known_a_margin_ago() -> None:
    past = seen((0, 1), (10, 4), (20, 8))
    assert past.since(0, 20 + MARGIN_S - 0.1, UNIX_MS) == 4
    assert past.since(0, 20 + MARGIN_S, UNIX_MS) == 8


def test_since_first_attempt_right_after_a_freeze_is_the_end_before_it() -> None:
    past = seen((0, 1), (100, 5), (3700, 9))
    assert past.since(0, 3700.1, UNIX_MS) == 5


def test_since_first_attempt_of_a_young_process_is_the_end_at_its_start() -> None:
    assert seen((100, 7)).since(0, 100.5, UNIX_MS) == 7


def test_since_retry_is_the_end_at_the_age_that_it_states() -> None:
    past = seen((0, 1), (10, 4), (20, 8))
    assert past.since(5, 20 + MARGIN_S, UNIX_MS) == 4


def test_since_retry_older_than_this_process_is_found_by_the_records_times() -> None:
    past = seen((100, 7))
    for offset in range(7):
        past.note(offset, UNIX_MS + 10_000 * offset)
    arrived_ms = UNIX_MS + 60_000 + int(1000 * MARGIN_S)
    assert past.since(20, 101, arrived_ms) == 4  # the first one made at +40 s or later
    assert past.since(1000, 101, arrived_ms) == 0
    assert past.since(0.5, 101, arrived_ms + 60_000) == 7


def test_since_without_knowledge_is_0() -> None:
    assert Past(RECORDS).since(0, 5, UNIX_MS) == 0
    assert seen((100, 7)).since(60, 101, UNIX_MS) == 0


def test_observe_for_a_long_time_keeps_no_more_than_the_window() -> None:
    past = Past(RECORDS)
    for n in range(1000):
        past.observe(n, n)
        past.note(n, UNIX_MS + 1000 * n)
    assert len(past._ends) <= 4 * RECORDS and len(past._made_at) <= 4 * RECORDS
    assert past.since(900, 1000, UNIX_MS) == 0


appends = st.lists(st.floats(0, 20), min_size=1, max_size=60)


@given(appends, st.floats(0, 100), st.floats(0, 600), st.integers(0, 200), st.floats(0, MARGIN_S))
def test_since_is_never_beyond_a_copy_that_was_sent_before(
    gaps: list[float], started_s: float, sent_s: float, wait_s: int, transit_s: float
) -> None:
    """A log is written; a process starts, observes its end once a second, and receives a retry.

    The retry states its age, but not the time that it was in transit.
    """
    past, now_s, times = Past(RECORDS), 0.0, []
    for gap_s in gaps:
        now_s += gap_s
        times.append(now_s)
    arrives_s = max(started_s, sent_s + wait_s) + transit_s
    noted = 0
    tick_s = started_s
    while tick_s <= arrives_s:
        end = sum(time_s <= tick_s for time_s in times)
        past.observe(tick_s, end)
        for offset in range(noted, end):
            past.note(offset, int(1000 * times[offset]))
        noted = end
        tick_s += 1
    since = past.since(arrives_s - transit_s - sent_s, arrives_s, int(1000 * arrives_s))
    first_possible = sum(time_s <= sent_s for time_s in times)
    assert since <= first_possible
