"""A retry is applied once or refused, however late it arrives and wherever it was delayed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from haproc.failure import RequestError, WriteOutcome
from haproc.membership.state import State
from haproc.replicate.log_state.idempotency_window import IdempotencyWindow, Past, RecordJudgement
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.writes import Writes
from tests.simulation.broken import BreakRule
from tests.simulation.directed import Stage, as_story, ddl
from tests.simulation.ring import LIMITS, Node
from tests.simulation.scenario import TOO_LATE, insert
from tests.simulation.seeds import SEEDS, many, one
from tests.simulation.violations import Violation, found_in

RUNS = SEEDS // 2
WINDOW = 48
SHORT = replace(LIMITS, window_records=20)


def test_ring_whose_window_is_too_short_for_retries_applies_none_twice() -> None:
    reports = list(many(range(RUNS), window_records=WINDOW))
    assert [(r.seed, r.problems[:3]) for r in reports if r.problems] == []
    assert sum(report.too_late for report in reports) > RUNS
    assert sum(report.acknowledged for report in reports) > 20 * RUNS


async def others(stage: Stage, count: int) -> None:
    """Submit other requests, one every half second."""
    for n in range(count):
        await stage.submit("c", insert(f"other{stage.now}-{n}", "t", "c"))
        await asyncio.sleep(0.5)


def rows(stage: Stage, name: str, op_id: str) -> int:
    return [row[0] for row in stage.node(name).spark.dump()["t"]].count(op_id)


async def refused(stage: Stage, name: str, age_s: float) -> None:
    """Check that a retry is refused at once because it comes too late."""
    began = stage.now
    with pytest.raises(RequestError) as caught:
        await stage.submit(name, insert("one", "t", name), age_s=age_s)
    assert (caught.value.error_class, caught.value.outcome) == (TOO_LATE, WriteOutcome.UNKNOWN)
    assert stage.now - began < 10


@as_story(limits=SHORT)
async def test_retry_within_the_window_is_answered_and_a_later_one_is_refused(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    began = stage.now
    await stage.submit("a", insert("one", "t", "a"))
    for name in "abc":
        await stage.apply(name, insert("one", "t", name), age_s=1)
    await others(stage, 30)
    for name in "abc":
        await refused(stage, name, stage.now - began)
    await stage.settle()
    assert [rows(stage, name, "one") for name in "abc"] == [1, 1, 1]


@as_story(limits=SHORT)
async def test_retry_after_a_restart_of_all_processes_is_judged_as_before(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    began = stage.now
    await stage.submit("a", insert("one", "t", "a"))
    await others(stage, 30)
    await stage.submit("a", insert("late", "t", "a"))
    late = stage.now
    await stage.ready("a", "b", "c")
    await asyncio.sleep(1)
    for node in stage.ring.nodes.values():
        node.kill()
    for node in stage.ring.nodes.values():
        node.start()
    await stage.ring.settled()
    for name in "abc":
        # Nobody here remembers how it ended, only that it did.
        outcome = await stage.submit(name, insert("late", "t", name), age_s=stage.now - late)
        assert (outcome.status, outcome.assumed) == (OutcomeStatus.APPLIED, True)
        await refused(stage, name, stage.now - began)
        # First sent before the processes were started, and never seen: it is taken.
        new = insert(f"new{name}", "t", name)
        await stage.apply(name, new, age_s=stage.now - late)
    await stage.settle()
    assert [rows(stage, name, "one") for name in "abc"] == [1, 1, 1]


@pytest.mark.parametrize("where", ["sockets", "append"])
@as_story(limits=SHORT)
async def test_first_attempt_delayed_in_a_frozen_process_adds_no_second_row(
    stage: Stage, where: str
) -> None:
    """Meanwhile another cluster has answered the client, and the window has passed since."""
    await stage.submit("a", ddl("a"))
    await stage.ready("a", "b", "c")
    if where == "sockets":
        stage.node("a").freeze()
    else:
        stage.at("a", Step.APPEND_BEFORE, Node.freeze)
    sleeping = asyncio.ensure_future(stage.submit("a", insert("one", "t", "a"), 1000))
    await asyncio.sleep(2)
    await stage.submit("b", insert("one", "t", "b"), age_s=2)
    await others(stage, 30)
    stage.node("a").thaw()
    assert (await sleeping).status is OutcomeStatus.APPLIED  # the outcome of the other copy
    await stage.settle()
    assert [rows(stage, name, "one") for name in "abc"] == [1, 1, 1]


@as_story(limits=SHORT)
async def test_retry_repeated_for_long_is_answered_while_a_copy_is_within_the_window(
    stage: Stage,
) -> None:
    """A copy may be a repetition itself: the first one is no longer in the window at the end."""
    await stage.submit("a", ddl("a"))
    began = stage.now
    await stage.submit("a", insert("one", "t", "a"))
    for _ in range(4):
        await others(stage, 8)
        # Appended past whoever knows of it, as by a HAProc that is behind.
        op = replace(insert("one", "t", "b"), since=3, window=SHORT.window_records)
        replica = stage.replica("b")
        await replica.writes._append(op)
        for name in "abc":
            await stage.ready(name)
            await stage.apply(name, insert("one", "t", name), age_s=stage.now - began)
    await stage.settle()
    assert [rows(stage, name, "one") for name in "abc"] == [1, 1, 1]


@as_story()
async def test_reader_with_a_shorter_window_than_the_others_stops_until_its_window_is_as_long(
    stage: Stage,
) -> None:
    await stage.submit("a", ddl("a"))
    await stage.ready("a", "b", "c")
    stage.node("c").kill()
    fewer = replace(LIMITS, window_records=LIMITS.window_records - 1)
    stage.ring.configure(limits=fewer)
    stage.node("c").start()
    await stage.ready("c")  # what it has applied needs no judging
    await stage.submit("a", insert("one", "t", "a"))
    await stage.until(lambda: stage.state("c") is State.TOO_FAR_BEHIND)
    replica = stage.replica("c")
    assert "limits.window_records = 5000" in replica.core.condition.reason
    stage.node("c").kill()
    stage.ring.configure(limits=LIMITS)
    await stage.settle()


# -- broken rules ------------------------------------------------------------------------------


def late_retries_accepted(patch: pytest.MonkeyPatch) -> None:
    """Accept a request that may repeat a forgotten one."""
    original = IdempotencyWindow.see

    def see(
        self: IdempotencyWindow, offset: int, key: tuple[str, str], _: int, window: int
    ) -> RecordJudgement:
        return original(self, offset, key, offset, window)

    patch.setattr(IdempotencyWindow, "see", see)
    patch.setattr(Past, "since", lambda self, *_: self._ends[-1])


def ages_ignored(patch: pytest.MonkeyPatch) -> None:
    """Treat every request as one that is sent for the first time."""
    original = Writes.since
    patch.setattr(Writes, "since", lambda self, age_s=0.0, arrived_s=None: original(self))


@pytest.mark.parametrize("break_rule", [late_retries_accepted, ages_ignored])
def test_rule_of_late_retries_broken_on_purpose_is_found(
    break_rule: BreakRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch)
    runs = (one(seed, window_records=WINDOW).problems for seed in range(100))
    # The copy that comes late stands behind what began after the first one was answered.
    found_in(runs, Violation.DOUBLED, beside=[Violation.ORDER])
