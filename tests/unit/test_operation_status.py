"""Tests of the status of an operation, and of the operators' advice about it."""

from __future__ import annotations

import pytest

from haproc.replicate.queue.operation_status import (
    SKIPPABLE_AFTER_ATTEMPTS,
    OperationStatus,
    Position,
    blockers,
    retry_advice,
    skip_advice,
)
from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.queue.units import MARKER, BatchLimits
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.progress import Progress
from tests.unit.operations import copy, ddl, insert, unknown_tables, update

ENOUGH, FEW = SKIPPABLE_AFTER_ATTEMPTS, SKIPPABLE_AFTER_ATTEMPTS - 1


@pytest.mark.parametrize(
    ("status", "retry", "skip"),
    [
        (OperationStatus(Position.STUCK, attempts=8), True, True),
        (OperationStatus(Position.FAILING, attempts=ENOUGH, head=True), True, True),
        (OperationStatus(Position.FAILING, attempts=FEW, head=True), True, False),
        (OperationStatus(Position.FAILING, attempts=ENOUGH), True, False),
        (OperationStatus(Position.STUCK, together=(5, 9), attempts=8, head=True), True, False),
        (OperationStatus(Position.DIFFERENT), False, True),
        (OperationStatus(Position.QUEUED, head=True), False, False),
        (OperationStatus(Position.RUNNING, head=True), False, False),
        (OperationStatus(Position.BLOCKED, 4), False, False),
        (OperationStatus(Position.UNDECIDED), False, False),
        (OperationStatus(Position.UNCOMPUTED, attempts=8, head=True), False, False),
        (OperationStatus(Position.DONE), False, False),
    ],
)
def test_advice_allows_only_useful_actions_and_always_gives_a_reason(
    status: OperationStatus, retry: bool, skip: bool
) -> None:
    for advice, allowed in ((retry_advice(status), retry), (skip_advice(status), skip)):
        assert advice.allowed is allowed
        assert len(advice.text) > 10


@pytest.mark.parametrize(
    ("operations", "blocked_by"),
    [
        ([insert("o", "x"), update("p", "x"), update("q", "y")], [None, 0, None]),
        ([copy("o", "x", "y"), update("p", "x"), copy("q", "x", "z")], [None, 0, 1]),
        ([insert("o", "x"), ddl("p", "b"), insert("q", "y"), ddl("r", "a")], [None, 0, 1, 0]),
        ([unknown_tables("o"), insert("p", "x")], [None, 0]),
        ([insert("o", "x"), MARKER, insert("p", "x")], [None, 0, 0]),
    ],
)
def test_blockers_are_the_first_unfinished_operations_that_are_waited_for(
    operations: list[Operation], blocked_by: list[int | None]
) -> None:
    schedule = Schedule("a", Progress(), 0, BatchLimits())
    for offset, op in enumerate(operations):
        schedule.enter_operation(offset, op)
    assert [by for _, by in blockers(schedule.unfinished())] == blocked_by
