"""What the server's reports of running tasks are taken for."""

from __future__ import annotations

from typing import Any

from haproc import protos
from haproc.engine.tasks import OLD_S, Report, Tasks

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


def queued() -> Report:
    report = Report(lambda: 0.0)
    report.hear(reporting(0, False))
    return report


def test_statement_waits_on_only_while_another_one_has_tasks() -> None:
    tasks, probe = Tasks(lambda: 0.0), queued()
    assert not tasks.keep_waiting(probe)
    with tasks.statement() as other:
        assert not tasks.keep_waiting(probe)
        other.hear(reporting(2, False))
        assert tasks.keep_waiting(probe)
        other.hear(rows(b"x"))
        assert tasks.keep_waiting(probe)
        other.hear(reporting(0, False))
        assert not tasks.keep_waiting(probe)
        other.hear(reporting(1, False))
    assert not tasks.keep_waiting(probe)


def test_statement_of_which_nothing_was_heard_for_long_keeps_nobody_waiting() -> None:
    now_s = 0.0
    tasks, probe = Tasks(lambda: now_s), queued()
    with tasks.statement() as unread:  # its client has stopped reading, and its executors are gone
        unread.hear(reporting(2, False))
        now_s += OLD_S
        assert tasks.keep_waiting(probe)
        now_s += 1.0
        assert not tasks.keep_waiting(probe)
        unread.hear(reporting(2, False))
        assert tasks.keep_waiting(probe)


def test_statement_with_tasks_or_without_stages_waits_for_something_else() -> None:
    tasks = Tasks(lambda: 0.0)
    with tasks.statement() as other:
        other.hear(reporting(2, False))
        for told in (reporting(1, False), reporting(0), reporting(0, True), rows(b"")):
            probe = Report(lambda: 0.0)
            probe.hear(told)
            assert not tasks.keep_waiting(probe)


def test_reports_are_found_among_bytes_that_nobody_reads() -> None:
    report = Report(lambda: 0.0)
    report.hear_bytes(rows(b"\x92\x01\x7f").SerializeToString())
    report.hear_bytes(b"\x92\x01 no message")
    assert report.inflight == 0
    report.hear_bytes(reporting(3, False).SerializeToString())
    assert report.inflight == 3
    report.hear_bytes(rows(bytes(100_000)).SerializeToString())
    assert report.inflight == 3
