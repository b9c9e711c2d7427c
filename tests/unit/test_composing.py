"""The operations of different form that the schedule combines into one statement."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace

import pytest

from haproc.engine.interface import Column, Settings
from haproc.engine.statement import SqlText
from haproc.replicate.compose.reading import change_of
from haproc.replicate.compose.terms import Change
from haproc.replicate.log_state.computations import PeerSuccess
from haproc.replicate.queue import units
from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.queue.units import BatchKey, BatchLimits, Intent
from haproc.replicate.records.control import FailureVote
from haproc.replicate.records.operation import FailureReport, Operation
from haproc.replicate.records.progress import Progress
from haproc.replicate.records.rows import ApplicationFailure
from tests.unit.operations import ddl
from tests.unit.test_schedule import finish, offsets
from tests.unit.test_schedule_restarts import split
from tests.windows import operation

COLUMNS = [Column("k", "int"), Column("v", "string")]
ENTER, APPEND = "INSERT INTO t VALUES (1, 'a')", "UPDATE t SET v = v || 'x' WHERE k = 1"
LEAVE = "DELETE FROM t WHERE k = 2"
UPSERT = """MERGE INTO t USING (SELECT 2 AS k, 'b' AS v) AS s ON t.k = s.k
    WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""


def queue(
    *sqls: str,
    passed: int = 99,
    columns: Sequence[Column] | None = COLUMNS,
    progress: Progress | None = None,
    limits: BatchLimits | None = None,
    doubtful_below: int = 0,
) -> tuple[Schedule, PeerSuccess]:
    """Return a schedule that has read these statements on one table."""
    peer_success = PeerSuccess()
    peer_success.passed(passed)
    schedule = Schedule(
        "b", progress or Progress(), doubtful_below, limits or BatchLimits(), peer_success
    )
    for offset, sql in enumerate(sqls):
        schedule.enter_operation(offset, operation(sql, "t"))
    if columns is not None:
        schedule.composing.describe("t", columns, schedule.composing.definitions)
    return schedule, peer_success


def test_operations_of_different_form_become_one_statement_with_an_intent() -> None:
    schedule, _ = queue(ENTER, APPEND, LEAVE)
    (unit,) = schedule.take(4)
    assert unit.offsets == (0, 1, 2) and unit.intent is Intent.BATCH
    write = unit.write()
    assert isinstance(write, SqlText) and write.sql.startswith("MERGE INTO `t`")
    assert schedule.progress.batches == ((0, 2),)


def test_upserts_of_different_keys_are_one_statement() -> None:
    schedule, _ = queue(UPSERT, UPSERT.replace("2 AS k", "3 AS k"), ENTER)
    (unit,) = schedule.take(4)
    assert unit.offsets == (0, 1, 2) and unit.composed.startswith("MERGE INTO `t`")


def test_merge_with_rows_of_another_table_runs_alone() -> None:
    merge = replace(
        operation(UPSERT.replace("SELECT 2 AS k", "TABLE u"), "t"), reads=frozenset({"u"})
    )
    schedule, _ = queue(ENTER, UPSERT)
    schedule.enter_operation(2, merge)
    assert offsets(schedule.take(4)) == [(0, 1)]


def test_operation_that_no_peer_has_passed_runs_alone() -> None:
    schedule, peer_success = queue(ENTER, APPEND, LEAVE, passed=2)
    assert offsets(schedule.take(4)) == [(0, 1)]
    schedule, peer_success = queue(APPEND, LEAVE, passed=0)
    assert offsets(schedule.take(4)) == [(0,)]
    peer_success.passed(1)
    assert not peer_success.succeeded(1) and peer_success.succeeded(0)


def test_operation_with_a_failure_report_or_vote_runs_alone() -> None:
    report = FailureReport(1, "a", 0, ApplicationFailure("SOME", "", ""))
    word = FailureVote(1, "id", "a", 0, "it cannot")
    for message in (report, word):
        schedule, peer_success = queue(APPEND, APPEND, LEAVE, APPEND)
        peer_success.record(message)
        assert offsets(schedule.take(4)) == [(0,)]
        peer_success.forget(1)
        assert not peer_success.succeeded(1)


def test_operations_on_a_table_that_cannot_be_described_run_one_by_one() -> None:
    schedule, _ = queue(APPEND, LEAVE, columns=None)
    assert schedule.tables_to_describe() == ["t"]
    assert offsets(schedule.take(4)) == [(0,)]
    schedule, _ = queue(APPEND, LEAVE, columns=None)
    schedule.composing.describe("t", None, 0)
    assert offsets(schedule.take(4)) == [(0,)]


def test_inserts_of_the_same_form_stay_a_batch() -> None:
    schedule, _ = queue(ENTER, ENTER, ENTER)
    (unit,) = schedule.take(4)
    assert unit.offsets == (0, 1, 2) and not unit.composed
    assert schedule.tables_to_describe() == []


def test_table_columns_are_forgotten_after_ddl() -> None:
    schedule, _ = queue(passed=99)
    schedule.enter_operation(0, ddl("made", "b"))
    schedule.enter_operation(1, operation(APPEND, "t"))
    schedule.enter_operation(2, operation(LEAVE, "t"))
    definitions_before = schedule.composing.definitions
    (unit,) = schedule.take(4)
    finish(schedule, unit)
    schedule.composing.describe("t", COLUMNS, definitions_before)  # asked before it was applied
    assert schedule.tables_to_describe() == ["t"]
    assert not schedule.composing.described("t")
    assert offsets(schedule.take(4)) == [(1,)]


def test_changing_write_whose_client_waits_here_is_not_combined_with_writes_of_peers() -> None:
    def mine(op: Operation) -> Operation:
        return replace(op, origin="b")

    schedule, _ = queue(APPEND)
    schedule.enter_operation(1, mine(operation(ENTER, "t")))
    schedule.enter_operation(2, mine(operation(LEAVE, "t")))
    assert offsets(schedule.take(4)) == [(0, 1)]
    schedule, _ = queue(APPEND)
    schedule.enter_operation(1, mine(operation(UPSERT, "t")))
    assert offsets(schedule.take(4)) == [(0,)]
    schedule, _ = queue(APPEND, doubtful_below=3)
    schedule.enter_operation(1, mine(operation(LEAVE, "t")))
    first, *others = schedule.take(4)
    assert first.offsets == (0,) and not others  # the first one on a table after a start
    finish(schedule, first)
    schedule.enter_operation(2, mine(operation(LEAVE, "t")))
    assert offsets(schedule.take(4)) == [(1, 2)]


def test_other_settings_and_limits_end_a_combined_statement() -> None:
    schedule, _ = queue(APPEND, LEAVE)
    schedule.enter_operation(
        2, replace(operation(LEAVE, "t"), settings=Settings(time_zone="Asia/Tokyo"))
    )
    assert offsets(schedule.take(4)) == [(0, 1)]
    schedule, _ = queue(*[APPEND, LEAVE] * 3, limits=BatchLimits(operations_max=4))
    assert offsets(schedule.take(4)) == [(0, 1, 2, 3)]


def test_combined_statement_ends_when_its_text_becomes_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(units, "CELLS_MAX", 2 + 2 * len(UPSERT) // 5)
    schedule, _ = queue(ENTER, UPSERT, UPSERT, UPSERT)
    assert offsets(schedule.take(4)) == [(0, 1, 2)]


WIDE = [Column("k", "int"), *(Column(f"c{n}", "int") for n in range(1, 100))]
ROW = f"({', '.join(['1'] * 100)})"
MANY_CELLS = f"INSERT INTO t VALUES {', '.join([ROW] * 25)}"  # 2,500


class Reads:
    """Counts the operations that are read for combining."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.operations = 0
        monkeypatch.setattr(units, "change_of", self.change_of)

    def change_of(self, op: Operation) -> Change | None:
        self.operations += 1
        return change_of(op)


def test_rows_of_many_columns_end_a_combined_statement_before_they_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = Reads(monkeypatch)
    schedule, _ = queue("DELETE FROM t WHERE k = 2", *[MANY_CELLS] * 20, columns=WIDE)
    assert offsets(schedule.take(4)) == [(0, 1, 2)]
    assert reads.operations == 3


def test_changes_of_many_keys_and_columns_end_a_combined_statement() -> None:
    keys = ", ".join(map(str, range(25)))
    sets = ", ".join(f"c{n} = {n}" for n in range(1, 100))
    wide = f"UPDATE t SET {sets} WHERE k IN ({keys})"  # some 2,500 cells in 1,000 characters
    schedule, _ = queue(*[wide] * 9, columns=WIDE)
    (unit,) = schedule.take(4)
    assert len(unit.offsets) == 2 and unit.composed


def test_no_text_is_read_when_a_batch_of_the_same_form_is_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = Reads(monkeypatch)
    schedule, _ = queue(ENTER, ENTER, ENTER)
    assert offsets(schedule.take(4)) == [(0, 1, 2)]
    schedule, _ = queue(*[MANY_CELLS] * 9, APPEND, columns=WIDE)
    assert offsets(schedule.take(4)) == [tuple(range(9))]
    schedule, _ = queue(ENTER, ENTER, APPEND, passed=2)
    assert offsets(schedule.take(4)) == [(0, 1)]
    assert reads.operations == 0


def test_texts_are_read_for_at_most_one_combined_statement_per_call() -> None:
    schedule, _ = queue(APPEND, LEAVE)
    for offset, sql in enumerate((APPEND, LEAVE), 2):
        schedule.enter_operation(
            offset, operation(sql.replace(" t ", " u ").replace("FROM t", "FROM u"), "u")
        )
    schedule.composing.describe("u", COLUMNS, schedule.composing.definitions)
    assert offsets(schedule.take(4)) == [(0, 1)] and schedule.composing.tried
    assert offsets(schedule.take(3)) == [(2, 3)] and schedule.composing.tried
    assert schedule.take(2) == [] and not schedule.composing.tried


def test_batch_that_may_have_run_is_composed_again_beyond_the_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = Progress(batches=((0, 5),))
    narrow = BatchLimits(operations_max=2, rows_max=10, bytes_max=10, tokens_max=10)
    monkeypatch.setattr(units, "CELLS_MAX", 10)
    monkeypatch.setattr(units, "OPERATIONS_MAX", 2)
    sqls = ["DELETE FROM t WHERE k = 2", *[MANY_CELLS] * 5]
    schedule, _ = queue(*sqls, columns=WIDE, progress=stored, limits=narrow, doubtful_below=6)
    (unit,) = schedule.take(4)
    assert unit.offsets == (0, 1, 2, 3, 4, 5) and unit.composed and not unit.apart


def test_half_of_a_failed_statement_is_composed_without_other_operations() -> None:
    schedule, _ = queue(APPEND, LEAVE, APPEND, LEAVE)
    (unit,) = schedule.take(4)
    schedule.enter_operation(4, operation(APPEND, "t"))
    for expected in ((0, 1), (2, 3)):
        if expected == (0, 1):
            split(schedule, unit)
        (half,) = schedule.take(4)
        assert half.offsets == expected and half.composed
        finish(schedule, half)
    assert offsets(schedule.take(4)) == [(4,)]


def test_operation_that_failed_on_another_cluster_ends_a_batch_and_runs_alone() -> None:
    schedule, peer_success = queue(*[ENTER] * 3, passed=0)
    peer_success.record(FailureReport(2, "a", 0, ApplicationFailure("SOME", "", "")))
    peer_success.record(
        FailureReport(4, "a", 0, ApplicationFailure("SOME", "", ""))
    )  # it is not read yet
    for offset in (3, 4, 5, 6):
        schedule.enter_operation(offset, operation(ENTER, "t"))
    for expected in ((0, 1), (2,), (3,), (4,), (5, 6)):
        (unit,) = schedule.take(4)
        assert unit.offsets == expected
        finish(schedule, unit)


def test_tables_without_waiting_operations_leave_nothing_in_memory() -> None:
    def keys() -> int:
        gc.collect()
        return sum(isinstance(each, BatchKey) for each in gc.get_objects())

    schedule, _ = queue(columns=None)
    before = keys()
    for offset in range(20):
        table = f"made{offset}"
        schedule.enter_operation(offset, operation(ENTER.replace(" t ", f" {table} "), table))
        (unit,) = schedule.take(4)
        finish(schedule, unit)
    del unit
    assert keys() == before
    schedule.composing.failed("made0")
    schedule.composing.applied([ddl("dropped", "b")])
    assert not schedule.composing.looked_for("made0")


def test_statement_of_too_many_forms_is_halved() -> None:
    columns = [Column("k", "int"), *(Column(f"c{n}", "int") for n in range(40))]
    sqls = [f"UPDATE t SET c{n} = 1 WHERE k = {n}" for n in range(40)]
    schedule, _ = queue(*sqls, columns=columns)
    assert offsets(schedule.take(4)) == [tuple(range(20))]


def test_batch_that_may_have_run_is_composed_again_after_its_columns_are_known() -> None:
    stored = Progress(batches=((0, 1),))
    schedule, _ = queue(
        APPEND, LEAVE, LEAVE, columns=None, progress=stored, passed=0, doubtful_below=3
    )
    assert schedule.take(4) == []
    assert schedule.tables_to_describe() == ["t"]
    schedule.composing.describe("t", COLUMNS, 0)
    (unit,) = schedule.take(4)
    assert unit.offsets == (0, 1) and unit.in_doubt and unit.composed


def test_batch_that_cannot_be_composed_again_is_split() -> None:
    stored = Progress(batches=((0, 1),))
    schedule, _ = queue(APPEND, LEAVE, columns=None, progress=stored, doubtful_below=2)
    schedule.composing.describe("t", None, 0)
    (unit,) = schedule.take(4)
    assert unit.offsets == (0, 1) and unit.apart
    split(schedule, unit)
    assert offsets(schedule.take(4)) == [(0,)]


def test_batch_on_a_table_that_cannot_be_described_is_split() -> None:
    """The check of the table meets that error too, and reports where the cluster is stuck."""
    stored = Progress(batches=((0, 1),))
    schedule, _ = queue(APPEND, LEAVE, columns=None, progress=stored, doubtful_below=2)
    schedule.composing.failed("t")
    assert schedule.tables_to_describe() == ["t"]
    (unit,) = schedule.take(4)
    assert unit.offsets == (0, 1) and unit.in_doubt and unit.apart


class CountingPeerSuccess(PeerSuccess):
    """Counts the calls of ``succeeded``."""

    def __init__(self) -> None:
        super().__init__()
        self.times = 0

    def succeeded(self, offset: int) -> bool:
        self.times += 1
        return super().succeeded(offset)


@pytest.mark.parametrize("waiting", [10, 500])
def test_operation_that_cannot_be_composed_costs_the_same_for_any_queue_length(
    waiting: int,
) -> None:
    peer_success = CountingPeerSuccess()
    peer_success.passed(waiting)
    schedule = Schedule("b", Progress(), 0, BatchLimits(), peer_success)
    for offset in range(waiting):
        schedule.enter_operation(offset, operation("UPDATE t SET v = 'x' WHERE k > 1", "t"))
    schedule.composing.describe("t", COLUMNS, schedule.composing.definitions)
    assert offsets(schedule.take(4)) == [(0,)]
    assert peer_success.times <= 2
