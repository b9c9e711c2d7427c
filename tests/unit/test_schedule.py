"""Tests of the order in which a cluster applies operations: examples; random ones: the model.

The model is in test_schedule_model. Docs: docs/proofs/exactly-once.md. Operations are named by one
letter for the table they touch and an optional prefix: ``i`` insert, ``u`` update, ``>`` copy from
one table into another, ``!`` unknown tables, ``D`` DDL of this cluster, ``d`` DDL of another
cluster, ``?`` in front of a copy: its rows are yet to be computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

import pytest

from haproc.classify.model import OperationClass
from haproc.engine.statement import SqlText
from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.queue.units import BatchLimits, Intent, Unit
from haproc.replicate.records.operation import DecisionKind, Operation
from haproc.replicate.records.progress import SPAN_MAX, Progress
from tests.unit.operations import arrow, computed, copy, ddl, insert, unknown_tables, update

ME, LANES = "a", 8
NOTHING_DONE, NO_LIMITS = Progress(), BatchLimits()


def operation(text: str, number: int) -> Operation:
    """Return the operation that a word stands for."""
    op_id = f"op{number}"
    match text:
        case "!":
            return unknown_tables(op_id)
        case "D":
            return ddl(op_id, ME)
        case "d":
            return ddl(op_id, "b")
        case _ if text[0] == "i":
            return insert(op_id, text[1])
        case _ if text[0] == "a":
            return arrow(op_id, text[1])
        case _ if text[0] == "u":
            return update(op_id, text[1])
        case _ if text[0] == "?":
            return computed(op_id, text[1], text[3])
    source, _, target = text.partition(">")
    return copy(op_id, source, target)


def schedule_of(
    words: str,
    progress: Progress = NOTHING_DONE,
    *,
    doubtful_below: int = 0,
    limits: BatchLimits = NO_LIMITS,
) -> Schedule:
    """Return a schedule that has read these operations, offset by offset."""
    schedule = Schedule(ME, progress, doubtful_below, limits)
    for offset, word in enumerate(words.split()):
        if offset >= progress.low:
            schedule.enter_operation(offset, operation(word, offset))
    return schedule


def offsets(units: Sequence[Unit]) -> list[tuple[int, ...]]:
    return [unit.offsets for unit in units]


def finish(schedule: Schedule, *units: Unit) -> None:
    for unit in units:
        schedule.complete(unit)
        schedule.release(unit)


def rounds(schedule: Schedule) -> list[list[tuple[int, ...]]]:
    """Take all units that may start, finish them, and repeat until none may start."""
    taken = iter(lambda: schedule.take(LANES), [])
    result = []
    for units in takewhile(bool, taken):
        result.append(offsets(units))
        finish(schedule, *units)
    return result


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        # independent tables side by side, one table in order
        ("ux uy uz", [[(0,), (1,), (2,)]]),
        ("ux ux", [[(0,)], [(1,)]]),
        # a reader waits for the writer before it, a writer for the reader before it
        ("ux x>y", [[(0,)], [(1,)]]),
        ("x>y ux", [[(0,)], [(1,)]]),
        # two readers of one table run side by side; so does what has nothing to do with them
        ("x>y x>z uw", [[(0,), (1,), (2,)]]),
        # order is kept through a third: z waits for y, though it has nothing to do with x
        ("ux x>y y>z", [[(0,)], [(1,)], [(2,)]]),
        # inserts into one table become one statement, across others' operations
        ("ix ix ix", [[(0, 1, 2)]]),
        ("ix iy ix iy", [[(0, 2), (1, 3)]]),
        # ... but not across anything that touches the table
        ("ix ux ix ix", [[(0,)], [(1,)], [(2, 3)]]),
        ("ix x>y ix", [[(0,)], [(1,)], [(2,)]]),
        # exclusive operations have nothing beside, before or behind them
        ("ux ! uy", [[(0,)], [(1,)], [(2,)]]),
        ("! !", [[(0,)], [(1,)]]),
        ("ix ! ix", [[(0,)], [(1,)], [(2,)]]),
        ("ux D uy", [[(0,)], [(1,)], [(2,)]]),
        # another cluster's DDL waits for its fate, and all behind it
        ("ux d uy", [[(0,)]]),
    ],
)
def test_operations_start_in_the_order_that_their_tables_allow(
    words: str, expected: list[list[tuple[int, ...]]]
) -> None:
    assert rounds(schedule_of(words)) == expected


def test_take_returns_no_more_units_than_free_lanes() -> None:
    schedule = schedule_of("ux uy uz")
    assert schedule.take(0) == []
    assert offsets(schedule.take(2)) == [(0,), (1,)]
    assert offsets(schedule.take(2)) == [(2,)]


def test_take_while_units_run_starts_only_units_without_conflict() -> None:
    schedule = schedule_of("ux ux uy")
    assert offsets(schedule.take(LANES)) == [(0,), (2,)]
    assert schedule.take(LANES) == []


def test_completed_unit_blocks_conflicting_ones_until_its_release() -> None:
    schedule = schedule_of("ux ux D")
    (first,) = schedule.take(LANES)
    schedule.complete(first)
    assert schedule.low == 1
    assert schedule.take(LANES) == []
    schedule.release(first)
    assert offsets(schedule.take(LANES)) == [(1,)]


@pytest.mark.parametrize(
    ("words", "intents"),
    [
        ("ux", [Intent.NONE]),
        ("ix", [Intent.NONE]),
        ("ix ix", [Intent.BATCH]),
        ("D", [Intent.ALONE]),
        ("!", [Intent.ALONE]),
    ],
)
def test_intent_of_a_unit_states_what_must_be_durable_first(
    words: str, intents: list[Intent]
) -> None:
    assert [unit.intent for unit in schedule_of(words).take(LANES)] == intents


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (BatchLimits(operations_max=2), [[(0, 1)], [(2, 3)], [(4,)]]),
        (BatchLimits(rows_max=3), [[(0, 1, 2)], [(3, 4)]]),
        (BatchLimits(bytes_max=70), [[(0, 1)], [(2, 3)], [(4,)]]),
        # what is over a limit all by itself still runs, alone
        (BatchLimits(bytes_max=1), [[(0,)], [(1,)], [(2,)], [(3,)], [(4,)]]),
    ],
)
def test_batch_stays_within_its_limits(
    limits: BatchLimits, expected: list[list[tuple[int, ...]]]
) -> None:
    assert rounds(schedule_of("ix ix ix ix ix", limits=limits)) == expected


def test_arrow_rows_of_all_concurrent_units_are_bounded() -> None:
    size = operation("ax", 0).size_bytes
    schedule = schedule_of(
        "ax ax ax ay ay az az ix ix", limits=BatchLimits(arrow_bytes_max=2 * size)
    )
    units = schedule.take(LANES)
    # Two statements of two rows are all that there may be; the third begins, but gets no more.
    assert offsets(units) == [(0, 1), (3, 4), (5,)]
    finish(schedule, units[1], units[2])
    assert offsets(schedule.take(LANES)) == [(6,)]
    finish(schedule, units[0])
    assert offsets(schedule.take(LANES)) == [(2,)]


def test_unit_of_a_batch_has_its_last_offset_as_version_and_one_statement() -> None:
    (unit,) = schedule_of("ix iy ix").take(1)
    assert unit.version == 2
    assert unit.write() == SqlText("INSERT INTO x VALUES ('op0')\n, ('op2')")


# -- computed operations -------------------------------------------------------------------------


def uncomputed(schedule: Schedule) -> list[int]:
    return [offset for offset, _ in schedule.uncomputed()]


def test_computed_operation_blocks_only_operations_on_its_tables() -> None:
    schedule = schedule_of("?a>b ic a>d ia ib")
    assert uncomputed(schedule) == [0]
    assert offsets(schedule.take(LANES)) == [(1,), (2,)]


def test_computed_operation_runs_once_its_rows_are_there() -> None:
    schedule = schedule_of("?a>b ib")
    assert schedule.take(LANES) == []
    schedule.provide(0)
    assert uncomputed(schedule) == []
    (unit,) = schedule.take(LANES)
    assert unit.offsets == (0,)
    finish(schedule, unit)
    assert offsets(schedule.take(LANES)) == [(1,)]


def test_computed_operation_whose_rows_were_read_first_runs_at_once() -> None:
    schedule = schedule_of("")
    schedule.provide(0)
    schedule.enter_operation(0, operation("?a>b", 0))
    assert uncomputed(schedule) == []
    assert offsets(schedule.take(LANES)) == [(0,)]


def test_computed_operation_gets_its_turn_when_everything_that_it_may_see_is_durable() -> None:
    schedule = schedule_of("ia ?a>b")
    assert uncomputed(schedule) == []
    (unit,) = schedule.take(LANES)
    assert uncomputed(schedule) == []
    schedule.complete(unit)
    assert uncomputed(schedule) == []
    schedule.release(unit)
    assert uncomputed(schedule) == [1]


def test_computed_operation_behind_an_exclusive_one_gets_no_turn() -> None:
    assert uncomputed(schedule_of("d ?a>b")) == []
    assert uncomputed(schedule_of("?a>b ! ?c>d")) == [0]


def test_rejected_computed_operation_lets_the_next_one_start() -> None:
    schedule = schedule_of("?a>b ib")
    schedule.decide(0, DecisionKind.REJECT)
    assert uncomputed(schedule) == []
    assert offsets(schedule.take(LANES)) == [(1,)]


def test_computed_operation_applied_before_a_restart_needs_no_rows() -> None:
    schedule = schedule_of("?a>b", doubtful_below=1)
    assert schedule.restore({"b": 0}) == [0]
    assert uncomputed(schedule) == []


def test_synchronous_operation_waits_for_its_rows_before_its_decision() -> None:
    schedule = schedule_of("")
    op = replace(operation("?a>b", 0), origin="b", operation_class=OperationClass.SYNCHRONOUS)
    schedule.enter_operation(0, op)
    assert schedule.undecided() == []
    assert uncomputed(schedule) == [0]
    schedule.permit(0)
    assert schedule.take(LANES) == []
    schedule.provide(0)
    assert offsets(schedule.take(LANES)) == [(0,)]


# -- synchronous operations --------------------------------------------------------------------


def test_commit_decision_lets_the_operation_and_those_behind_it_run() -> None:
    schedule = schedule_of("d uy")
    assert schedule.undecided() == [(0, operation("d", 0))]
    assert schedule.decide(0, DecisionKind.COMMIT) is False
    assert schedule.undecided() == []
    assert rounds(schedule) == [[(0,)], [(1,)]]


def test_reject_decision_drops_the_operation_and_frees_those_behind_it() -> None:
    schedule = schedule_of("d uy")
    assert schedule.decide(0, DecisionKind.REJECT) is True
    assert schedule.low == 1
    assert rounds(schedule) == [[(1,)]]


def test_second_decision_changes_nothing() -> None:
    schedule = schedule_of("d")
    schedule.decide(0, DecisionKind.COMMIT)
    assert schedule.decide(0, DecisionKind.REJECT) is False
    assert rounds(schedule) == [[(0,)]]


def test_reject_decision_read_before_its_operation_keeps_it_out() -> None:
    schedule = Schedule(ME, Progress(), 0, BatchLimits())
    schedule.decide(0, DecisionKind.REJECT)
    assert schedule.enter_operation(0, operation("d", 0)) is False
    assert (schedule.low, schedule.pending, schedule.pending_bytes) == (1, 0, 0)


def test_reject_decision_of_a_running_operation_lets_it_end() -> None:
    schedule = schedule_of("D uy")
    (unit,) = schedule.take(LANES)
    assert schedule.decide(0, DecisionKind.REJECT) is False
    finish(schedule, unit)
    assert rounds(schedule) == [[(1,)]]


def test_permitted_operation_runs_before_its_decision_but_not_out_of_order() -> None:
    schedule = schedule_of("ux d")
    schedule.permit(1)
    assert rounds(schedule) == [[(0,)], [(1,)]]


def test_undecided_operation_behind_unfinished_ones_is_not_yet_awaited() -> None:
    schedule = schedule_of("ux d")
    assert schedule.undecided() == []
    finish(schedule, *schedule.take(LANES))
    assert schedule.undecided() == [(1, operation("d", 1))]


def test_undecided_own_operation_is_never_awaited() -> None:
    assert schedule_of("D").undecided() == []


# -- bounds ------------------------------------------------------------------------------------


def test_operations_beyond_the_span_above_the_stored_progress_do_not_start() -> None:
    schedule = schedule_of("ux uy")
    schedule.enter_operation(SPAN_MAX - 1, operation("uz", SPAN_MAX - 1))
    schedule.enter_operation(SPAN_MAX, operation("uw", SPAN_MAX))
    x, y, _ = schedule.take(LANES)
    assert schedule.take(LANES) == []
    schedule.complete(x)
    # Done, but the stored progress does not say so: the span begins at x still.
    assert schedule.take(LANES) == []
    schedule.release(x)
    assert offsets(schedule.take(LANES)) == [(SPAN_MAX,)]
    finish(schedule, y)


def test_batch_ends_before_the_span_does() -> None:
    schedule = schedule_of("ux iy")
    schedule.take(1)
    schedule.enter_operation(SPAN_MAX - 1, operation("iy", SPAN_MAX - 1))
    schedule.enter_operation(SPAN_MAX, operation("iy", SPAN_MAX))
    assert offsets(schedule.take(LANES)) == [(1, SPAN_MAX - 1)]


def test_progress_contains_no_rejections_beyond_the_span() -> None:
    # An operation that keeps failing holds `low` while many DDLs behind it are rejected. Those
    # can be read from the log again, and would not fit beside the cursor.
    schedule = schedule_of("ux")
    far = range(1, 20 * SPAN_MAX, SPAN_MAX // 3)
    for offset in far:
        schedule.enter_operation(offset, operation("d", offset))
        schedule.decide(offset, DecisionKind.REJECT)
    assert schedule.progress.done == {offset for offset in far if offset < SPAN_MAX}
    finish(schedule, *schedule.take(LANES))
    assert schedule.low == far[-1] + 1


def test_pending_counts_operations_that_are_not_released() -> None:
    schedule = schedule_of("ix ix")
    size = 2 * len("INSERT INTO x VALUES ('op0')")
    assert (schedule.pending, schedule.pending_bytes, schedule.read_to) == (2, size, 2)
    finish(schedule, *schedule.take(LANES))
    assert (schedule.pending, schedule.pending_bytes) == (0, 0)


# -- what reads go by ---------------------------------------------------------------------------


def test_high_is_above_every_operation_that_was_started() -> None:
    schedule = schedule_of("ia ub ic")
    assert (schedule.low, schedule.high) == (0, 0)
    first, second, third = schedule.take(LANES)
    assert (schedule.low, schedule.high) == (0, 3)
    finish(schedule, third, first)
    # what runs may have been committed, and what is done out of order can be seen
    assert (schedule.low, schedule.high) == (1, 3)
    schedule.complete(second)
    assert (schedule.low, schedule.high) == (3, 3)


def test_high_after_a_restart_is_above_those_in_the_progress_and_the_tables() -> None:
    assert schedule_of("ia ia ia", Progress(1, done=frozenset({2}))).high == 3
    assert schedule_of("ia ia ia", Progress(1, batches=((1, 2),))).high == 3
    assert schedule_of("ia D ia", Progress(1, unmarked=((1, ""),))).high == 2
    schedule = schedule_of("ia ib ia ib", doubtful_below=4)
    schedule.restore({"b": 3})
    assert (schedule.low, schedule.high) == (0, 4)
