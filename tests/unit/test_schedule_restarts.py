"""Tests of the schedule's stored progress, and of restarts from it; see `test_schedule`."""

from __future__ import annotations

import pytest

from haproc.engine.interface import ABSENT
from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.queue.units import MARKER, BatchLimits, Intent, Unit
from haproc.replicate.records.operation import DecisionKind
from haproc.replicate.records.progress import Progress
from tests.unit.operations import table_as
from tests.unit.test_schedule import LANES, ME, finish, offsets, operation, rounds, schedule_of


def split(schedule: Schedule, unit: Unit) -> None:
    """Take a unit apart that failed as a whole."""
    schedule.split(unit)
    schedule.split_stored(unit)


def test_progress_low_stays_at_the_first_unfinished_operation() -> None:
    schedule = schedule_of("ux uy uz")
    x, y, _ = schedule.take(LANES)
    finish(schedule, y)
    assert schedule.progress == Progress(low=0, done=frozenset({1}))
    finish(schedule, x)
    assert schedule.progress == Progress(low=2)


def test_progress_passes_records_without_an_operation() -> None:
    schedule = schedule_of("ux")
    schedule.passed(1)
    assert schedule.low == 0
    finish(schedule, *schedule.take(LANES))
    assert schedule.progress == Progress(low=2)


def test_progress_contains_the_intents_of_running_units() -> None:
    batch = schedule_of("ix ix iy")
    batch.take(LANES)
    assert batch.progress.batches == ((0, 1),)
    alone = schedule_of("D")
    alone.take(LANES)
    assert alone.progress.unmarked == (), "nobody has looked, and so it does not run"
    alone.unmarked.stood(0, "absent")
    assert alone.progress.unmarked == ((0, "absent"),)


def test_restart_forms_a_batch_with_a_stored_intent_again() -> None:
    before = schedule_of("ix ix")
    before.take(LANES)
    after = schedule_of("ix ix ix ix", before.progress, doubtful_below=4)
    (unit,) = after.take(LANES)
    assert (unit.offsets, unit.in_doubt, unit.intent) == ((0, 1), True, Intent.BATCH)
    finish(after, unit)
    assert rounds(after) == [[(2, 3)]]


def test_restart_waits_with_a_stored_batch_until_its_last_operation_is_read() -> None:
    progress = Progress(low=0, batches=((0, 2),))
    schedule = Schedule(ME, progress, 3, BatchLimits())
    for offset in (0, 1):
        schedule.enter_operation(offset, operation("ix", offset))
        assert schedule.take(LANES) == []
    schedule.enter_operation(2, operation("ix", 2))
    assert offsets(schedule.take(LANES)) == [(0, 1, 2)]


def test_restart_forms_a_batch_without_an_operation_that_was_rejected_before() -> None:
    """Its rejection may be far behind and not be read yet; the progress contains it."""
    before = schedule_of("ia ia ?b>a ia")
    before.decide(2, DecisionKind.REJECT)
    (unit,) = before.take(LANES)
    after = schedule_of("ia ia ?b>a ia", before.progress, doubtful_below=9)
    assert (unit.offsets, offsets(after.take(LANES))) == ((0, 1, 3), [(0, 1, 3)])


def test_restart_runs_the_first_operation_on_each_doubtful_table_alone() -> None:
    schedule = schedule_of("ix ix ix iy iy", doubtful_below=5)
    assert rounds(schedule) == [[(0,), (3,)], [(1, 2), (4,)]]


def test_restart_has_no_doubt_about_operations_after_it() -> None:
    assert rounds(schedule_of("ix ix", doubtful_below=0)) == [[(0, 1)]]


def test_restart_with_an_intent_doubts_only_that_operation() -> None:
    schedule = schedule_of("D D", Progress(unmarked=((0, ""),)), doubtful_below=2)
    (first,) = schedule.take(LANES)
    finish(schedule, first)
    (second,) = schedule.take(LANES)
    assert (first.in_doubt, second.in_doubt) == (True, False)
    schedule.unmarked.stood(1, "")
    assert schedule.progress.unmarked == ((1, ""),)


def test_restart_has_no_doubt_about_an_operation_without_a_look() -> None:
    before = schedule_of("D")
    before.take(LANES)
    after = schedule_of("D", before.progress, doubtful_below=1)
    assert after.untouched(0)
    (unit,) = after.take(LANES)
    assert (unit.intent, unit.in_doubt) == (Intent.ALONE, False)


def test_restart_drops_the_intents_of_operations_that_need_not_run() -> None:
    """They were rejected before they were read again, or are below everything that is read."""
    stood = ((1, ABSENT), (2, ABSENT), (3, ABSENT), (4, ABSENT))
    schedule = Schedule(ME, Progress(low=3, done=frozenset({4}), unmarked=stood), 9, BatchLimits())
    schedule.decide(3, DecisionKind.REJECT)
    assert not schedule.enter_operation(3, table_as("3", "y", "slow3"))
    assert not schedule.enter_operation(4, table_as("4", "y", "slow4"))
    assert schedule.enter_operation(5, table_as("5", "y", "slow5"))
    assert offsets(schedule.take(LANES)) == [(5,)]
    assert schedule.progress == Progress(low=5)


def test_progress_has_no_intent_of_an_operation_that_need_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The reason does not matter."""
    schedule = schedule_of("D iz", Progress(unmarked=((0, ABSENT),)))
    monkeypatch.setattr(schedule, "expects", lambda offset: offset != 0)
    assert schedule.progress.unmarked == ()
    assert not schedule.unmarked.doubted(0)


def test_restart_does_not_enter_operations_done_before() -> None:
    progress = Progress(low=1, done=frozenset({2}))
    schedule = Schedule(ME, progress, 4, BatchLimits())
    entered = [schedule.enter_operation(offset, operation("ux", offset)) for offset in (1, 2, 3)]
    assert entered == [True, False, True]


@pytest.mark.parametrize(
    ("applied", "restored"),
    [
        ({}, []),
        ({"x": 2}, [0, 2]),
        ({"x": 1, "y": 9}, [0, 1, 3]),
        ({"z": 9}, []),
    ],
)
def test_restore_counts_operations_that_the_tables_show_as_done(
    applied: dict[str, int], restored: list[int]
) -> None:
    schedule = schedule_of("ix iy ix iy D", doubtful_below=5)
    assert schedule.restore(applied) == restored
    assert schedule.progress.done == frozenset(o for o in restored if o >= schedule.low)


def test_restore_of_a_batch_found_applied_does_not_run_it_again() -> None:
    progress = Progress(batches=((0, 2),))
    schedule = schedule_of("ix iy ix", progress, doubtful_below=3)
    assert schedule.restore({"x": 2}) == [0, 2]
    assert schedule.progress == Progress(low=1, done=frozenset({2}))
    assert rounds(schedule) == [[(1,)]]


def test_restore_never_counts_exclusive_operations_as_done() -> None:
    schedule = schedule_of("D", doubtful_below=1)
    assert schedule.restore({"op0": 9}) == []


def test_rejected_operation_in_doubt_loses_its_intent() -> None:
    # The origin died after its reject was in the log and before its progress said so.
    schedule = schedule_of("D", Progress(unmarked=((0, ""),)), doubtful_below=1)
    schedule.decide(0, DecisionKind.REJECT)
    assert schedule.progress == Progress(low=1)


def test_split_halves_run_as_one_statement_each() -> None:
    schedule = schedule_of("ix ix ix ix ix")
    (unit,) = schedule.take(LANES)
    for offset in (5, 6):
        schedule.enter_operation(offset, operation("ix", offset))  # joins no half
    split(schedule, unit)
    (first,) = schedule.take(LANES)
    assert (first.offsets, first.intent, schedule.progress.batches) == (
        (0, 1),
        Intent.BATCH,
        ((0, 1),),
    )
    split(schedule, first)
    assert rounds(schedule) == [[(0,)], [(1,)], [(2, 3, 4)], [(5, 6)]]


def test_split_of_many_operations_needs_few_statements_per_failing_one() -> None:
    """Two for each halving on the way to a failing one."""
    schedule, failing, statements = schedule_of(" ".join(["ix"] * 256)), {7, 100, 200}, 0
    while schedule.pending:
        (unit,) = schedule.take(LANES)
        statements += 1
        if len(unit.offsets) > 1 and not failing.isdisjoint(unit.offsets):
            split(schedule, unit)
        else:
            finish(schedule, unit)
    assert statements <= 1 + 2 * len(failing) * 8


def test_restart_forms_a_half_with_a_stored_intent_again() -> None:
    before = schedule_of("ix ix ix ix")
    (unit,) = before.take(LANES)
    split(before, unit)
    before.take(LANES)
    after = schedule_of("ix ix ix ix ix", before.progress, doubtful_below=5)
    (half,) = after.take(LANES)
    assert (half.offsets, half.in_doubt, half.intent) == ((0, 1), True, Intent.BATCH)
    finish(after, half)
    assert rounds(after) == [[(2, 3, 4)]]


def test_split_singles_run_one_by_one_without_an_intent() -> None:
    schedule = schedule_of("ix ix ix ix ux")
    (unit,) = schedule.take(LANES)
    schedule.split(unit, singles=True)
    assert schedule.progress == Progress()
    assert schedule.take(LANES) == []  # not before that progress is durable
    schedule.split_stored(unit)
    assert rounds(schedule) == [[(0,)], [(1,)], [(2,)], [(3,)], [(4,)]]


def test_marker_runs_alone_and_without_an_intent() -> None:
    schedule = schedule_of("ix")
    schedule.enter_operation(1, MARKER)
    schedule.enter_operation(2, operation("iy", 2))
    (insert_x,) = schedule.take(LANES)
    finish(schedule, insert_x)
    (marker,) = schedule.take(LANES)
    assert (marker.operations, marker.intent) == ((MARKER,), Intent.NONE)
    finish(schedule, marker)
    assert rounds(schedule) == [[(2,)]]
    assert schedule.progress == Progress(low=3)


def test_held_schedule_starts_no_exclusive_operation() -> None:
    schedule = schedule_of("ix D iy")
    schedule.hold(held=True)
    finish(schedule, *schedule.take(LANES))
    assert schedule.take(LANES) == []
    schedule.hold(held=False)
    assert offsets(schedule.take(LANES)) == [(1,)]


def test_schedule_is_held_until_the_last_hold_ends() -> None:
    schedule = schedule_of("D")
    schedule.hold(held=True)
    schedule.hold(held=True)
    schedule.hold(held=False)
    assert schedule.take(LANES) == []
    schedule.hold(held=False)
    assert offsets(schedule.take(LANES)) == [(0,)]


def test_isolated_operation_is_not_combined() -> None:
    schedule = schedule_of("ix ix ix")
    schedule.isolate(1)
    assert rounds(schedule) == [[(0,)], [(1,)], [(2,)]]
