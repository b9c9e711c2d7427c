"""Tests that rows are computed once for all clusters under faults; and rules broken on purpose."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from haproc.engine.arrow import stream_of
from haproc.engine.interface import Lane
from haproc.engine.placeholder import with_rows
from haproc.engine.statement import SparkPlan, Statement
from haproc.membership.state import Cause, Divergence, State
from haproc.replicate.apply.computing import Computing
from haproc.replicate.apply.synchronous import progressing
from haproc.replicate.apply.takeover import Takeover
from haproc.replicate.log_state.computations import Computations, RowsLocation
from haproc.replicate.member.core import Core
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.queue.units import TaskState as TaskState
from haproc.replicate.queue.units import Unit
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import Filling, Passed, Rows
from tests.simulation.broken import BreakRule
from tests.simulation.computed import gather, make
from tests.simulation.directed import Stage, as_story
from tests.simulation.plans import read
from tests.simulation.ring import Node, Refused
from tests.simulation.scenario import insert
from tests.simulation.seeds import many, one
from tests.simulation.test_computed import RUNS, rows_records, seen, tables
from tests.simulation.violations import Violation, found_by, found_in

STEPS = (
    Step.APPEND_AFTER,
    Step.ROWS_BEFORE,
    Step.ROWS_COMPUTED,
    Step.ROWS_AFTER,
    Step.APPLY_BEFORE,
    Step.APPLY_AFTER,
    Step.CURSOR_AFTER,
)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", ["gather", "make"])
@as_story()
async def test_write_whose_origin_is_killed_at_any_step_is_finished_by_the_others(
    stage: Stage, step: Step, kind: str
) -> None:
    op = gather("g", "a") if kind == "gather" else make("g", "a", "m0")

    await tables(stage)
    await asyncio.sleep(5)  # until what came before is stored, too
    stage.at("a", step, Node.kill)
    with contextlib.suppress(Refused):  # at the last step the answer has left
        await stage.submit("a", op)
    await stage.until(lambda: ("a", step) in stage.struck)
    await stage.apply("b", op)
    await stage.settle()
    if kind == "gather":
        assert seen(stage, "a", "g") == ["one"]
    in_the_log = step not in (Step.APPEND_AFTER, Step.ROWS_BEFORE, Step.ROWS_COMPUTED)
    assert {rows.by for rows in rows_records(stage)} <= ({"a"} if in_the_log else {"b", "c"})


@pytest.mark.parametrize("step", STEPS[1:])
@as_story()
async def test_late_rows_of_an_origin_frozen_at_any_step_are_ignored(
    stage: Stage, step: Step
) -> None:
    await tables(stage)
    stage.at("a", step, Node.freeze)
    write = asyncio.ensure_future(stage.submit("a", gather("g", "a"), 100))
    await asyncio.sleep(20)
    await stage.apply("b", gather("g", "b"))
    stage.node("a").thaw()
    assert (await write).status is OutcomeStatus.APPLIED
    await stage.settle()
    assert seen(stage, "a", "g") == ["one"]


@as_story()
async def test_rows_of_two_clusters_in_the_log_are_taken_from_the_first(
    stage: Stage,
) -> None:
    await tables(stage)
    stage.node("c").kill()
    await stage.submit("a", gather("g", "a"))
    (first,) = rows_records(stage)
    core = stage.replica("b").core
    assert first.filling is not None
    rows = read(first.filling.rows)
    rows = stream_of(rows.set_column(2, "n", [[0]]))
    second = replace(first, filling=replace(first.filling, rows=rows))
    await core.own_log.append(replace(second, by="b", epoch=core.own_log.epoch))
    await stage.settle()


@as_story()
async def test_query_whose_spark_dies_is_computed_by_another_cluster(
    stage: Stage,
) -> None:
    await tables(stage)
    stage.node("a").spark.query_s = 5
    write = asyncio.ensure_future(stage.submit("a", gather("g", "a"), 100))
    await stage.until(lambda: Step.ROWS_BEFORE in stage.ring.steps)
    await asyncio.sleep(1)
    stage.node("a").spark.kill()
    await stage.apply("b", gather("g", "b"))
    await stage.settle()
    assert "a" not in {rows.by for rows in rows_records(stage)}
    await asyncio.gather(write, return_exceptions=True)


@as_story()
async def test_rows_in_the_log_are_not_computed_again_after_all_haprocs_were_killed(
    stage: Stage,
) -> None:
    await tables(stage)
    for name in "bc":
        stage.node(name).spark.held.add("gathered")
    stage.at("a", Step.APPLY_BEFORE, Node.kill)
    with pytest.raises(Refused):
        await stage.submit("a", gather("g", "a"))
    for name in "bc":
        stage.node(name).kill()
        stage.node(name).spark.held.clear()
    await stage.settle()
    assert seen(stage, "c", "g") == ["one"]
    assert [rows.by for rows in rows_records(stage)] == ["a"]


@as_story()
async def test_diverged_cluster_computes_no_rows_for_the_others(stage: Stage) -> None:
    await tables(stage)
    stage.node("a").spark.held.add("ids")
    await stage.submit("b", insert("two", "ids", "b"))
    write = asyncio.ensure_future(stage.submit("a", gather("g", "a")))
    await asyncio.sleep(1)
    stage.node("a").spark.mend("INSERT INTO ids VALUES ('odd')")
    at = stage.replica("a").core.schedule.low
    stage.replica("a").core.diverge(Divergence(at, Cause.SKIPPED, applies=True))
    stage.node("a").spark.held.clear()
    await stage.apply("b", gather("g", "b"))
    assert "a" not in {rows.by for rows in rows_records(stage)}
    await stage.until(lambda: seen(stage, "a", "g") == ["one", "two"])
    assert stage.state("a") is State.DIVERGED
    await asyncio.gather(write, return_exceptions=True)


# -- under every kind of fault -----------------------------------------------------------------


def test_ring_with_computed_writes_keeps_its_promises_under_all_faults() -> None:
    reports = list(many(range(RUNS), computing=1))
    assert [(r.seed, r.problems[:3]) for r in reports if r.problems] == []
    steps = [sum(report.steps.get(step, 0) for report in reports) for step in STEPS[1:4]]
    assert min(steps) > 15 * RUNS
    assert sum(report.acknowledged for report in reports) > 20 * RUNS


def lacking(schedule: Schedule) -> list[tuple[int, Operation]]:
    """Return the operations without rows, also those whose turn has not come."""
    return [
        (task.offset, task.op)
        for task in schedule._tasks.values()
        if task.state is TaskState.WAITING and schedule._readiness.lacks_rows(task.offset, task.op)
    ]


def computed_before_its_turn(patch: pytest.MonkeyPatch) -> None:
    """Run a query as soon as it is read from the log."""
    patch.setattr(Schedule, "uncomputed", lacking)


def taken_over_before_its_turn(patch: pytest.MonkeyPatch) -> None:
    """Run a silent origin's query as soon as its rows are missing, before its turn."""
    original = Takeover._look

    async def hasty(self: Takeover) -> None:
        await original(self)
        for offset, op in lacking(self._core.schedule):
            if op.origin != self._core.me and not await progressing(self._core, op.origin):
                self._computing.begin(offset, op)

    patch.setattr(Takeover, "_look", hasty)


def computed_though_it_has_no_rows(patch: pytest.MonkeyPatch) -> None:
    """Compute rows for any operation that an origin has not decided."""
    original = Takeover._look

    async def hasty(self: Takeover) -> None:
        undecided = self._core.schedule.undecided()
        await original(self)
        for owed in undecided:
            self._core.tasks.spawn(self._computing._run(*owed))

    patch.setattr(Takeover, "_look", hasty)


def second_rows_taken(patch: pytest.MonkeyPatch) -> None:
    """Use the newest rows in the log instead of the first."""

    def see(self: Computations, place: int, rows: Rows) -> bool:
        self._found[rows.offset] = RowsLocation(place, rows.count, rows.failure)
        return True

    patch.setattr(Computations, "see", see)


def own_rows_applied(patch: pytest.MonkeyPatch) -> None:
    """Apply the rows that this cluster computed instead of those in the log."""
    own: dict[tuple[Core, int], Filling] = {}
    compute, write = Computing._message, Computing.write

    async def computing(self: Computing, offset: int, op: Operation) -> Rows | Passed:
        message = await compute(self, offset, op)
        if isinstance(message, Rows) and message.filling is not None:
            own[self._core, offset] = message.filling
        return message

    async def writing(self: Computing, unit: Unit, lane: Lane) -> Statement:
        mine = own.get((self._core, unit.version))
        if mine is None or mine.parts:
            return await write(self, unit, lane)
        return SparkPlan(with_rows(mine.plan, mine.rows))

    patch.setattr(Computing, "_message", computing)
    patch.setattr(Computing, "write", writing)


@pytest.mark.parametrize(
    ("break_rule", "expected"),
    [
        (computed_before_its_turn, Violation.MISPLACED),
        (taken_over_before_its_turn, Violation.MISPLACED),
        (computed_though_it_has_no_rows, Violation.MISPLACED),
    ],
)
def test_rule_of_computing_broken_on_purpose_is_found(
    break_rule: BreakRule,
    expected: Violation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_rule(monkeypatch)
    found_in((one(seed, computing=1).problems for seed in range(400)), expected)


def its_own_rows_too_late() -> None:
    """Run the story of an origin whose rows are computed when others have already taken over."""
    test_late_rows_of_an_origin_frozen_at_any_step_are_ignored(Step.ROWS_COMPUTED)


@pytest.mark.parametrize(
    ("break_rule", "found"),
    [
        (
            second_rows_taken,
            test_rows_of_two_clusters_in_the_log_are_taken_from_the_first,
        ),
        (own_rows_applied, its_own_rows_too_late),
    ],
)
def test_rule_about_second_rows_broken_on_purpose_is_found(
    break_rule: BreakRule,
    found: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_rule(monkeypatch)
    found_by(found, Violation.UNEQUAL)
