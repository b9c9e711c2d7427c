"""Tests of lanes shared by users: they take turns, and none gets all lanes if there are others."""

from __future__ import annotations

from dataclasses import replace

from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.queue.turns import NOT_LONG_AGO
from haproc.replicate.queue.units import BatchLimits
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.progress import Progress
from tests.unit.operations import update
from tests.unit.test_schedule import finish


def write(user: str, table: str) -> Operation:
    return replace(update(f"{user}{table}", table), user=user)


def schedule_of(*users: str) -> Schedule:
    """Return a schedule that has read one write of each user, each to a table of its own."""
    schedule = Schedule("a", Progress(), 0, BatchLimits())
    for offset, user in enumerate(users):
        schedule.enter_operation(offset, write(user, f"t{offset}"))
    return schedule


def started(schedule: Schedule, lanes_free: int) -> list[int]:
    return [unit.version for unit in schedule.take(lanes_free)]


def test_single_user_gets_all_lanes_in_log_order() -> None:
    assert started(schedule_of(*"uuuuu"), 4) == [0, 1, 2, 3]


def test_users_with_ready_operations_take_turns_however_many_each_sent() -> None:
    assert started(schedule_of(*"uuuuuvv"), 4) == [0, 5, 1, 6]


def test_one_lane_is_reserved_for_others_if_another_user_wrote_recently() -> None:
    schedule = schedule_of("v", *"uuuu")
    (first,) = schedule.take(1)
    finish(schedule, first)
    assert started(schedule, 4) == [1, 2, 3]
    assert started(schedule, 1) == []
    schedule.enter_operation(5, write("v", "other"))
    assert started(schedule, 1) == [5]


def test_no_lane_is_reserved_for_others_who_wrote_long_ago() -> None:
    schedule = schedule_of("v")
    (first,) = schedule.take(4)
    finish(schedule, first)
    for offset in range(NOT_LONG_AGO + 1, NOT_LONG_AGO + 6):
        schedule.enter_operation(offset, write("u", f"t{offset}"))
    assert len(started(schedule, 4)) == 4


def test_users_take_turns_at_a_single_lane() -> None:
    schedule, order = schedule_of(*"uuuv"), []
    while units := schedule.take(1):
        for unit in units:
            finish(schedule, unit)
            order.append(unit.version)
    assert order == [0, 3, 1, 2]
