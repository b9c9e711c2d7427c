"""Tests of the outcomes of operations: a lookup finds the first attempt's, within the window."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pyarrow as pa
import pytest

from haproc.engine.arrow import stream_of
from haproc.engine.interface import Applied
from haproc.engine.statement import ArrowRows
from haproc.replicate.queue.facts import Facts
from haproc.replicate.queue.outcomes import (
    DONE_BEFORE,
    RESULTS_BYTES_MAX,
    STALE,
    OperationOutcome,
    Outcomes,
    OutcomeStatus,
    Troubles,
)
from haproc.replicate.records.rows import MESSAGE_CHARACTERS_MAX, ApplicationFailure
from tests.simulation.clock import on_virtual_time, run
from tests.unit.operations import insert, update

OK = OperationOutcome(OutcomeStatus.APPLIED)
BAD = OperationOutcome(
    OutcomeStatus.FAILED, failure=ApplicationFailure("DIVIDE_BY_ZERO", "22012", "no")
)


def key(op_id: str) -> tuple[str, str]:
    return "anonymous", op_id


def outcomes_of(*op_ids: str, window_records: int = 100) -> Outcomes:
    outcomes = Outcomes(window_records)
    for offset, op_id in enumerate(op_ids):
        outcomes.admit(offset, update(op_id, "x"))
    return outcomes


def test_find_returns_an_admitted_operation_by_id_and_by_offset() -> None:
    outcomes = outcomes_of("a", "b")
    known = outcomes.find(key("b"))
    assert known is not None and known is outcomes.at(1)
    assert (known.offset, known.outcome) == (1, None)
    assert outcomes.find(key("c")) is outcomes.at(2) is None


def test_resolve_again_replaces_the_earlier_outcome() -> None:
    outcomes = outcomes_of("a")
    outcomes.resolve(0, DONE_BEFORE)
    outcomes.resolve(0, BAD)
    known = outcomes.at(0)
    assert known is not None and known.outcome is BAD


def test_resolve_of_an_unknown_offset_is_ignored() -> None:
    outcomes_of("a").resolve(5, OK)


def test_admit_moves_the_window_and_forgets_resolved_operations() -> None:
    outcomes = outcomes_of("a", "b", "c", window_records=2)
    for offset in range(3):
        outcomes.resolve(offset, OK)
    outcomes.admit(3, update("d", "x"))
    assert outcomes.find(key("a")) is outcomes.at(0) is None
    assert outcomes.find(key("b")) is not None


def test_admit_keeps_unresolved_operations_of_any_age() -> None:
    outcomes = outcomes_of("a", "b", window_records=2)
    outcomes.resolve(1, OK)
    outcomes.admit(50, update("c", "x"))
    assert outcomes.find(key("a")) is not None
    outcomes.resolve(0, OK)
    outcomes.admit(51, update("d", "x"))
    assert outcomes.find(key("a")) is outcomes.find(key("b")) is None


def test_admit_of_the_same_id_beyond_the_window_is_found_from_then_on() -> None:
    outcomes = outcomes_of("a", window_records=2)
    outcomes.admit(9, update("a", "x"))
    outcomes.resolve(0, OK)
    outcomes.admit(10, update("b", "x"))
    known = outcomes.find(key("a"))
    assert known is not None and known.offset == 9


def test_arrival_and_outcome_wake_all_waiters() -> None:
    async def main() -> None:
        outcomes = Outcomes(10)

        async def wait() -> OperationOutcome:
            return await outcomes.outcome(await outcomes.arrival(key("a"), None))

        waiting = [asyncio.create_task(wait()) for _ in range(3)]
        await asyncio.sleep(1)
        outcomes.admit(0, update("a", "x"))
        await asyncio.sleep(1)
        assert not any(task.done() for task in waiting)
        outcomes.resolve(0, BAD)
        assert await asyncio.gather(*waiting) == [BAD] * 3
        assert await wait() is BAD

    run(main())


def test_arrival_cancelled_by_one_waiter_does_not_disturb_the_others() -> None:
    async def main() -> None:
        outcomes = Outcomes(10)
        gone = asyncio.create_task(outcomes.arrival(key("a"), None))
        stays = asyncio.create_task(outcomes.arrival(key("a"), None))
        await asyncio.sleep(1)
        gone.cancel()
        await asyncio.sleep(1)
        outcomes.admit(0, update("a", "x"))
        assert (await stays).offset == 0

    run(main())


def test_failure_same_as_ignores_only_the_message() -> None:
    one = ApplicationFailure("A", "42000", "file /one")
    assert one.same_as(ApplicationFailure("A", "42000", "file /two"))
    assert not one.same_as(ApplicationFailure("B", "42000", "file /one"))
    assert not one.same_as(ApplicationFailure("A", "42P01", "file /one"))


def test_repeated_keeps_the_first_one_as_long_as_the_window_knows_the_id() -> None:
    outcomes = outcomes_of("a", "b", window_records=5)
    for offset in range(2):
        outcomes.resolve(offset, OK)
    for offset in (5, 10, 15):
        outcomes.repeated(offset, update("a", "x"))
        known = outcomes.find(key("a"))
        assert known is not None and (known.offset, known.outcome) == (0, OK)
    assert outcomes.find(key("b")) is None
    outcomes.admit(20, update("c", "x"))
    assert outcomes.find(key("a")) is not None
    outcomes.admit(21, update("d", "x"))
    assert outcomes.find(key("a")) is outcomes.at(0) is None


def test_find_treats_the_same_id_of_two_users_as_two_requests() -> None:
    outcomes = outcomes_of("a")
    outcomes.admit(1, replace(update("a", "x"), user="ada"))
    first, second = outcomes.find(key("a")), outcomes.find(("ada", "a"))
    assert first is not None and second is not None
    assert (first.offset, second.offset) == (0, 1)


def test_pass_over_is_known_by_its_offset_only_and_a_later_copy_is_the_first() -> None:
    outcomes = Outcomes(10)
    outcomes.pass_over(0, update("a", "x"), STALE)
    known = outcomes.at(0)
    assert known is not None and known.outcome is STALE
    assert outcomes.find(key("a")) is None
    outcomes.admit(1, update("a", "x"))
    found = outcomes.find(key("a"))
    assert found is not None and found.offset == 1


def test_arrival_of_the_own_record_that_was_passed_over_ends_the_wait() -> None:
    async def main() -> None:
        outcomes = Outcomes(10)
        first = asyncio.create_task(outcomes.arrival(key("a"), 0))
        second = asyncio.create_task(outcomes.arrival(key("a"), 1))
        await asyncio.sleep(1)
        outcomes.pass_over(0, update("a", "x"), STALE)
        assert (await first).outcome is STALE
        await asyncio.sleep(1)
        assert not second.done()
        outcomes.admit(1, update("a", "x"))
        assert (await second).offset == 1
        # read before anybody waited for it
        outcomes.pass_over(2, update("b", "x"), STALE)
        assert (await outcomes.arrival(key("b"), 2)).outcome is STALE

    run(main())


def test_pass_over_is_forgotten_with_the_window() -> None:
    outcomes = Outcomes(2)
    outcomes.pass_over(0, update("a", "x"), STALE)
    outcomes.admit(3, update("b", "x"))
    assert outcomes.at(0) is None


def test_rows_of_an_operation_are_counted_and_not_kept() -> None:
    outcomes = Outcomes(100)
    many = ArrowRows("t", stream_of(pa.table({"n": range(5000)})))
    known = outcomes.admit(7, replace(update("a", "t"), write=many))
    outcomes.resolve(7, OK)
    assert known.facts == Facts.of(replace(update("a", "t"), write=many))
    assert known.facts.rows == 5000
    assert Facts.of(update("a", "t")).rows is None
    assert Facts.of(insert("a", "t", rows=3)).rows == 3


def test_resolve_of_many_results_keeps_only_the_newest_of_them_whole() -> None:
    outcomes = Outcomes(1000)
    result = Applied((bytes(RESULTS_BYTES_MAX // 4),), affected_rows=3)
    for offset in range(10):
        outcomes.admit(offset, update(f"{offset}", "t"))
        outcomes.resolve(offset, OperationOutcome(OutcomeStatus.APPLIED, result) if offset else BAD)
    kept = [known.outcome for at in range(10) if (known := outcomes.at(at))]
    whole = OperationOutcome(OutcomeStatus.APPLIED, result)
    short = OperationOutcome(OutcomeStatus.APPLIED, Applied(affected_rows=3))
    assert kept[1:] == [short] * 5 + [whole] * 4
    first = kept[0]
    assert first is not None and first.failure is not None and BAD.failure is not None
    assert first.failure.same_as(BAD.failure) and first.failure.message != BAD.failure.message


def test_failure_message_is_cut_to_its_limit() -> None:
    assert len(ApplicationFailure("A", "", "x" * (1 << 20)).message) == MESSAGE_CHARACTERS_MAX


# -- the line of an operation that has ended -----------------------------------------------------


def test_ended_operation_is_logged_as_one_line_with_names_and_figures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "haproc.operations")
    made = replace(update("req-1", "x"), created_ms=1_000, user="ann")
    outcomes = Outcomes(100, lambda: 1_250)
    outcomes.admit(7, made)
    outcomes.resolve(7, BAD)
    outcomes.resolve(7, BAD)
    (line,) = caplog.records
    assert line.getMessage() == ("offset 7: update of ann is failed after 0.250 s, request 'req-1'")
    assert line.fields == {  # type: ignore[attr-defined]
        "offset": 7,
        "request_id": "req-1",
        "user": "ann",
        "origin": made.origin,
        "kind": "update",
        "operation_class": "asynchronous",
        "form": "text",
        "tables": 1,
        "outcome": "failed",
        "error_class": "DIVIDE_BY_ZERO",
        "latency_s": 0.25,
    }


def test_ended_operation_is_not_logged_above_debug_or_if_done_before_a_restart(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "haproc.operations")
    outcomes = outcomes_of("a", "b")
    outcomes.resolve(0, OK)
    caplog.set_level(logging.DEBUG, "haproc.operations")
    outcomes.resolve(1, DONE_BEFORE)
    assert caplog.records == []


@on_virtual_time
async def test_rests_grow_until_the_operation_has_an_outcome() -> None:
    troubles = Troubles(stuck_after_attempts=3)
    rests = [troubles.stands(7, "no memory").rest_s(1.0, 3.0) for _ in range(4)]
    assert rests == [1.0, 2.0, 3.0, 3.0]
    assert troubles.over((7,))
    assert troubles.stands(7, "no memory").rest_s(1.0, 3.0) == 1.0
