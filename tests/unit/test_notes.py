"""Tests of the notes: the facts stored beside the queue's own progress."""

from __future__ import annotations

from haproc.membership.state import Cause, Divergence
from haproc.replicate.queue.facts import Notes
from haproc.replicate.records.progress import JUDGING_MAX, Progress


def test_mark_diverged_newest_one_stays_until_a_later_verification() -> None:
    notes = Notes()
    notes.mark_diverged(Divergence(7, Cause.OUTCOME))
    notes.mark_diverged(Divergence(8, Cause.SKIPPED, applies=True))
    assert notes.beside(Progress()).diverged == Divergence(8, Cause.SKIPPED, applies=True)
    notes.mark_verified(7)
    assert notes.diverged is not None
    notes.mark_verified(8)
    assert notes.beside(Progress()).diverged is None


def test_beside_returns_the_progress_that_a_process_resumed_from() -> None:
    stored = Progress(low=3, born=2, judging=(1, 4), storage="s", claims=(("a", 2),))
    notes = Notes()
    notes.resume(stored)
    assert notes.beside(Progress(low=3, claims=(("a", 2),))) == stored


def test_beside_keeps_the_newest_offsets_to_be_judged() -> None:
    notes = Notes()
    for offset in range(JUDGING_MAX + 2):
        notes.judge(offset)
    notes.judged(JUDGING_MAX)
    assert notes.beside(Progress()).judging[-2:] == (JUDGING_MAX - 1, JUDGING_MAX + 1)
    assert len(notes.beside(Progress()).judging) == JUDGING_MAX
