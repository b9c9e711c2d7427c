"""What may have been applied is never given up: stories that a broken rule ends badly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from haproc.engine.remote import RemoteSession
from haproc.failure import RequestError
from haproc.membership.state import State
from haproc.replicate.agree.poison_rejection import PoisonRejection
from haproc.replicate.log_state.failure_votes import FailureVotes
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.records.control import Abandon, FailureVote
from haproc.replicate.records.operation import Operation
from tests.simulation.directed import Stage, story
from tests.simulation.poisoned import simulate_poison
from tests.simulation.ring import TIMEOUTS, Node
from tests.simulation.spark import SimEngine
from tests.simulation.test_poison import POISON, rows, update
from tests.simulation.test_poison_rejection import (
    LONG_S,
    SEEDS,
    applied_by_one_that_is_away,
    begin,
    kinds,
    sent,
)
from tests.simulation.violations import Violation, found_by


async def committed_without_an_answer(stage: Stage) -> None:
    """One cluster commits it, and never gets to say so."""
    await begin(stage, *"bc")
    stage.node("a").spark.torn = {POISON}
    with contextlib.suppress(RequestError):
        await stage.submit("a", update("poison"), 5)
    await asyncio.sleep(LONG_S)
    for name in "bc":
        stage.node(name).spark.poison = set()
    await stage.settle()
    assert rows(stage, "a") == ["one!"]
    assert kinds(stage, Abandon) == []


async def still_running_at_the_word(stage: Stage) -> None:
    """The last attempt before the word is not over when its caller gives it up."""
    await begin(stage, *"abc")
    spark, attempts = stage.node("a").spark, TIMEOUTS.stuck_after_attempts

    def goes_on(_: Node) -> None:
        spark.poison, spark.statement_s = set(), 2 * TIMEOUTS.apply_s

    stage.at("a", Step.APPLY_BEFORE, *[nothing] * (attempts - 1), goes_on, poisoned_again)
    await sent(stage)
    await stage.until(lambda: bool(kinds(stage, Abandon)), LONG_S)
    spark.statement_s = 0
    await asyncio.sleep(2 * TIMEOUTS.apply_s)
    await stage.settle()
    assert rows(stage, "a") == ["one"]


def nothing(_: Node) -> None:
    """No change this time."""


def poisoned_again(node: Node) -> None:
    node.spark.poison, node.spark.statement_s = {POISON}, 0


async def applied_after_the_word(stage: Stage) -> None:
    """A cluster that has said its word is mended, applies it, tells its client, and dies."""
    await begin(stage, *"abc")
    stage.node("c").kill()
    await sent(stage)
    await stage.until(lambda: {*kinds(stage, FailureVote)} == {"a", "b"}, LONG_S)
    stage.node("b").spark.poison = set()
    await stage.until(lambda: stage.state("b") is State.READY, LONG_S)
    assert (await stage.submit("b", update("poison"))).status is OutcomeStatus.APPLIED
    await asyncio.sleep(1)  # stored: it is not looked at again
    stage.node("b").kill()
    stage.node("c").start()
    await asyncio.sleep(LONG_S)
    for name in "ac":
        stage.node(name).spark.poison = set()
    await stage.settle()
    assert rows(stage, "a") == ["one!"]


async def withdrawn_while_it_is_decided(stage: Stage) -> None:
    """The one that gives it up sleeps before it says so; meanwhile another one is mended."""
    await begin(stage, *"abc")
    frozen: list[Node] = []

    def sleep(node: Node) -> None:
        if not frozen:
            frozen.append(node)
            node.freeze()

    for name in "abc":
        stage.at(name, Step.ABANDON_BEFORE, *[sleep] * 100)
    await sent(stage)
    await stage.until(lambda: bool(frozen), LONG_S)
    mended = next(name for name in "abc" if name != frozen[0].name)
    for name in "abc":
        if name not in (mended, frozen[0].name):
            stage.node(name).kill()
    stage.node(mended).spark.poison = set()
    await stage.operators(mended).retry(mended, stage.stuck_at(mended) or 0)
    await stage.until(lambda: stage.state(mended) is State.READY, LONG_S)
    assert (await stage.submit(mended, update("poison"))).status is OutcomeStatus.APPLIED
    stage.node(mended).kill()
    frozen[0].thaw()
    await asyncio.sleep(30)
    assert kinds(stage, Abandon) != []
    for node in stage.ring.nodes.values():
        node.spark.poison = set()
    await stage.settle()
    assert rows(stage, "a") == ["one!"]


STORIES = (
    committed_without_an_answer,
    still_running_at_the_word,
    applied_after_the_word,
    withdrawn_while_it_is_decided,
    applied_by_one_that_is_away,
)


@pytest.mark.parametrize("tell", STORIES)
def test_nothing_that_may_have_been_applied_is_given_up(
    tell: Callable[[Stage], Coroutine[Any, Any, None]],
) -> None:
    story(tell)


def test_writes_of_which_some_are_poison_keep_every_promise_under_every_fault() -> None:
    logging.disable(logging.CRITICAL)
    try:
        runs = [simulate_poison(seed) for seed in SEEDS]
    finally:
        logging.disable(logging.NOTSET)
    assert [(r.seed, r.problems[:3]) for r, _ in runs if r.problems] == []
    assert sum(abandoned for _, abandoned in runs) > 1


# -- rules broken on purpose ---------------------------------------------------------------------


def not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """Say the word without asking the tables."""

    async def never(self: SimEngine, tables: Sequence[str], application: str) -> dict[str, int]:
        return {}

    patch.setattr(SimEngine, "offsets_applied", never)


def not_fenced(patch: pytest.MonkeyPatch) -> None:
    """Say the word while an attempt may be running."""

    async def nothing(self: RemoteSession, ids: int = 1) -> None:
        self._new_epoch()

    patch.setattr(RemoteSession, "move_on", nothing)


def not_withdrawn(patch: pytest.MonkeyPatch) -> None:
    """Try again without taking the word back."""

    async def at_once(self: PoisonRejection, offset: int, op: Operation, *_: object) -> bool:
        if self.has_voted(offset):
            await self._rest(offset, op, self._core.troubles.stands(offset, ""))
        return not self.abandoned(offset)

    patch.setattr(PoisonRejection, "may_run", at_once)


def counted_though_withdrawn(patch: pytest.MonkeyPatch) -> None:
    """Take every decision for valid."""
    patch.setattr(FailureVotes, "_valid", lambda self, at, word, claims: True)


def away_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """Do without those that say nothing."""
    original = FailureVotes.abandon

    def alone(
        self: FailureVotes, offset: int, op_id: str, by: tuple[str, int], *rest: Any
    ) -> object:
        read_to, _, absent = rest
        return original(self, offset, op_id, by, read_to, self.valid_votes(offset), absent)

    patch.setattr(FailureVotes, "abandon", alone)


@pytest.mark.parametrize(
    ("break_rule", "tell", "expected"),
    [
        (not_looked_at, committed_without_an_answer, Violation.UNEQUAL),
        (not_fenced, still_running_at_the_word, Violation.UNEQUAL),
        (not_withdrawn, applied_after_the_word, Violation.UNEQUAL),
        (counted_though_withdrawn, withdrawn_while_it_is_decided, Violation.UNEQUAL),
        (away_is_ignored, applied_by_one_that_is_away, Violation.DIVERGED),
    ],
)
def test_rule_of_giving_up_broken_on_purpose_is_found(
    break_rule: Callable[[pytest.MonkeyPatch], None],
    tell: Callable[[Stage], Coroutine[Any, Any, None]],
    expected: Violation,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    break_rule(monkeypatch)
    found_by(lambda: story(tell), expected)
