"""Tests of a member's lag."""

from __future__ import annotations

from dataclasses import replace

from haproc.classify.model import Kind
from haproc.replicate.member.condition import News
from haproc.replicate.member.core import Watermarks
from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.queue.units import BatchLimits
from haproc.replicate.records.progress import Progress
from tests.unit.operations import ddl, insert


async def test_lag_counts_waiting_records_independent_of_the_cursor() -> None:
    schedule = Schedule("a", Progress(), 0, BatchLimits())
    marks = Watermarks(schedule, News())
    long = replace(ddl("made", "a"), kind=Kind.CREATE_TABLE_AS, named=True)
    schedule.enter_operation(0, long)
    for offset in range(1, 5):
        schedule.enter_operation(offset, insert(f"i{offset}", f"t{offset}"))
    schedule.passed(5)
    assert marks.lag == 5  # the one that is passed over is none
    marks.log_ends(9)
    assert marks.lag == 8
    units = schedule.take(9)
    for unit in units[1:]:
        schedule.complete(unit)
        schedule.release(unit)
    assert (schedule.low, marks.lag) == (0, 4)
    schedule.complete(units[0])
    assert (schedule.low, marks.lag) == (6, 3)  # of what is read, nothing is left
