"""Tests of progress and the cursor's note: encoding, decoding, and the size limit of the log."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dmq import Cursor, LogCorruptError
from dmq.log import CURSOR_NOTE_BYTES_MAX, check_cursor
from haproc.membership.state import Cause, Divergence, Undecided
from haproc.replicate.apply.doubts import BEFORE_CHARACTERS_MAX
from haproc.replicate.queue.turns import UNMARKED_MAX
from haproc.replicate.records.progress import (
    JUDGING_MAX,
    LINEAGE_MAX,
    SPAN_MAX,
    TEXT_CHARACTERS_MAX,
    CopyRequest,
    CopyWay,
    Progress,
    from_cursor,
    shortened,
    to_cursor,
)

OFFSET_MAX = 2**63 - 1


@st.composite
def progresses(draw: st.DrawFn) -> Progress:
    low = draw(st.integers(0, 10**12))
    near = st.integers(low, low + SPAN_MAX - 1)
    unmarked = draw(st.dictionaries(near, st.text("0123456789abcdef", max_size=24), max_size=4))
    pairs = draw(st.lists(st.tuples(near, near), max_size=4, unique_by=lambda pair: pair[0]))
    return Progress(
        low=low,
        done=draw(st.frozensets(near)),
        batches=tuple(sorted((min(pair), max(pair)) for pair in pairs)),
        unmarked=tuple(sorted(unmarked.items())),
        storage=draw(st.text(max_size=32)),
        diverged=draw(
            st.none()
            | st.builds(
                Divergence,
                st.integers(0, low),
                st.sampled_from(Cause),
                st.booleans(),
                st.text(max_size=20),
            )
        ),
        undecided=draw(
            st.none()
            | st.builds(
                Undecided, st.integers(0, low), st.sampled_from(Cause), st.text(max_size=20)
            )
        ),
        born=draw(st.integers(0, low)),
        judging=tuple(sorted(draw(st.frozensets(st.integers(0, low), max_size=8)))),
        lineage=draw(
            st.lists(st.tuples(st.text(max_size=9), st.integers(0, low)), max_size=3).map(tuple)
        ),
        ahead=draw(st.integers(-1, low)),
        copying=draw(
            st.none()
            | st.builds(
                CopyRequest,
                st.text(max_size=9),
                st.text(max_size=9),
                st.integers(-1, low),
                first=st.integers(-1, low),
                way=st.none() | st.sampled_from(CopyWay),
                spare=st.text(max_size=9),
            )
            | st.builds(
                CopyRequest,
                marker=st.integers(0, low),
                source=st.text(min_size=1, max_size=20),
                verify=st.booleans(),
            )
        ),
    )


@given(progresses())
def test_progress_through_a_cursor_is_equal(progress: Progress) -> None:
    cursor = to_cursor(progress)
    check_cursor(cursor)
    assert cursor.offset == progress.low
    assert from_cursor(cursor) == progress


def test_from_cursor_without_a_note_is_only_the_offset() -> None:
    assert from_cursor(Cursor(7)) == Progress(low=7)


def test_from_cursor_of_a_kept_note_gives_the_progress() -> None:
    note = (
        '{"v":1,"d":"c-mtF000L72L","b":[[3,9]],"m":[[2,"absent"]],"x":[17,"outcome",false,""],'
        '"s":"5e7"}'
    )
    progress = Progress(
        100,
        frozenset({101, 102}),
        ((103, 109),),
        ((102, "absent"),),
        Divergence(17, Cause.OUTCOME),
        storage="5e7",
    )
    assert from_cursor(Cursor(100, note)) == progress
    assert to_cursor(progress) == Cursor(100, note)


WORST_LOW = OFFSET_MAX - SPAN_MAX
WORST_BATCHES = tuple(
    (WORST_LOW + SPAN_MAX - 10 - 2 * n, WORST_LOW + SPAN_MAX - 1 - n) for n in reversed(range(4))
)


def worst(done: frozenset[int]) -> Progress:
    """Return a progress whose other fields are at their longest, too."""
    return Progress(
        WORST_LOW,
        done,
        WORST_BATCHES,
        unmarked=tuple(
            (WORST_LOW + SPAN_MAX - 5 + n, "b" * BEFORE_CHARACTERS_MAX) for n in range(UNMARKED_MAX)
        ),
        storage="5" * 32,
        diverged=Divergence(OFFSET_MAX, Cause.TABLES, True, "n" * TEXT_CHARACTERS_MAX),
        undecided=Undecided(OFFSET_MAX, Cause.OUTCOME, shortened("\U0001f600é" * 99)),
        born=OFFSET_MAX,
        judging=(OFFSET_MAX,) * JUDGING_MAX,
        lineage=(("n" * 63, OFFSET_MAX),) * LINEAGE_MAX,
        ahead=OFFSET_MAX,
    )


def alternating() -> frozenset[int]:
    return frozenset(range(WORST_LOW + 1, WORST_LOW + SPAN_MAX, 2))


def scattered(seed: int, share: float) -> frozenset[int]:
    rng = random.Random(seed)
    span = range(WORST_LOW + 1, WORST_LOW + SPAN_MAX)
    return frozenset(offset for offset in span if rng.random() < share)


@pytest.mark.parametrize(
    "done",
    [
        alternating(),
        frozenset(range(WORST_LOW + 1, WORST_LOW + SPAN_MAX)),
        frozenset({WORST_LOW + SPAN_MAX - 1}),
        *(scattered(seed, share) for seed in range(3) for share in (0.1, 0.4, 0.5, 0.6, 0.9)),
    ],
    ids=lambda done: f"{len(done)}_done",
)
def test_to_cursor_of_the_worst_patterns_fits_the_notes_limit(done: frozenset[int]) -> None:
    progress = worst(done)
    cursor = to_cursor(progress)
    check_cursor(cursor)
    assert len(cursor.note) <= CURSOR_NOTE_BYTES_MAX
    assert from_cursor(cursor) == progress


@pytest.mark.parametrize(
    "note",
    [
        '{"v":2}',
        "{}",
        "[]",
        "null",
        "7",
        "no json",
        '{"v":1,"d":"~~"}',
        '{"v":1,"d":"c-quA"}',
        '{"v":1,"d":7}',
        '{"v":1,"d":"\\u00e9"}',
        '{"v":1,"b":[[1]]}',
        '{"v":1,"b":7}',
        '{"v":1,"b":[["a","b"]]}',
    ],
)
def test_from_cursor_of_an_invalid_note_is_refused(note: str) -> None:
    with pytest.raises(LogCorruptError, match="note"):
        from_cursor(Cursor(5, note))


@given(st.text(st.characters(max_codepoint=127), max_size=40))
def test_from_cursor_of_any_note_gives_progress_or_log_corrupt_error(note: str) -> None:
    try:
        progress = from_cursor(Cursor(5, note))
    except LogCorruptError:
        return
    assert progress.low == 5
