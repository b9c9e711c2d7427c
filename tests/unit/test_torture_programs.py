"""Tests of PySpark programs in the kill harness: their notes, and the checks of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fault.torture.checker import check
from tests.fault.torture.figures import figures
from tests.fault.torture.history import History, Level, Outcome, Read, Run, from_lines, load
from tests.fault.torture.levels import judged_reads
from tests.fault.torture.programs import Way, make_programs
from tests.fault.torture.pyspark_program import Noting
from tests.fault.torture.violations import Wrong

INVOKED = {
    "type": "invoke",
    "process": "plain-1",
    "verb": "put",
    "table": "reg_0",
    "key": "1",
}
COMPLETE = {"type": "complete", "cluster": "", "offset": None, "error": ""}


def write(number: int, outcome: Outcome = Outcome.ACK) -> list[dict[str, Any]]:
    """Return a program's notes of a write at this second."""
    invoked = {**INVOKED, "id": f"r{number}", "t": float(number), "values": str(number)}
    return [invoked, {**COMPLETE, "id": f"r{number}", "t": number + 0.5, "outcome": outcome}]


def ended(process: str, ok: bool) -> dict[str, Any]:
    return {"type": "session", "process": process, "t": 3.0, "ok": ok, "found": {"total": 1}}


def failed(given_up: bool) -> dict[str, Any]:
    noted = {"process": "plain-1", "what": "a read", "error": "E", "took_s": 9.0}
    return {"type": "program-error", "t": 3.0, "given_up": given_up, **noted}


def test_write_of_a_program_has_the_offset_of_its_record_in_the_log() -> None:
    log = {"type": "log", "entries": [[7, "r1"], [9, "r2"]]}
    run = from_lines([*write(1), *write(2, Outcome.UNKNOWN), *write(3), log])
    assert [op.offset for op in run.ops] == [7, None, None]
    assert {violation.wrong for violation in check(run)} == {Wrong.LOST}


def test_write_that_was_retried_counts_at_its_last_record() -> None:
    entries = [[7, "r1"], [9, "r1~2"], [11, "r1~2"], [12, "r2"]]
    run = from_lines([*write(1), *write(2), {"type": "log", "entries": entries}])
    assert run.log == ((9, "r1"), (11, "r1"), (12, "r2"))
    assert [op.offset for op in run.ops] == [9, 12]
    assert check(run) == []


@pytest.mark.parametrize("cluster", ["a", "b"])
def test_read_of_a_program_without_its_own_write_is_found(cluster: str) -> None:
    log = {"type": "log", "entries": [[7, "r1"], [9, "r2"]]}
    made = from_lines([*write(1), *write(2), log])
    read = Read("plain-1", "reg_0", cluster, 3.0, 3.5, {"1": (1,)}, level=Level.SESSION)
    (judged,) = judged_reads(Run(made.ops, (read,), log=made.log))
    (violation,) = judged.violations()
    assert violation.wrong is Wrong.LEVEL
    other = Read("plain-2", "reg_0", cluster, 3.0, 3.5, {"1": (1,)}, level=Level.SESSION)
    (judged,) = judged_reads(Run(made.ops, (other,), log=made.log))
    assert not list(judged.violations())


def test_error_in_a_program_is_found_unless_it_gave_up_after_minutes() -> None:
    assert [each.wrong for each in check(from_lines([failed(False)]))] == [Wrong.ERROR]
    assert check(from_lines([failed(True)])) == []


def test_session_that_lost_something_is_found() -> None:
    assert [each.wrong for each in check(from_lines([ended("plain-1", False)]))] == [Wrong.SESSION]
    assert check(from_lines([ended("plain-1", True)])) == []


def test_figures_list_each_program() -> None:
    lines = [*write(1), *write(2, Outcome.UNKNOWN), ended("plain-1", True), failed(True)]
    assert figures(from_lines(lines))["programs"] == {
        "plain-1": {
            "sessions whole": 1,
            "writes": 1,
            "reads": 0,
            "moves": 0,
            "longest_s": 0.5,
            "errors": 1,
        }
    }


def test_history_of_two_processes_has_one_clock_and_whole_lines(tmp_path: Path) -> None:
    now = iter([100.0, 101.0, 102.0, 103.0])
    one = History(tmp_path / "h", lambda: next(now))
    other = History(tmp_path / "h", lambda: next(now), began=one.began)
    for each in (one, other, one):
        each.write("event", text="é" * 100_000)
    one.close()
    other.close()
    assert [event["t"] for event in load(tmp_path / "h").events] == [1.0, 2.0, 3.0]


def test_plan_is_noted_before_it_is_sent() -> None:
    happened: list[str] = []

    class Stub:
        def ExecutePlan(self, request: Any, metadata: Any) -> str:
            happened.append(f"sent {metadata}")
            return "responses"

        def Config(self) -> str:
            return "configured"

    class Request:
        operation_id = "r1"

    noting = Noting(Stub(), happened.append)
    assert noting.ExecutePlan(Request(), metadata="m") == "responses"
    assert noting.Config() == "configured"
    assert happened == ["r1", "sent m"]


def test_programs_alternate_ways_and_orders_of_doors(tmp_path: Path) -> None:
    history = History(tmp_path / "h")
    made = make_programs("{}:1".format, ["a", "b", "c"], 1, history, count=4, first_number=9)
    history.close()
    noted = [program._arguments for program in made]
    assert [each.name for each in noted] == ["plain-1", "channel-1", "plain-2", "channel-2"]
    assert [each.way for each in noted] == [*Way, *Way]
    assert [each.doors[0] for each in noted] == ["a:1", "b:1", "c:1", "a:1"]
    assert [each.number for each in noted] == [9, 10, 11, 12]
