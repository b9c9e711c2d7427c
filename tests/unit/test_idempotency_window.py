"""Tests of the idempotency window: its results depend on the log alone, restart or not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.replicate.log_state.idempotency_window import (
    IdempotencyWindow,
    RecordJudgement,
    WindowTooSmallError,
)

RECORDS = 4
NEW, REPEATED, EXPIRED = RecordJudgement.NEW, RecordJudgement.REPEATED, RecordJudgement.EXPIRED


def see(
    window: IdempotencyWindow,
    offset: int,
    op_id: str,
    since: int | None = None,
    reach: int = RECORDS,
    user: str = "ada",
) -> RecordJudgement:
    """Show the window a record; without ``since`` it is as old as the window allows."""
    return window.see(
        offset, (user, op_id), max(0, offset - reach) if since is None else since, reach
    )


def repeats(ids: list[str | None], *, begin: int = 0, judge_from: int = 0) -> list[int]:
    """Return the offsets, from ``judge_from`` on, that repeat another; None is no operation."""
    window = IdempotencyWindow(RECORDS)
    found = []
    for offset, op_id in enumerate(ids):
        if op_id is None or offset < begin:
            continue
        if see(window, offset, op_id) is REPEATED and offset >= judge_from:
            found.append(offset)
    return found


def test_see_new_id_is_new() -> None:
    assert see(IdempotencyWindow(RECORDS), 0, "a") is NEW


def test_see_known_id_is_a_repetition() -> None:
    window = IdempotencyWindow(RECORDS)
    see(window, 3, "a")
    see(window, 4, "b")
    assert see(window, 5, "a", 3, RECORDS) is REPEATED


def test_see_id_at_the_window_limit_is_a_repetition() -> None:
    assert repeats(["a", None, None, None, "a"]) == [4]


def test_see_id_beyond_the_window_limit_is_new() -> None:
    assert repeats(["a", None, None, None, None, "a"]) == []


def test_see_repetition_of_a_repetition_is_a_repetition() -> None:
    assert repeats(["a", None, None, "a", None, None, "a"]) == [3, 6]


def test_see_record_older_than_the_window_is_expired_and_so_are_its_copies() -> None:
    window = IdempotencyWindow(RECORDS)
    assert see(window, 10, "a", 5, RECORDS) is EXPIRED
    assert see(window, 10 + RECORDS, "a", 5, RECORDS) is REPEATED
    assert see(window, 11 + 2 * RECORDS, "a", 5, RECORDS) is EXPIRED


def test_see_record_as_old_as_the_window_is_new() -> None:
    assert see(IdempotencyWindow(RECORDS), 10, "a", 10 - RECORDS, RECORDS) is NEW


def test_see_uses_the_records_own_window_if_the_reader_remembers_more() -> None:
    window = IdempotencyWindow(RECORDS)
    see(window, 10, "a", 10, 2)
    assert see(window, 13, "a", 10, 2) is EXPIRED
    assert see(window, 13, "b", 11, 2) is NEW


def test_see_record_with_a_larger_window_raises_an_error_that_names_the_setting() -> None:
    with pytest.raises(WindowTooSmallError, match=r"limits\.window_records = 5, and this HAProc"):
        see(IdempotencyWindow(RECORDS), 0, "a", 0, RECORDS + 1)


def test_begins_is_never_below_the_start_of_the_log() -> None:
    assert (IdempotencyWindow(RECORDS).begins(3), IdempotencyWindow(RECORDS).begins(10)) == (0, 6)


id_lists = st.lists(st.sampled_from(["a", "b", "c", None]), max_size=30)


@given(id_lists)
def test_see_any_log_finds_exactly_the_repetitions_within_the_window(ids: list[str | None]) -> None:
    expected = [
        offset
        for offset, op_id in enumerate(ids)
        if op_id is not None and op_id in ids[max(0, offset - RECORDS) : offset]
    ]
    assert repeats(ids) == expected


@given(id_lists, st.integers(0, 30))
def test_see_after_a_restart_gives_the_same_results(ids: list[str | None], low: int) -> None:
    rebuilt = repeats(ids, begin=IdempotencyWindow(RECORDS).begins(low), judge_from=low)
    assert rebuilt == repeats(ids, judge_from=low)


copies = st.lists(
    st.tuples(
        st.integers(1, 6),  # offsets from the record before
        st.sampled_from("abc"),
        st.integers(0, 40),  # how far below the request's first copy its `since` lies
        st.integers(1, RECORDS),
    ),
    max_size=40,
)


@given(copies, st.lists(st.integers(RECORDS, 2 * RECORDS), min_size=2, max_size=2), st.data())
def test_see_two_copies_of_a_request_are_never_both_new_on_any_reader(
    given_copies: list[tuple[int, str, int, int]], memories: list[int], data: st.DataObject
) -> None:
    log: list[tuple[int, str, int, int]] = []
    first: dict[str, int] = {}
    offset = 0
    for step, op_id, margin, reach in given_copies:
        offset += step
        # All that a HAProc promises: no copy stands below.
        since = max(0, first.setdefault(op_id, offset) - margin)
        log.append((offset, op_id, since, reach))
    sightings: list[list[RecordJudgement]] = []
    for memory in memories:
        window = IdempotencyWindow(memory)
        sightings.append([see(window, *record) for record in log])
    assert sightings[0] == sightings[1]
    applied = [op_id for (_, op_id, *_), is_ in zip(log, sightings[0], strict=True) if is_ is NEW]
    assert len(applied) == len(set(applied))
    # Whoever is started in the middle comes to the same.
    low = data.draw(st.integers(0, offset + 1))
    window = IdempotencyWindow(memories[0])
    late = [(o, see(window, o, *rest)) for o, *rest in log if o >= window.begins(low)]  # type: ignore[arg-type]
    whole = dict(zip((o for o, *_ in log), sightings[0], strict=True))
    assert [(o, is_) for o, is_ in late if o >= low] == [
        (o, is_) for o, is_ in whole.items() if o >= low
    ]


def test_see_record_that_needs_more_than_the_log_still_has_raises_an_error() -> None:
    window = IdempotencyWindow(RECORDS)
    window.knows_from(5)
    assert see(window, 6, "x", 5, RECORDS) is NEW
    assert see(window, 7, "x", 1, RECORDS) is RecordJudgement.REPEATED  # known for sure
    with pytest.raises(WindowTooSmallError, match="from offset 4 on are needed"):
        see(window, 8, "y", 4, RECORDS)


# -- whose an id is ----------------------------------------------------------------------------


def test_see_same_id_of_another_user_is_new() -> None:
    window = IdempotencyWindow(RECORDS)
    see(window, 0, "x", 0, RECORDS, user="ada")
    assert see(window, 1, "x", 0, RECORDS, user="bob") is NEW
    assert see(window, 2, "x", 0, RECORDS, user="ada") is REPEATED


def test_see_record_that_may_repeat_one_of_unknown_outcome_raises_an_error() -> None:
    window = IdempotencyWindow(RECORDS)
    window.unsure(4, ("ada", "x"))
    assert window.known_from == 5
    assert see(window, 5, "x", 4, RECORDS, user="bob") is NEW
    with pytest.raises(WindowTooSmallError, match="repeats the one at 4"):
        see(window, 6, "x", 4, RECORDS, user="ada")
    assert see(window, 9, "y", 5, RECORDS, user="ada") is NEW


users = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xy")), max_size=30)


@given(users, st.integers(0, 30))
def test_see_records_of_any_users_gives_the_same_results_after_a_restart(
    log: list[tuple[str, str]], low: int
) -> None:
    def judged(begin: int) -> list[RecordJudgement]:
        window = IdempotencyWindow(RECORDS)
        found = [
            see(window, offset, op_id, user=user)
            for offset, (user, op_id) in enumerate(log)
            if offset >= begin
        ]
        return found[max(0, low - begin) :]

    assert judged(IdempotencyWindow(RECORDS).begins(low)) == judged(0)
