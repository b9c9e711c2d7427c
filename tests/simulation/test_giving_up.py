"""Operations that no cluster can apply: the ring gives them up, and none that any has applied.

Docs: docs/design.md, "What no cluster can apply".
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from haproc.engine.remote import RemoteSession
from haproc.failure import ErrorClass, RequestError
from haproc.membership.state import State
from haproc.replicate.agree.giving_up import GivingUp
from haproc.replicate.heard.words import Words
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import Status
from haproc.replicate.records.contents import Verify
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.words import Abandon, Able, Unable
from tests.simulation.directed import Stage, ddl, story
from tests.simulation.poisoned import simulate_poison
from tests.simulation.ring import MEMBERSHIP, TIMEOUTS, Node
from tests.simulation.scenario import insert
from tests.simulation.spark import SimEngine
from tests.simulation.test_poison import POISON, rows, update
from tests.simulation.violations import Violation, found_by

LONG_S = 200
SEEDS = range(5, 11)


def poison(stage: Stage, *names: str, sql: str = POISON) -> None:
    """Have these clusters fail a statement for reasons of the environment, for ever."""
    for name in names:
        stage.node(name).spark.poison = {sql}


async def begin(stage: Stage, *poisoned: str) -> None:
    """A table with a row, on clusters of which some cannot apply the poison."""
    await stage.submit("a", ddl("a"))
    await stage.submit("a", insert("one", "t", "a"))
    poison(stage, *poisoned)


async def given_up(stage: Stage, name: str, op_id: str = "poison") -> None:
    """A client is told that the operation was given up."""
    outcome = await stage.submit(name, update(op_id), LONG_S)
    assert outcome.status is Status.REJECTED
    assert outcome.failure is not None and outcome.failure.error_class == ErrorClass.GIVEN_UP
    assert "out of memory" in outcome.failure.message


async def sent(stage: Stage, name: str = "a") -> int:
    """Send the poison; its client gives up waiting. Return its offset."""
    at = stage.ring.store.end
    with pytest.raises(RequestError):
        await stage.submit(name, update("poison"), 5)
    return at


def kinds(stage: Stage, kind: type) -> list[str]:
    return [getattr(m, "cluster", "") for m in stage.messages() if isinstance(m, kind)]


def test_operation_that_no_cluster_can_apply_is_rejected_everywhere_and_doors_reopen() -> None:
    async def tell(stage: Stage) -> None:
        await begin(stage, *"abc")
        await sent(stage)
        await stage.until(lambda: all(stage.state(name) is State.STUCK for name in "abc"))
        await stage.until(lambda: all(stage.state(name) is State.READY for name in "abc"), LONG_S)
        for name in "abc":
            await given_up(stage, name)
        await stage.submit("b", insert("two", "t", "b"))
        await stage.settle()
        assert rows(stage, "c") == ["one", "two"]
        assert sorted(kinds(stage, Unable)) == ["a", "b", "c"]
        assert kinds(stage, Verify) == []

    story(tell)


def test_operation_that_one_cluster_applied_is_never_given_up() -> None:
    async def tell(stage: Stage) -> None:
        await begin(stage, *"bc")
        assert (await stage.submit("a", update("poison"))).status is Status.APPLIED
        await stage.until(lambda: all(stage.state(name) is State.STUCK for name in "bc"))
        await asyncio.sleep(LONG_S)
        assert all(stage.state(name) is State.STUCK for name in "bc")
        # They know that it is applied on a, and say nothing.
        assert kinds(stage, Abandon) == kinds(stage, Unable) == []
        for name in "bc":
            stage.node(name).spark.poison = set()
        await stage.settle()
        assert rows(stage, "b") == ["one!"]

    story(tell)


async def applied_by_one_that_is_away(stage: Stage) -> None:
    """It is applied and acknowledged where nobody can ask."""
    await begin(stage, *"bc")
    assert (await stage.submit("a", update("poison"))).status is Status.APPLIED
    stage.node("a").kill()
    await asyncio.sleep(LONG_S)
    assert {*kinds(stage, Unable)} == {"b", "c"}
    stage.node("a").start()
    await asyncio.sleep(LONG_S)
    for name in "bc":
        stage.node(name).spark.poison = set()
    await stage.settle()
    assert rows(stage, "b") == ["one!"]


def test_cluster_that_is_mended_takes_its_word_back_and_applies_for_all() -> None:
    async def tell(stage: Stage) -> None:
        await begin(stage, *"abc")
        stage.node("a").kill()
        await sent(stage, "b")
        await stage.until(lambda: {*kinds(stage, Unable)} == {"b", "c"}, LONG_S)
        stage.node("b").spark.poison = set()
        await stage.until(lambda: rows(stage, "b") == ["one!"], LONG_S)
        assert "b" in kinds(stage, Able)
        for name in "ac":
            stage.node(name).spark.poison = set()
        await stage.settle()
        assert kinds(stage, Abandon) == []

    story(tell)


def test_member_that_returns_completes_the_words_of_the_others() -> None:
    async def tell(stage: Stage) -> None:
        await begin(stage, *"abc")
        stage.node("a").kill()
        await sent(stage, "b")
        await asyncio.sleep(LONG_S)
        assert kinds(stage, Abandon) == []
        stage.node("a").start()
        await stage.until(lambda: stage.alive_state("a") is State.READY, LONG_S)
        await given_up(stage, "a")
        await stage.settle()
        assert rows(stage, "a") == ["one"]

    story(tell)


def test_member_that_dies_after_its_word_is_covered_by_it_and_passes_over_when_it_is_back() -> None:
    async def tell(stage: Stage) -> None:
        await begin(stage, *"abc")
        await sent(stage)
        await stage.until(lambda: "a" in kinds(stage, Unable), LONG_S)
        stage.node("a").kill()
        await stage.until(lambda: stage.state("b") is State.READY, LONG_S)
        await given_up(stage, "b")
        stage.node("a").spark.poison = set()
        stage.node("a").start()
        await stage.settle()
        assert rows(stage, "a") == ["one"]
        await given_up(stage, "a")

    story(tell)


def test_whole_ring_restarted_after_the_words_still_gives_up() -> None:
    async def tell(stage: Stage) -> None:
        await begin(stage, *"abc")
        await sent(stage)
        await stage.until(lambda: {*kinds(stage, Unable)} >= {"a", "b"}, LONG_S)
        for name in "abc":
            stage.node(name).kill()
        for name in "abc":
            stage.node(name).start()
        await stage.until(lambda: bool(kinds(stage, Abandon)), LONG_S)
        await stage.settle()
        assert rows(stage, "a") == ["one"]

    story(tell)


def test_ddl_that_no_cluster_can_run_is_given_up_and_verified() -> None:
    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        sql = "CREATE TABLE u (x)"
        poison(stage, *"abc", sql=sql)
        with pytest.raises(RequestError):
            await stage.submit("a", ddl("a", "poison", sql), 5)
        await stage.until(lambda: bool(kinds(stage, Abandon)), LONG_S)
        await stage.settle()
        assert stage.tables("b") == {"t"}
        assert len(kinds(stage, Verify)) >= 1
        outcome = await stage.submit("c", ddl("a", "poison", sql))
        assert outcome.status is Status.REJECTED

    story(tell)


def test_poison_in_a_combined_statement_is_given_up_alone() -> None:
    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        await stage.submit("a", insert("zero", "t", "a"))
        for name in "abc":
            stage.node(name).spark.poison_word = "'bad'"
            stage.node(name).spark.held.add("t")
        ops = [insert(op_id, "t", "a") for op_id in ("one", "two", "bad", "three")]
        waiting = [asyncio.ensure_future(stage.submit("a", op, LONG_S)) for op in ops]
        await asyncio.sleep(1)
        for name in "abc":
            stage.node(name).spark.held.clear()
        await asyncio.gather(*waiting, return_exceptions=True)
        await stage.until(lambda: bool(kinds(stage, Abandon)), LONG_S)
        await stage.settle()
        assert rows(stage, "c") == ["one", "three", "two", "zero"]
        outcome = await stage.submit("b", ops[2])
        assert outcome.status is Status.REJECTED

    story(tell)


def test_statement_that_kills_every_spark_is_given_up() -> None:
    async def tell(stage: Stage) -> None:
        await begin(stage)
        for name in "abc":
            stage.node(name).spark.deadly = {POISON}
        with pytest.raises(RequestError):
            await stage.submit("a", update("poison"), 5)
        await stage.until(lambda: bool(kinds(stage, Abandon)), 4 * LONG_S)
        await stage.settle()
        assert rows(stage, "c") == ["one"]

    story(tell)


# -- on demand -----------------------------------------------------------------------------------


PATIENT = replace(TIMEOUTS, give_up_after_s=3600)


async def patient(stage: Stage) -> int:
    """All fail, and nobody would give up by itself for a long time."""
    await begin(stage, *"abc")
    assert stage.ring.config.timeouts is PATIENT
    return await sent(stage)


async def reject(stage: Stage, name: str, offset: int, *without: str) -> tuple[str, list[str]]:
    told = await stage.operators(name).reject(name, offset, without)
    missing = told["missing"]
    assert isinstance(missing, list)
    return str(told["status"]), [str(each) for each in missing]


def test_operator_has_every_cluster_say_it_and_the_last_one_gives_it_up() -> None:
    async def tell(stage: Stage) -> None:
        offset = await patient(stage)
        assert await reject(stage, "a", offset) == ("unable", ["b", "c"])
        shown = await stage.operators("b").show(offset)
        assert shown["unable"] == ["a"]
        assert await reject(stage, "b", offset) == ("unable", ["c"])
        assert await reject(stage, "c", offset) == ("rejected", [])
        assert await reject(stage, "a", offset) == ("rejected", [])
        await given_up(stage, "b")
        await stage.settle()

    story(tell, timeouts=PATIENT)


def test_operator_cannot_give_up_what_was_applied_or_is_not_failing() -> None:
    async def tell(stage: Stage) -> None:
        await begin(stage, *"bc")
        at = stage.ring.store.end
        assert (await stage.submit("a", update("poison"))).status is Status.APPLIED
        await stage.until(lambda: stage.state("c") is State.STUCK)
        with pytest.raises(RequestError, match="has an outcome on cluster a"):
            await reject(stage, "c", at)
        with pytest.raises(RequestError, match="it is done here"):
            await reject(stage, "a", at)
        with pytest.raises(RequestError, match="it can say itself"):
            await reject(stage, "c", at, "b")
        assert kinds(stage, Unable) == []

    story(tell)


def test_operator_vouches_for_one_that_is_away_and_passes_over_it_when_it_is_back() -> None:
    async def tell(stage: Stage) -> None:
        offset = await patient(stage)
        stage.node("c").kill()
        await asyncio.sleep(2 * MEMBERSHIP.window_s)
        assert await reject(stage, "a", offset, "c") == ("unable", ["b"])
        assert await reject(stage, "b", offset, "c") == ("rejected", [])
        stage.node("c").spark.poison = set()
        await stage.settle()
        assert rows(stage, "c") == ["one"]
        stage.node("c").kill()
        await stage.settle()  # and it still knows

    story(tell, timeouts=PATIENT)


@pytest.mark.parametrize("stored", [False, True])
def test_one_that_is_away_and_had_applied_it_after_all_says_so(stored: bool) -> None:
    async def tell(stage: Stage) -> None:
        await begin(stage, *"bc")
        offset = stage.ring.store.end
        assert (await stage.submit("a", update("poison"))).status is Status.APPLIED
        await asyncio.sleep(1 if stored else 0)
        stage.node("a").kill()
        await asyncio.sleep(2 * MEMBERSHIP.window_s)
        assert await reject(stage, "b", offset, "a") == ("unable", ["c"])
        assert await reject(stage, "c", offset, "a") == ("rejected", [])
        stage.node("a").start()
        await stage.until(lambda: stage.alive_state("a") is State.DIVERGED, 120)
        assert "the ring has given it up" in stage.reason("a")
        stage.node("a").spark.mend("UPDATE t SET x = 'one'")
        await stage.until(lambda: stage.alive_state("b") is State.READY)
        await stage.verify("b")
        await stage.settle()

    story(tell)


# -- stories that a broken rule ends badly -------------------------------------------------------


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
    await stage.until(lambda: {*kinds(stage, Unable)} == {"a", "b"}, LONG_S)
    stage.node("b").spark.poison = set()
    await stage.until(lambda: stage.state("b") is State.READY, LONG_S)
    assert (await stage.submit("b", update("poison"))).status is Status.APPLIED
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
    assert (await stage.submit(mended, update("poison"))).status is Status.APPLIED
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
    assert sum(given_up for _, given_up in runs) > 1


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

    async def at_once(self: GivingUp, offset: int, op: Operation) -> bool:
        if self.stands(offset):
            await self._rest(offset, op, self._core.troubles.stands(offset, ""))
        return not self.given_up(offset)

    patch.setattr(GivingUp, "may_run", at_once)


def counted_though_withdrawn(patch: pytest.MonkeyPatch) -> None:
    """Take every decision for valid."""
    patch.setattr(Words, "_valid", lambda self, at, word, claims: True)


def away_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """Do without those that say nothing."""
    original = Words.abandon

    def alone(self: Words, offset: int, op_id: str, by: tuple[str, int], *rest: Any) -> object:
        read_to, _, absent = rest
        return original(self, offset, op_id, by, read_to, self.standing(offset), absent)

    patch.setattr(Words, "abandon", alone)


@pytest.mark.parametrize(
    ("break_rule", "tell", "expected"),
    [
        (not_looked_at, committed_without_an_answer, Violation.UNEQUAL),
        (not_fenced, still_running_at_the_word, Violation.UNEQUAL),
        (not_withdrawn, applied_after_the_word, Violation.UNEQUAL),
        (counted_though_withdrawn, withdrawn_while_it_is_decided, Violation.DIVERGED),
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
