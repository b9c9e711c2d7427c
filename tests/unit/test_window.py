"""Repeated request ids: the answer depends on offsets alone, restart or not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from haproc.replicate.window import Window

RECORDS = 4


def repeats(ids: list[str | None], *, begin: int = 0, judge_from: int = 0) -> list[int]:
    """Return the offsets, at or after ``judge_from``, that repeat another; None is no operation."""
    window = Window(RECORDS)
    found = []
    for offset, op_id in enumerate(ids):
        if op_id is None or offset < begin:
            continue
        if window.see(offset, op_id) is not None and offset >= judge_from:
            found.append(offset)
    return found


def test_see_new_id_has_no_first() -> None:
    assert Window(RECORDS).see(0, "a") is None


def test_see_id_again_gives_an_offset_that_has_it() -> None:
    window = Window(RECORDS)
    window.see(3, "a")
    window.see(4, "b")
    assert window.see(5, "a") == 3


def test_see_id_exactly_as_far_as_the_window_reaches_is_a_repetition() -> None:
    assert repeats(["a", None, None, None, "a"]) == [4]


def test_see_id_farther_than_the_window_reaches_is_new() -> None:
    assert repeats(["a", None, None, None, None, "a"]) == []


def test_see_repetition_of_a_repetition_is_one() -> None:
    assert repeats(["a", None, None, "a", None, None, "a"]) == [3, 6]


def test_begins_never_lies_before_the_log() -> None:
    assert (Window(RECORDS).begins(3), Window(RECORDS).begins(10)) == (0, 6)


id_lists = st.lists(st.sampled_from(["a", "b", "c", None]), max_size=30)


@given(id_lists)
def test_see_any_log_finds_what_stands_within_the_window(ids: list[str | None]) -> None:
    expected = [
        offset
        for offset, op_id in enumerate(ids)
        if op_id is not None and op_id in ids[max(0, offset - RECORDS) : offset]
    ]
    assert repeats(ids) == expected


@given(id_lists, st.integers(0, 30))
def test_see_after_a_restart_says_the_same(ids: list[str | None], low: int) -> None:
    rebuilt = repeats(ids, begin=Window(RECORDS).begins(low), judge_from=low)
    assert rebuilt == repeats(ids, judge_from=low)
