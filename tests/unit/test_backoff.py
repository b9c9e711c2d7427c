"""Pauses that double up to a maximum."""

from __future__ import annotations

from haproc.backoff import Backoff


def test_pause_doubles_up_to_the_maximum() -> None:
    pauses = Backoff(0.5, 3.0)
    assert [pauses.pause_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_reset_starts_again_with_the_first_pause() -> None:
    pauses = Backoff(0.5, 3.0)
    pauses.pause_s(), pauses.pause_s()
    pauses.reset()
    assert pauses.pause_s() == 0.5
