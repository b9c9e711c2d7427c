"""Tests of turns: compared with the rule written out, and the cost of computing them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.queue.turns import Turns
from haproc.replicate.queue.units import BatchLimits
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.progress import Progress
from tests.unit.operations import copy, ddl, insert, table_as, table_ddl, update
from tests.unit.test_growth import work

TABLES = st.sampled_from("xyz")
OPERATIONS = st.one_of(
    st.builds(insert, st.just("i"), TABLES),
    st.builds(update, st.just("u"), TABLES, reads=st.text("xyz", max_size=2)),
    st.builds(copy, st.just("c"), TABLES, TABLES),
    st.builds(ddl, st.just("d"), st.just("a")),
    st.builds(table_as, st.just("t"), TABLES, TABLES),
    st.builds(table_ddl, st.just("n"), TABLES),
)
USERS = st.sampled_from(["u", "v"])
FAR = 1 << 40


def conflict(one: Operation, other: Operation) -> bool:
    """Return whether an operation must not start before one in front of it."""
    if one.exclusive or other.exclusive:
        passes = one.beside and other.named and other.exclusive
        if not passes:
            return True
    return bool(one.writes & (other.reads | other.writes) or other.writes & one.reads)


def in_turn(waiting: dict[int, Operation]) -> list[int]:
    """Return the operations without a conflict before them, by comparing all pairs."""
    return [
        offset
        for offset, op in waiting.items()
        if not any(conflict(earlier, op) for at, earlier in waiting.items() if at < offset)
    ]


@given(st.lists(st.one_of(st.tuples(OPERATIONS, USERS), st.integers(0, 40)), max_size=40))
def test_turns_are_those_of_operations_without_a_conflict_before_them(
    steps: list[tuple[Operation, str] | int],
) -> None:
    turns, waiting = Turns(), dict[int, Operation]()
    for offset, step in enumerate(steps):
        if isinstance(step, tuple):
            op, user = step
            waiting[offset] = replace(op, user=user)
            turns.queue_operation(offset, waiting[offset])
        elif waiting:  # any of them goes, though mostly it will be one whose turn it is
            gone = [*in_turn(waiting), *waiting][step % (2 * len(waiting)) % len(waiting)]
            turns.leave(gone, waiting.pop(gone))
        if waiting:
            assert list(turns.in_turn(FAR)) == in_turn(waiting)
            for user, theirs in turns.by_user(FAR).items():
                assert list(theirs) == [n for n in in_turn(waiting) if waiting[n].user == user]
            assert list(turns.in_turn(20)) == [n for n in in_turn(waiting) if n < 20]


@pytest.mark.parametrize("tables", [1, 8, 4096])
@pytest.mark.parametrize("kind", [insert, update])
def test_work_per_operation_does_not_grow_with_the_number_of_waiting_ones(
    kind: Callable[[str, str], Operation], tables: int
) -> None:
    def run_a_few(waiting: int) -> int:
        schedule = Schedule("a", Progress(), 0, BatchLimits(operations_max=8))
        for offset in range(waiting):
            schedule.enter_operation(offset, kind(f"r{offset}", f"t{offset % tables}"))

        def run(rounds: int) -> None:
            for _ in range(rounds):
                for unit in schedule.take(4):
                    schedule.complete(unit)
                    assert schedule.progress.low <= schedule.high
                    schedule.release(unit)

        return work(run, 20)

    assert run_a_few(4096) <= 1.2 * run_a_few(1024)
