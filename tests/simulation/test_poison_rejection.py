"""Operations that no cluster can apply: the ring gives them up, and none that any has applied.

Docs: docs/proofs/fences.md, "Rejecting a poison operation".
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from haproc.failure import ErrorClass, RequestError
from haproc.membership.state import State
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.records.control import Abandon, FailureVote, Verify, VoteWithdrawal
from tests.simulation.directed import Stage, ddl, story
from tests.simulation.ring import MEMBERSHIP, TIMEOUTS
from tests.simulation.scenario import insert
from tests.simulation.test_poison import POISON, rows, update

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
    assert outcome.status is OutcomeStatus.REJECTED
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
        assert sorted(kinds(stage, FailureVote)) == ["a", "b", "c"]
        assert kinds(stage, Verify) == []

    story(tell)


def test_operation_that_one_cluster_applied_is_never_given_up() -> None:
    async def tell(stage: Stage) -> None:
        await begin(stage, *"bc")
        assert (await stage.submit("a", update("poison"))).status is OutcomeStatus.APPLIED
        await stage.until(lambda: all(stage.state(name) is State.STUCK for name in "bc"))
        await asyncio.sleep(LONG_S)
        assert all(stage.state(name) is State.STUCK for name in "bc")
        # They know that it is applied on a, and say nothing.
        assert kinds(stage, Abandon) == kinds(stage, FailureVote) == []
        for name in "bc":
            stage.node(name).spark.poison = set()
        await stage.settle()
        assert rows(stage, "b") == ["one!"]

    story(tell)


async def applied_by_one_that_is_away(stage: Stage) -> None:
    """It is applied and acknowledged where nobody can ask."""
    await begin(stage, *"bc")
    assert (await stage.submit("a", update("poison"))).status is OutcomeStatus.APPLIED
    stage.node("a").kill()
    await asyncio.sleep(LONG_S)
    assert {*kinds(stage, FailureVote)} == {"b", "c"}
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
        await stage.until(lambda: {*kinds(stage, FailureVote)} == {"b", "c"}, LONG_S)
        stage.node("b").spark.poison = set()
        await stage.until(lambda: rows(stage, "b") == ["one!"], LONG_S)
        assert "b" in kinds(stage, VoteWithdrawal)
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
        await stage.until(lambda: "a" in kinds(stage, FailureVote), LONG_S)
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
        await stage.until(lambda: {*kinds(stage, FailureVote)} >= {"a", "b"}, LONG_S)
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
        assert outcome.status is OutcomeStatus.REJECTED

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
        assert outcome.status is OutcomeStatus.REJECTED

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


async def revoke(stage: Stage, name: str, offset: int, *without: str) -> str:
    return str((await stage.operators(name).revoke(offset, "", without))["status"])


def test_operator_has_every_cluster_say_it_at_once_and_the_last_one_gives_it_up() -> None:
    async def tell(stage: Stage) -> None:
        offset = await patient(stage)
        assert await revoke(stage, "b", offset) == "revoked"
        assert sorted(kinds(stage, FailureVote)) == ["a", "b", "c"]
        outcome = await stage.submit("c", update("poison"), LONG_S)
        assert outcome.failure is not None and outcome.failure.error_class == ErrorClass.REVOKED
        await stage.settle()
        assert rows(stage, "a") == ["one"]

    story(tell, timeouts=PATIENT)


def test_operator_cannot_take_back_what_was_applied() -> None:
    async def tell(stage: Stage) -> None:
        await begin(stage, *"bc")
        at = stage.ring.store.end
        assert (await stage.submit("a", update("poison"))).status is OutcomeStatus.APPLIED
        await stage.until(lambda: stage.state("c") is State.STUCK)
        assert await revoke(stage, "c", at) == "committed"
        assert await revoke(stage, "a", at) == "committed"
        with pytest.raises(RequestError, match="it can itself report"):
            await revoke(stage, "c", at, "b")
        assert kinds(stage, FailureVote) == []

    story(tell)


def test_operator_vouches_for_one_that_is_away_and_passes_over_it_when_it_is_back() -> None:
    async def tell(stage: Stage) -> None:
        offset = await patient(stage)
        stage.node("c").kill()
        await asyncio.sleep(2 * MEMBERSHIP.window_s)
        with pytest.raises(RequestError, match="c does not answer"):
            await revoke(stage, "a", offset)
        assert await revoke(stage, "a", offset, "c") == "revoked"
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
        assert (await stage.submit("a", update("poison"))).status is OutcomeStatus.APPLIED
        await asyncio.sleep(1 if stored else 0)
        stage.node("a").kill()
        await asyncio.sleep(2 * MEMBERSHIP.window_s)
        assert await revoke(stage, "b", offset, "a") == "revoked"
        stage.node("a").start()
        await stage.until(lambda: stage.alive_state("a") is State.DIVERGED, 120)
        assert "the ring has rejected it" in stage.reason("a")
        stage.node("a").spark.mend("UPDATE t SET x = 'one'")
        await stage.until(lambda: stage.alive_state("b") is State.READY)
        await stage.verify("b")
        await stage.settle()

    story(tell)
