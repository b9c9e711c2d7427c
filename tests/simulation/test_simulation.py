"""The promises hold over many seeds, and the checker finds rules that are broken on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from haproc.classify.model import Kind
from haproc.engine.interface import Lane, TransactionMarker
from haproc.engine.statement import SqlText
from haproc.replicate.apply import applier
from haproc.replicate.apply.doubts import Doubts, about
from haproc.replicate.log_state.idempotency_window import IdempotencyWindow, RecordJudgement
from haproc.replicate.queue.outcomes import OperationOutcome, OutcomeStatus
from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.queue.turns import Turns
from haproc.replicate.queue.units import Intent, Task, Unit
from tests.simulation.broken import BreakRule, batch_formed_anew, marks_dropped, not_fenced
from tests.simulation.directed import Stage, ddl, story
from tests.simulation.scenario import insert, simulate
from tests.simulation.seeds import SEEDS, many, one
from tests.simulation.violations import Violation, found_by, found_in


def test_ring_under_every_kind_of_fault_keeps_its_promises() -> None:
    reports = list(many(range(SEEDS)))
    assert [(r.seed, r.problems[:3]) for r in reports if r.problems] == []
    # The runs were not idle: faults struck and writes got through.
    assert sum(report.kills for report in reports) > 5 * SEEDS
    assert sum(report.drains for report in reports) > SEEDS
    assert sum(report.acknowledged for report in reports) > 20 * SEEDS


async def committed_without_an_answer(stage: Stage) -> None:
    """The first attempt of an INSERT, which Delta does not guard, commits but returns an error."""
    await stage.submit("a", ddl("a"))
    spark, op = stage.node("a").spark, insert("one", "t", "a")
    assert isinstance(op.write, SqlText)
    spark.torn = {op.write.sql}
    submitted = asyncio.ensure_future(stage.submit("a", op))
    await stage.until(lambda: bool(spark.dump()["t"]))
    spark.torn = set()
    assert (await submitted).status is OutcomeStatus.APPLIED
    assert spark.dump()["t"] == [("one",)]
    await stage.settle()


def test_insert_that_committed_without_an_answer_is_applied_once() -> None:
    story(committed_without_an_answer)


def test_seed_run_twice_replays_exactly() -> None:
    assert simulate(7) == simulate(7)


def no_intent(patch: pytest.MonkeyPatch) -> None:
    """Start DDL without storing that it may have run."""
    original = Schedule._start

    def careless(
        self: Schedule,
        tasks: Sequence[Task],
        intent: Intent,
        text: str = "",
        **apart: bool,
    ) -> Unit:
        ddl = tasks[0].op.kind in (Kind.CREATE_TABLE, Kind.DROP_TABLE)
        return original(self, tasks, Intent.NONE if ddl else intent, text, **apart)

    patch.setattr(Schedule, "_start", careless)


def no_request_ids(patch: pytest.MonkeyPatch) -> None:
    """Apply every record, also repeated ones."""
    patch.setattr(IdempotencyWindow, "see", lambda self, *sighted, **keywords: RecordJudgement.NEW)


def cursor_before_data(patch: pytest.MonkeyPatch) -> None:
    """Mark operations as done before they have run."""
    original = applier.Applier._execute

    async def hasty(self: applier.Applier, unit: Unit, lane: object) -> OperationOutcome | None:
        self._core.schedule.complete(unit)
        await self._core.store()
        return await original(self, unit, lane)  # type: ignore[arg-type]

    patch.setattr(applier.Applier, "_execute", hasty)


def tables_ignored(patch: pytest.MonkeyPatch) -> None:
    """Run all operations in parallel."""
    patch.setattr(Turns, "_is_free", lambda self, offset, op: True)


def not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """Run a failed INSERT again without a check whether the table has its commit."""

    original = Doubts.settled

    async def never(self: Doubts, unit: Unit, lane: Lane) -> bool:
        return bool(about(unit.operations[0])) and await original(self, unit, lane)

    patch.setattr(Doubts, "settled", never)


def doubt_taken_for_done(patch: pytest.MonkeyPatch) -> None:
    """Treat a statement in doubt as applied."""

    original = applier.Applier._execute

    async def impatient(self: applier.Applier, unit: Unit, lane: object) -> OperationOutcome | None:
        if unit.in_doubt:
            return OperationOutcome(OutcomeStatus.APPLIED)
        return await original(self, unit, lane)  # type: ignore[arg-type]

    patch.setattr(applier.Applier, "_execute", impatient)


def all_unguarded(patch: pytest.MonkeyPatch) -> None:
    """Send every statement without a guard."""

    def mark(application: str, version: int, guarded: bool) -> TransactionMarker:
        return TransactionMarker(application, version, guarded=False)

    patch.setattr(applier, "TransactionMarker", mark)


def test_rule_of_checking_failed_inserts_broken_on_purpose_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    not_looked_at(monkeypatch)
    found_by(lambda: story(committed_without_an_answer), 'spark.dump()["t"] == [("one",)]')


@pytest.mark.parametrize(
    ("break_rule", "expected"),
    [
        (batch_formed_anew, Violation.DOUBLED),
        (no_intent, Violation.DIVERGED),
        (no_request_ids, Violation.DOUBLED),
        (cursor_before_data, Violation.LOST),
        (tables_ignored, Violation.LOST),
        (marks_dropped, Violation.DOUBLED),
        (not_fenced, Violation.DOUBLED),
        (doubt_taken_for_done, Violation.LOST),
        (all_unguarded, Violation.DOUBLED),
    ],
)
def test_rule_broken_on_purpose_is_found(
    break_rule: BreakRule,
    expected: Violation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_rule(monkeypatch)
    # What few seeds find is looked for where such a seed is near.
    first = {no_intent: 5, not_fenced: 85}.get(break_rule, 0)  # type: ignore[arg-type]
    # Who finds itself different applies nothing more, and lacks what comes later; an old attempt
    # that goes on overwrites what came after it.
    beside = {Violation.LOST} if break_rule in (no_intent, not_fenced) else set()
    found_in((one(seed).problems for seed in range(first, first + 400)), expected, beside)
