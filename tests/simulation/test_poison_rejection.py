"""Tests of operations that no cluster can apply: the ring rejects them, unless one applied them.

Docs: docs/proofs/fences.md, "Rejecting a poison operation".
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from haproc.failure import ErrorClass, RequestError
from haproc.membership.state import State
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.records.control import Abandon, FailureVote, Verify, VoteWithdrawal
from tests.simulation.directed import Stage, as_story, ddl
from tests.simulation.ring import MEMBERSHIP, TIMEOUTS
from tests.simulation.scenario import insert
from tests.simulation.test_poison import POISON, rows, update

LONG_S = 200
SEEDS = range(5, 11)


def poison(stage: Stage, *names: str, sql: str = POISON) -> None:
    """Let a statement always fail on these clusters with an environment error."""
    for name in names:
        stage.node(name).spark.poison = {sql}


async def begin(stage: Stage, *poisoned: str) -> None:
    """Create a table with a row, on clusters of which some cannot apply the poison operation."""
    await stage.submit("a", ddl("a"))
    await stage.submit("a", insert("one", "t", "a"))
    poison(stage, *poisoned)


async def given_up(stage: Stage, name: str, op_id: str = "poison") -> None:
    """Check that a client's answer is the rejection of the operation."""
    outcome = await stage.submit(name, update(op_id), LONG_S)
    assert outcome.status is OutcomeStatus.REJECTED
    assert outcome.failure is not None and outcome.failure.error_class == ErrorClass.GIVEN_UP
    assert "out of memory" in outcome.failure.message


async def sent(stage: Stage, name: str = "a") -> int:
    """Send the poison operation with a client that stops waiting; return its offset."""
    at = stage.ring.store.end
    with pytest.raises(RequestError):
        await stage.submit(name, update("poison"), 5)
    return at


def kinds(stage: Stage, kind: type[Any]) -> list[str]:
    return [getattr(m, "cluster", "") for m in stage.records(kind)]


@as_story()
async def test_operation_that_no_cluster_can_apply_is_rejected_and_all_clusters_serve_again(
    stage: Stage,
) -> None:
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


@as_story()
async def test_operation_that_one_cluster_applied_is_never_rejected(stage: Stage) -> None:
    await begin(stage, *"bc")
    await stage.apply("a", update("poison"))
    await stage.until(lambda: all(stage.state(name) is State.STUCK for name in "bc"))
    await asyncio.sleep(LONG_S)
    assert all(stage.state(name) is State.STUCK for name in "bc")
    # They know that it is applied on a, and say nothing.
    assert kinds(stage, Abandon) == kinds(stage, FailureVote) == []
    for name in "bc":
        stage.node(name).spark.poison = set()
    await stage.settle()
    assert rows(stage, "b") == ["one!"]


async def applied_by_one_that_is_away(stage: Stage) -> None:
    """A dead cluster has applied and acknowledged it."""
    await begin(stage, *"bc")
    await stage.apply("a", update("poison"))
    stage.node("a").kill()
    await asyncio.sleep(LONG_S)
    assert {*kinds(stage, FailureVote)} == {"b", "c"}
    stage.node("a").start()
    await asyncio.sleep(LONG_S)
    for name in "bc":
        stage.node(name).spark.poison = set()
    await stage.settle()
    assert rows(stage, "b") == ["one!"]


@as_story()
async def test_fixed_cluster_withdraws_its_vote_and_the_operation_is_applied(stage: Stage) -> None:
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


@as_story()
async def test_member_that_returns_adds_the_missing_vote(stage: Stage) -> None:
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


@as_story()
async def test_member_that_dies_after_its_vote_skips_the_operation_after_its_restart(
    stage: Stage,
) -> None:
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


@as_story()
async def test_ring_restarted_after_the_votes_rejects_the_operation(stage: Stage) -> None:
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


@as_story()
async def test_ddl_that_no_cluster_can_run_is_rejected_and_tables_are_verified(
    stage: Stage,
) -> None:
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


@as_story()
async def test_poison_operation_in_a_combined_statement_is_rejected_alone(stage: Stage) -> None:
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


@as_story()
async def test_statement_that_kills_all_sparks_is_rejected(stage: Stage) -> None:
    await begin(stage)
    for name in "abc":
        stage.node(name).spark.deadly = {POISON}
    with pytest.raises(RequestError):
        await stage.submit("a", update("poison"), 5)
    await stage.until(lambda: bool(kinds(stage, Abandon)), 4 * LONG_S)
    await stage.settle()
    assert rows(stage, "c") == ["one"]


# -- on demand -----------------------------------------------------------------------------------


PATIENT = replace(TIMEOUTS, give_up_after_s=3600)


async def patient(stage: Stage) -> int:
    """All clusters fail, and none would vote by itself for a long time."""
    await begin(stage, *"abc")
    assert stage.ring.config.timeouts is PATIENT
    return await sent(stage)


async def revoke(stage: Stage, name: str, offset: int, *without: str) -> str:
    return str((await stage.operators(name).revoke(offset, "", without))["status"])


@as_story(timeouts=PATIENT)
async def test_operators_revoke_makes_all_clusters_vote_at_once_and_rejects_the_operation(
    stage: Stage,
) -> None:
    offset = await patient(stage)
    assert await revoke(stage, "b", offset) == "revoked"
    assert sorted(kinds(stage, FailureVote)) == ["a", "b", "c"]
    outcome = await stage.submit("c", update("poison"), LONG_S)
    assert outcome.failure is not None and outcome.failure.error_class == ErrorClass.REVOKED
    await stage.settle()
    assert rows(stage, "a") == ["one"]


@as_story()
async def test_operators_revoke_of_an_applied_operation_returns_committed_and_casts_no_vote(
    stage: Stage,
) -> None:
    await begin(stage, *"bc")
    at = stage.ring.store.end
    await stage.apply("a", update("poison"))
    await stage.until(lambda: stage.state("c") is State.STUCK)
    assert await revoke(stage, "c", at) == "committed"
    assert await revoke(stage, "a", at) == "committed"
    with pytest.raises(RequestError, match="it can itself report"):
        await revoke(stage, "c", at, "b")
    assert kinds(stage, FailureVote) == []


@as_story(timeouts=PATIENT)
async def test_operator_vouches_for_a_dead_cluster_that_skips_the_operation_when_it_is_back(
    stage: Stage,
) -> None:
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


@pytest.mark.parametrize("stored", [False, True])
@as_story()
async def test_dead_cluster_that_had_applied_a_revoked_operation_is_diverged_when_it_is_back(
    stage: Stage, stored: bool
) -> None:
    await begin(stage, *"bc")
    offset = stage.ring.store.end
    await stage.apply("a", update("poison"))
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
