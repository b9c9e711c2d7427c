"""Tests of INSERTs that run as one statement, whose first attempt Delta does not guard."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from haproc.config.sections import Limits
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Lane
from haproc.engine.statement import SqlText
from haproc.replicate.apply.doubts import Doubts
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OperationOutcome, OutcomeStatus
from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.queue.units import Intent, Unit, combine
from haproc.replicate.records.operation import Operation
from tests.simulation.directed import Script, Stage, as_story, ddl, story
from tests.simulation.ring import LIMITS, Node
from tests.simulation.scenario import insert
from tests.simulation.violations import found_by
from tests.unit.operations import arrow

OPERATIONS = [insert(name, "t", "a") for name in ("two", "three", "four")]
ROWS = sorted([("one",), ("two",), ("three",), ("four",)])


def combined() -> str:
    """Return the statement that the INSERTs are combined into."""
    found = combine(OPERATIONS)
    assert isinstance(found, SqlText)
    return found.sql


async def sent_together(
    stage: Stage, operations: Sequence[Operation] = OPERATIONS
) -> list[asyncio.Future[OperationOutcome]]:
    """Let the operations wait for a running INSERT, and then let that continue."""
    spark = stage.node("a").spark
    spark.held.add("t")
    sent: list[asyncio.Future[OperationOutcome]] = []
    for op in (insert("one", "t", "a"), *operations):
        sent.append(asyncio.ensure_future(stage.submit("a", op)))
        await stage.until(lambda: stage.replica("a").core.schedule.pending == len(sent))
    spark.held.clear()
    return sent


async def committed_without_an_answer(stage: Stage) -> None:
    """The combined statement commits, and seems to fail."""
    await stage.submit("a", ddl("a"))
    spark = stage.node("a").spark
    spark.torn = {combined()}
    sent = await sent_together(stage)
    await stage.until(lambda: len(spark.dump()["t"]) >= len(ROWS))
    spark.torn = set()
    assert [(await each).status for each in sent] == [OutcomeStatus.APPLIED] * len(ROWS)
    assert spark.dump()["t"] == ROWS
    await stage.settle()


async def committed_and_refused(stage: Stage) -> None:
    """The combined statement commits, and a later error looks like its own."""
    await stage.submit("a", ddl("a"))
    spark = stage.node("a").spark
    spark.torn = {combined()}
    spark.torn_error = EngineError(
        ErrorKind.APPLICATION, "'x' is no number", error_class="CAST_INVALID_INPUT"
    )
    sent = await sent_together(stage)
    assert [(await each).status for each in sent] == [OutcomeStatus.APPLIED] * len(ROWS)
    assert spark.dump()["t"] == ROWS
    await stage.settle()


async def committed_by_a_process_that_died(stage: Stage) -> None:
    """The statement commits, its process dies before it stores that, and a new one begins."""
    await stage.submit("a", ddl("a"))
    await stage.ready("a")
    stage.at("a", Step.APPLY_AFTER, lambda node: None, Node.kill)
    sent = await sent_together(stage)
    await stage.until(lambda: stage.alive_state("a") is None)
    for each in sent:
        each.cancel()
    stage.node("a").start()
    await stage.ready("a")
    assert stage.node("a").spark.dump()["t"] == ROWS
    await stage.settle()


def batches_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """Run a batch again without checking whether it is committed."""
    original = Doubts.settled

    async def careless(self: Doubts, unit: Unit, lane: Lane) -> bool:
        return unit.intent is not Intent.BATCH and await original(self, unit, lane)

    patch.setattr(Doubts, "settled", careless)


def errors_believed(patch: pytest.MonkeyPatch) -> None:
    """Take an application error for proof that nothing was committed."""

    async def believes(self: Doubts, unit: Unit) -> bool:
        return False

    patch.setattr(Doubts, "committed", believes)


def beginning_without_a_look(patch: pytest.MonkeyPatch) -> None:
    """Begin as if more was missed than is read ahead: not all tables are checked."""
    patch.setattr(Schedule, "restore", lambda self, applied: [])


@as_story()
async def test_first_attempt_of_a_batch_has_the_note_and_no_marker(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    sent = await sent_together(stage)
    assert [(await each).status for each in sent] == [OutcomeStatus.APPLIED] * len(ROWS)
    spark = stage.node("a").spark
    assert "a" in stage.order(combined())
    assert spark._notes["t"] > 0
    assert "t" not in spark._marks
    await stage.settle()


@pytest.mark.parametrize(
    "script",
    [committed_without_an_answer, committed_and_refused, committed_by_a_process_that_died],
)
def test_batch_that_committed_is_applied_once(script: Script) -> None:
    story(script)


def test_batch_of_a_table_that_is_not_checked_at_the_beginning_is_applied_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beginning_without_a_look(monkeypatch)
    story(committed_by_a_process_that_died)


def test_rules_of_checking_a_batch_broken_on_purpose_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        errors_believed(patch)
        found_by(lambda: story(committed_and_refused), 'spark.dump()["t"] == ROWS')
    batches_not_looked_at(monkeypatch)
    found_by(lambda: story(committed_without_an_answer), 'spark.dump()["t"] == ROWS')
    beginning_without_a_look(monkeypatch)
    found_by(lambda: story(committed_by_a_process_that_died), 'spark.dump()["t"] == ROWS')


FORMS = [OPERATIONS, [arrow(name, "t") for name in ("two", "three", "four")]]
SMALLER = replace(
    LIMITS, batch_operations_max=1, batch_rows_max=1, batch_bytes_max=1, batch_arrow_bytes_max=1
)


@pytest.mark.parametrize("step", [Step.INTENT_AFTER, Step.APPLY_AFTER])
@pytest.mark.parametrize("operations", FORMS, ids=["text", "arrow"])
@pytest.mark.parametrize(
    ("before", "after", "again"),
    [
        (LIMITS, SMALLER, ["one", "two three four"]),
        (LIMITS, replace(LIMITS, batch_operations_max=2), ["one", "two three four"]),
        (replace(LIMITS, batch_operations_max=2), LIMITS, ["one", "two three", "four"]),
    ],
)
def test_batch_repeated_by_a_process_with_other_limits_has_the_same_operations(
    before: Limits, after: Limits, again: list[str], operations: list[Operation], step: Step
) -> None:
    async def script(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        await stage.ready("a")
        runs = 1 if step is Step.INTENT_AFTER else 2  # the first one has no intent
        stage.at("a", step, *[lambda node: None] * (runs - 1), Node.kill)
        sent = await sent_together(stage, operations)
        await stage.until(lambda: stage.alive_state("a") is None)
        for each in sent:
            each.cancel()
        stage.ring.configure(limits=after)
        stage.node("a").start()
        await stage.ready("a")
        await stage.settle()
        assert stage.node("a").spark.dump()["t"] == ROWS
        inserts = [sql for _, name, sql in stage.commits if name == "a" and "INTO t" in sql]
        assert [" ".join(re.findall(r"'(\w+)'", sql)) for sql in inserts] == again

    story(script, limits=before)


NAMES = ("two", "three", "bad", "four", "five", "six", "seven")
CHECKED = "CREATE TABLE t (v TEXT CHECK (v <> 'bad'))"


@pytest.mark.parametrize("times", range(6))
@pytest.mark.parametrize("step", [Step.INTENT_AFTER, Step.APPLY_AFTER, Step.CURSOR_AFTER])
@as_story()
async def test_halves_of_a_failed_batch_are_applied_once_when_the_process_dies(
    stage: Stage, step: Step, times: int
) -> None:
    await stage.submit("a", ddl("a", sql=CHECKED))
    await stage.ready("a")
    stage.at("a", step, *[lambda node: None] * times, Node.kill)
    sent = await sent_together(stage, [insert(name, "t", "a") for name in NAMES])
    await stage.until(lambda: stage.alive_state("a") is None or all(each.done() for each in sent))
    for each in sent:
        each.cancel()
    stage.at("a", step)
    stage.node("a").start()
    await stage.ready("a")
    await stage.settle()
    kept = sorted((name,) for name in ("one", *NAMES) if name != "bad")
    assert stage.node("a").spark.dump()["t"] == kept
    assert stage.node("b").spark.dump()["t"] == kept


@as_story()
async def test_batch_with_one_failing_operation_runs_in_halves(stage: Stage) -> None:
    await stage.submit("a", ddl("a", sql=CHECKED))
    sent = await sent_together(stage, [insert(name, "t", "a") for name in NAMES])
    found = [(await each).status for each in sent]
    assert [status is OutcomeStatus.FAILED for status in found] == [
        name == "bad" for name in ("one", *NAMES)
    ]
    inserts = [sql for _, name, sql in stage.commits if name == "a" and "INTO t" in sql]
    assert [re.findall(r"'(\w+)'", sql) for sql in inserts] == [
        ["one"],
        ["two"],
        ["three"],
        ["four", "five", "six", "seven"],
    ]
