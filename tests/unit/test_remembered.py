"""Tests of the cache of Spark's answers."""

from __future__ import annotations

from haproc.route.kept_answers import Remembered


def test_least_recently_used_entry_is_dropped_first() -> None:
    remembered = Remembered[str, int](lambda: 7, entries_max=2)
    remembered.keep("a", 1, 7)
    remembered.keep("b", 2, 7)
    assert remembered.find("a") == 1
    remembered.keep("c", 3, 7)
    assert [remembered.find(key) for key in "abc"] == [1, None, 3]


def test_entries_do_not_outlive_a_change_of_definitions() -> None:
    epochs = [0]
    remembered = Remembered[str, int](lambda: epochs[-1], entries_max=2)
    remembered.keep("a", 1, 0)
    epochs.append(1)
    remembered.keep("b", 2, 0)  # it was asked for before
    assert remembered.find("a") is None and remembered.find("b") is None
    remembered.keep("b", 3, 1)
    assert remembered.find("b") == 3
