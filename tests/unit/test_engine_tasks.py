"""The server's reports of running tasks: which late statements they excuse."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from haproc import protos
from haproc.engine.tasks import (
    FRESH_S,
    LEFT_S_MAX,
    OLD_S,
    OVERTAKEN_MAX,
    OVERTAKEN_S_MAX,
    StatementReport,
    Tasks,
    Wait,
)

_Response = protos.base.ExecutePlanResponse


def reporting(inflight: int, *stages_done: bool) -> Any:
    response = _Response(session_id="s")
    response.execution_progress.num_inflight_tasks = inflight
    for done in stages_done:
        response.execution_progress.stages.add(num_tasks=1, done=done)
    return response


def rows(data: bytes) -> Any:
    response = _Response(session_id="s")
    response.arrow_batch.data = data
    return response


@contextlib.contextmanager
def statement(tasks: Tasks) -> Iterator[StatementReport]:
    """Count a statement until the block ends: answered, unless an error ends it."""
    report, answered = tasks.begin(), False
    try:
        yield report
        answered = True
    finally:
        tasks.end(report, answered=answered)


def queued(tasks: Tasks) -> Wait:
    wait = tasks.wait()
    wait.report.receive(reporting(0, False))
    return wait


def answer(tasks: Tasks) -> None:
    with statement(tasks):
        pass


def test_statement_without_a_core_is_excused_only_while_another_one_has_tasks() -> None:
    tasks = Tasks(lambda: 0.0)
    probe = queued(tasks)
    assert not probe.is_excused()
    with pytest.raises(ConnectionError), statement(tasks) as other:
        assert not probe.is_excused()
        other.receive(reporting(2, False))
        assert probe.is_excused()
        other.receive(rows(b"x"))
        assert probe.is_excused()
        other.receive(reporting(0, False))
        assert not probe.is_excused()
        other.receive(reporting(1, False))
        raise ConnectionError
    assert not probe.is_excused()


def test_statement_without_recent_reports_does_not_excuse_others() -> None:
    now_s = 0.0
    tasks = Tasks(lambda: now_s)
    probe = queued(tasks)
    with statement(tasks) as unread:  # its client has stopped reading, and its executors are gone
        unread.receive(reporting(2, False))
        now_s += OLD_S
        probe.report.receive(reporting(0, False))
        assert probe.is_excused()
        now_s += 1.0
        assert not probe.is_excused()
        unread.receive(reporting(2, False))
        assert probe.is_excused()


def test_cores_count_as_held_by_an_abandoned_statement_until_a_later_one_is_answered() -> None:
    now_s = 0.0
    tasks = Tasks(lambda: now_s)

    def give_up(*responses: Any) -> None:
        report = tasks.begin()
        for each in responses:
            report.receive(each)
        tasks.end(report, answered=False, left=True)

    give_up(reporting(0, False))
    assert not queued(tasks).is_held, "it had no tasks"
    with statement(tasks) as read:
        read.receive(reporting(2, False))
    assert not queued(tasks).is_held, "it was read to its end"
    with contextlib.suppress(ConnectionError), statement(tasks) as failed:
        failed.receive(reporting(2, False))
        raise ConnectionError
    assert not queued(tasks).is_held, "it failed: its executors may be gone"
    before = tasks.wait()
    now_s += 1.0
    give_up(reporting(2, False))
    probe = queued(tasks)
    assert probe.is_held and not probe.is_excused()
    assert not tasks.wait().is_held, "it does not wait for cores"
    before.is_over(answered=True)
    assert probe.is_held
    now_s += 1.0
    later = tasks.wait()
    later.is_over(answered=False)
    assert probe.is_held
    later.is_over(answered=True)
    assert not probe.is_held
    give_up(reporting(2, False))
    now_s += LEFT_S_MAX
    assert queued(tasks).is_held
    now_s += 1.0
    assert not queued(tasks).is_held


def test_statement_is_excused_only_while_the_driver_reports_its_wait() -> None:
    now_s = 0.0
    tasks = Tasks(lambda: now_s)
    with statement(tasks) as other:
        probe = queued(tasks)
        other.receive(reporting(2, False))
        now_s += FRESH_S
        assert probe.is_excused()
        now_s += 0.1  # the driver is frozen: nothing is told any more of anybody
        assert not probe.is_excused()
        probe.report.receive(reporting(0, False))
        assert probe.is_excused()


def test_late_statements_share_the_time_of_being_overtaken() -> None:
    now_s = 0.0
    tasks = Tasks(lambda: now_s)

    def excused_for(probe: Wait) -> float:
        nonlocal now_s
        began_at = now_s
        answer(tasks)
        while probe.is_excused():
            now_s += 5.0
            answer(tasks)
        probe.is_over(answered=False)
        return now_s - began_at

    with contextlib.ExitStack() as hung:
        for _ in range(200):  # their storage is away; queries of literals are answered all the time
            hung.enter_context(statement(tasks))
        assert excused_for(tasks.wait()) == OVERTAKEN_S_MAX + 5.0
        assert excused_for(tasks.wait()) == 0.0
        tasks.wait().is_over(answered=True)
        assert excused_for(tasks.wait()) == OVERTAKEN_S_MAX + 5.0


def test_statement_with_tasks_or_without_stages_is_not_excused() -> None:
    tasks = Tasks(lambda: 0.0)
    with statement(tasks) as other:
        other.receive(reporting(2, False))
        for response_sent in (reporting(1, False), reporting(0), reporting(0, True), rows(b"")):
            probe = tasks.wait()
            probe.report.receive(response_sent)
            assert not probe.is_excused()


def test_statement_is_excused_while_others_are_answered_with_or_without_reports() -> None:
    tasks = Tasks(lambda: 0.0)
    for begin in (Tasks.wait, queued):
        probe = begin(tasks)
        assert not probe.is_excused()
        answer(tasks)
        assert probe.is_excused()
        assert not probe.is_excused(), "nobody was answered since then"
        with pytest.raises(ConnectionError), statement(tasks):
            raise ConnectionError
        assert not probe.is_excused(), "an attempt that failed is no answer"


def test_statement_overtaken_too_often_is_not_excused() -> None:
    tasks = Tasks(lambda: 0.0)
    with contextlib.ExitStack() as crowd:
        for _ in range(100):
            crowd.enter_context(statement(tasks))
        probe = tasks.wait()
    assert probe.is_excused(), "those that came before it"
    for _ in range(OVERTAKEN_MAX * 101 - 100):
        answer(tasks)
        assert probe.is_excused()
    answer(tasks)
    assert not probe.is_excused()
    alone = tasks.wait()
    for n in range(OVERTAKEN_MAX + 1):
        answer(tasks)
        assert alone.is_excused() == (n < OVERTAKEN_MAX)


def test_progress_reports_are_found_among_other_response_bytes() -> None:
    report = StatementReport(lambda: 0.0)
    report.receive_bytes(rows(b"\x92\x01\x7f").SerializeToString())
    report.receive_bytes(b"\x92\x01 no message")
    assert report.inflight == 0
    report.receive_bytes(reporting(3, False).SerializeToString())
    assert report.inflight == 3
    report.receive_bytes(rows(bytes(100_000)).SerializeToString())
    assert report.inflight == 3
