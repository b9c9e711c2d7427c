"""The tables of a backlog that are worth a copy, and the operations that a copy replaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from haproc.classify.model import Kind, OperationClass
from haproc.replicate.queue.backlog import (
    COPY_BYTES_PER_S,
    COPY_TABLE_S,
    FACTOR,
    Backlog,
    CopiedAhead,
)
from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.queue.units import BatchLimits
from haproc.replicate.records.control import Abandon, Copy, Revoke, Verify
from haproc.replicate.records.operation import Claim, FailureReport, Message, Operation
from haproc.replicate.records.progress import Progress
from haproc.replicate.records.rows import ApplicationFailure
from tests.unit.operations import copy, insert, update
from tests.unit.test_schedule import finish

SMALL, HUGE = 1 << 20, 10**6 * COPY_BYTES_PER_S
LONG_S = 1000.0
NOTHING: dict[str, int] = {}


def full(*tables: str) -> frozenset[str]:
    return frozenset(f"spark_catalog.default.{table}" for table in tables)


def sizes(**bytes_of: int) -> dict[str, int]:
    return {f"spark_catalog.default.{table}": size for table, size in bytes_of.items()}


def backlog(messages: Sequence[Message], marker: int | None = None) -> Backlog:
    found = Backlog("c", 0, [("a", -1)], marker)
    for offset, message in enumerate(messages):
        found.note_record(offset, message)
    return found


def updates(table: str, count: int = 100) -> list[Message]:
    return [update(f"{table}{n}", table) for n in range(count)]


def ddl(table: str, *, named: bool) -> Operation:
    op = replace(update("ddl", table), kind=Kind.ALTER_TABLE)
    return replace(op, operation_class=OperationClass.SYNCHRONOUS, named=named)


def test_table_whose_replay_is_longer_than_its_copy_is_chosen() -> None:
    found = backlog([*updates("t"), *updates("u", 1), insert("i", "v"), *updates("w")])
    tables = sizes(t=SMALL, u=SMALL, v=SMALL, w=HUGE)
    assert found.chosen(tables, LONG_S) == full("t")
    assert found.chosen(tables, FACTOR * COPY_TABLE_S) == frozenset()
    assert found.chosen(NOTHING, LONG_S) == frozenset()


def test_table_written_from_a_chosen_one_is_chosen_too() -> None:
    found = backlog([*updates("t"), copy("c1", "t", "u"), copy("c2", "u", "v"), *updates("w", 3)])
    tables = sizes(t=SMALL, u=SMALL, v=SMALL, w=SMALL)
    assert found.chosen(tables, 600) == full("t", "u", "v", "w")
    assert found.chosen({**tables, **sizes(v=HUGE)}, 600) == full("w")
    assert not found.hindrance(full("t", "u", "v"))
    assert not found.hindrance(full("u", "v"))
    assert "offset 100 reads or changes" in found.hindrance(full("t"))
    assert "offset 101 reads or changes" in found.hindrance(full("t", "u"))


def test_table_with_ddl_in_the_backlog_is_not_chosen_but_others_are() -> None:
    found = backlog([*updates("t"), ddl("t", named=True), *updates("u")])
    assert found.chosen(sizes(t=SMALL, u=SMALL), LONG_S) == full("u")


@pytest.mark.parametrize(
    "message",
    [
        ddl("x", named=False),
        replace(update("unknown", "x"), tables_known=False),
        Verify("a"),
        Copy("d", "c", 0),
        Copy("c", "a", 0, ("default.t",)),
        Revoke(3, "id", "a", 0, "who"),
        Abandon(3, "id", "a", 0, 9, {}, {}, "error"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_backlog_with_a_record_that_a_copy_cannot_cover_is_replayed(message: Message) -> None:
    found = backlog([*updates("t"), message])
    assert found.hindrance(full("t"))
    assert not found.chosen(sizes(t=SMALL), LONG_S)


@pytest.mark.parametrize("message", [Verify("a"), copy("c", "t", "u"), ddl("t", named=True)])
def test_record_behind_the_marker_does_not_hinder_a_copy(message: Message) -> None:
    assert not backlog([*updates("t"), message], marker=100).hindrance(full("t"))
    assert backlog([*updates("t"), message], marker=101).hindrance(full("t"))


def test_copies_of_the_own_cluster_in_the_backlog_are_counted_as_attempts() -> None:
    own, other = (Copy(name, "a", 0, ("default.t",), ahead=True) for name in "cb")
    assert backlog([own, other, own]).attempts == 2


def test_copy_replaces_plain_operations_on_its_tables_before_the_marker() -> None:
    ahead = CopiedAhead(10, full("t", "u"))
    assert ahead.stands_for(9, update("x", "t"))
    assert ahead.stands_for(9, insert("x", "spark_catalog.default.T"))
    assert ahead.stands_for(9, copy("x", "v", "u"))
    assert not ahead.stands_for(10, update("x", "t"))
    assert not ahead.stands_for(9, update("x", "v"))
    assert not ahead.stands_for(9, ddl("t", named=True))
    assert not ahead.stands_for(9, replace(update("x", "t"), writes=frozenset()))


def test_failures_of_the_copied_cluster_are_counted() -> None:
    first, second = (ApplicationFailure(name, "", "") for name in ("FIRST", "SECOND"))
    found = backlog(
        [
            Claim("a", "a1"),
            FailureReport(1, "a", 0, first),
            FailureReport(1, "b", 0, second),
            FailureReport(2, "b", 0, second),
            Claim("a", "a2"),
            FailureReport(3, "a", 0, first),  # of a process that was replaced
            FailureReport(3, "a", 4, second),
        ]
    )
    assert found.failures("a", ()) == {1: first, 3: second}
    assert found.failures("a", [("b", 3)]) == {1: second, 2: second, 3: second}


def test_schedule_passes_over_operations_that_copies_replace_and_does_not_store_it() -> None:
    schedule = Schedule("c", Progress(0, frozenset({2}), ((1, 2),)), 4, BatchLimits())
    schedule.copied(CopiedAhead(4, full("t")))
    entered = [schedule.enter_operation(n, update(f"{n}", "ut"[n > 0])) for n in range(6)]
    assert entered == [True, False, False, False, True, True]
    assert schedule.needs == 0
    assert schedule.progress == Progress(0)
    first, _ = schedule.take(4)
    finish(schedule, first)
    assert first.offsets == (0,) and schedule.low == 4
