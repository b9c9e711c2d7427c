"""Synchronous operations (docs/proofs/fences.md, "DDL and its decision"), story by story.

The ring is a, b, c in this order; a is the origin unless a story names another one. Every story
ends with `Stage.settle`: all clusters are READY and have the same content.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from haproc.failure import FailureKind, RequestError
from haproc.membership.state import State
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.queue.turns import Readiness
from haproc.replicate.records.operation import FailureReport, Operation
from tests.simulation.directed import CREATE, Stage, as_story, ddl, parallel, story
from tests.simulation.life import Life
from tests.simulation.network import Refused
from tests.simulation.ring import TIMEOUTS, Node
from tests.simulation.scenario import insert
from tests.simulation.violations import Violation, found_by

TAKEOVER_S = TIMEOUTS.takeover_s


def operations(stage: Stage) -> list[Operation]:
    return stage.records(Operation)


def reports(stage: Stage) -> list[str]:
    """Return the clusters that reported an application error."""
    return [message.cluster for message in stage.records(FailureReport)]


# -- tried on the origin first -----------------------------------------------------------------


async def error_on_the_origin(stage: Stage) -> None:
    """The origin refuses the statement; the others would accept it."""
    stage.node("a").spark.refuses.add(CREATE)
    outcome = await stage.submit("a", ddl("a"))
    assert outcome.status is OutcomeStatus.REJECTED
    assert outcome.failure is not None and outcome.failure.error_class == "REFUSED_HERE"
    await stage.settle()
    assert stage.order() == []
    assert stage.decisions() == [("a", "reject")]
    assert reports(stage) == []


def test_error_on_the_origin_reaches_no_other_cluster() -> None:
    story(error_on_the_origin)


@as_story()
async def test_error_on_the_origin_lets_operations_behind_it_run(stage: Stage) -> None:
    stage.node("a").spark.refuses.add(CREATE)
    await stage.submit("a", ddl("a"))
    await stage.apply("b", ddl("b", "again"))
    # a refuses this one too, so it is the odd one, and the only one
    await stage.until(lambda: stage.state("a") is State.DIVERGED)
    stage.check_equal("b", "c")
    assert stage.tables("b") == {"t"}


def test_success_commits_on_the_origin_then_on_the_peers_in_ring_order() -> None:
    for origin, order in (("a", "abc"), ("b", "bca"), ("c", "cab")):

        async def script(stage: Stage, origin: str = origin, order: str = order) -> None:
            outcome = await stage.apply(origin, ddl(origin))
            assert outcome.clusters == dict.fromkeys(order, "applied")
            # when the client hears of it, all have it
            assert stage.order() == list(order)
            await stage.settle()
            assert stage.decisions() == [(origin, "commit")]
            assert stage.order() == list(order)

        story(script)


@pytest.mark.parametrize("seed", range(10))
def test_order_of_commits_is_the_same_for_all_seeds(seed: int) -> None:
    async def script(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        assert stage.order() == ["a", "b", "c"]

    story(script, seed)


@as_story()
async def test_peer_that_is_down_applies_the_operation_from_its_queue(stage: Stage) -> None:
    stage.node("b").kill()
    outcome = await stage.submit("a", ddl("a"))
    assert outcome.clusters == {"a": "applied", "b": "queued", "c": "applied"}
    assert stage.order() == ["a", "c"]
    await stage.settle()
    assert stage.order() == ["a", "c", "b"]


@as_story()
async def test_peer_whose_spark_is_down_applies_the_operation_from_its_queue(stage: Stage) -> None:
    stage.node("b").spark.kill()
    await stage.until(lambda: stage.state("b") is State.DOWN)
    outcome = await stage.submit("a", ddl("a"))
    assert outcome.clusters["b"] == "queued"
    await stage.settle()
    assert stage.order() == ["a", "c", "b"]


@as_story()
async def test_peer_that_freezes_during_its_turn_delays_the_answer_for_less_than_the_timeout(
    stage: Stage,
) -> None:
    stage.at("b", Step.APPLY_BEFORE, Node.freeze)
    began = stage.now
    outcome = await stage.submit("a", ddl("a"))
    assert outcome.clusters == {"a": "applied", "b": "queued", "c": "applied"}
    assert stage.now - began < TIMEOUTS.fanout_s
    await stage.settle()
    assert stage.order() == ["a", "c", "b"]


@as_story()
async def test_parallel_fanout_contacts_no_peer_and_all_apply_after_the_decision(
    stage: Stage,
) -> None:
    outcome = await stage.submit("a", parallel("a"))
    assert outcome.clusters == {"a": "applied", "b": "queued", "c": "queued"}
    await stage.settle()
    assert stage.order()[0] == "a" and sorted(stage.order()) == ["a", "b", "c"]
    assert Step.FANOUT_BEFORE not in stage.ring.steps


@as_story()
async def test_error_on_the_origin_under_parallel_fanout_reaches_no_other_cluster(
    stage: Stage,
) -> None:
    stage.node("a").spark.refuses.add(CREATE)
    assert (await stage.submit("a", parallel("a"))).status is OutcomeStatus.REJECTED
    await stage.settle()
    assert stage.order() == []


@as_story()
async def test_writes_behind_a_synchronous_operation_wait_for_it_on_every_cluster(
    stage: Stage,
) -> None:
    await stage.submit("a", ddl("a", "first", "CREATE TABLE ids (id)"))
    await stage.submit("a", ddl("a"))
    await stage.apply("b", insert("one", "t", "b"))
    await stage.settle()
    assert stage.node("c").spark.dump() == {"ids": [], "t": [("one",)]}


# -- the origin dies ---------------------------------------------------------------------------

AT_WHICH = [
    (Step.APPEND_AFTER, 1),
    (Step.INTENT_AFTER, 1),
    (Step.APPLY_BEFORE, 1),
    (Step.APPLY_AFTER, 1),
    (Step.CURSOR_AFTER, 1),
    (Step.FANOUT_BEFORE, 1),
    (Step.FANOUT_AFTER, 1),
    (Step.FANOUT_BEFORE, 2),
    (Step.FANOUT_AFTER, 2),  # all have it, nothing is decided
    (Step.DECISION_AFTER, 1),
]


def nothing(node: Node) -> None:
    """No fault this time."""


def put(stage: Stage, step: Step, count: int, fault: Callable[[Node], None]) -> None:
    stage.at("a", step, *[nothing] * (count - 1), fault)


async def lost(stage: Stage, op: Operation) -> None:
    """Submit to a, which dies before it answers."""
    with pytest.raises(Refused):
        await stage.submit("a", op)


@pytest.mark.parametrize(("step", "count"), AT_WHICH)
@as_story()
async def test_dead_origin_is_replaced_by_the_others_and_catches_up_later(
    stage: Stage, step: Step, count: int
) -> None:
    put(stage, step, count, Node.kill)
    await lost(stage, ddl("a"))
    died = stage.struck["a", step]
    await stage.until(lambda: stage.order().count("b") + stage.order().count("c") == 2)
    await stage.ready("b", "c")
    took_over = [by for by, _ in stage.decisions() if by != "a"]
    # where both peers have run it already, nobody waits for a decision
    assert bool(took_over) is ((step, count) not in AT_WHICH[-2:])
    if took_over:
        assert stage.now - died >= TAKEOVER_S
    stage.check_equal("b", "c")
    assert "t" in stage.tables("b")
    await stage.settle()
    assert sorted(stage.order()) == ["a", "b", "c"]
    assert {verdict for _, verdict in stage.decisions()} == {"commit"}
    assert reports(stage) == []


@as_story()
async def test_origin_killed_before_the_append_leaves_no_record_and_no_effect(stage: Stage) -> None:
    put(stage, Step.APPEND_BEFORE, 1, Node.kill)
    await lost(stage, ddl("a"))
    await stage.settle()
    assert (operations(stage), stage.order()) == ([], [])


@as_story()
async def test_origin_killed_and_back_before_the_takeover_decides_itself(stage: Stage) -> None:
    put(stage, Step.FANOUT_BEFORE, 1, Node.kill)
    await lost(stage, ddl("a"))
    stage.node("a").start()
    await stage.settle()
    assert stage.decisions() == [("a", "commit")]
    assert stage.order()[0] == "a" and sorted(stage.order()) == ["a", "b", "c"]


@as_story()
async def test_origin_killed_before_its_reject_leaves_the_same_error_on_all_clusters(
    stage: Stage,
) -> None:
    for node in stage.ring.nodes.values():
        node.spark.refuses.add(CREATE)
    put(stage, Step.APPLY_AFTER, 1, Node.kill)
    await lost(stage, ddl("a"))
    await stage.ready("b", "c")
    await stage.settle()
    assert stage.order() == []
    assert sorted(reports(stage)) == ["a", "b", "c"]


@as_story()
async def test_spark_death_of_the_origin_during_the_operation_hands_it_over_at_once(
    stage: Stage,
) -> None:
    stage.at("a", Step.APPLY_BEFORE, lambda node: node.spark.kill())
    with pytest.raises(RequestError) as caught:
        await stage.submit("a", ddl("a"))
    assert caught.value.kind is FailureKind.AVAILABILITY
    await stage.ready("b", "c")
    assert stage.now - stage.struck["a", Step.APPLY_BEFORE] < TAKEOVER_S
    await stage.apply("b", ddl("b"))
    await stage.settle()
    assert sorted(stage.order()) == ["a", "b", "c"]
    assert len(operations(stage)) == 1


# -- the client retries ------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "count"), AT_WHICH)
@as_story()
async def test_retry_on_another_haproc_returns_the_first_outcome(
    stage: Stage, step: Step, count: int
) -> None:
    put(stage, step, count, Node.kill)
    await lost(stage, ddl("a"))
    await stage.apply("b", ddl("b"))
    await stage.settle()
    assert sorted(stage.order()) == ["a", "b", "c"]
    # b may not have read a's record yet, and adds its own: the first counts
    records = len(operations(stage))
    assert records == 1 or step is Step.APPEND_AFTER
    await stage.apply("a", ddl("a"))
    assert len(operations(stage)) == records


@as_story()
async def test_retry_of_a_rejected_operation_is_rejected_everywhere_with_its_error(
    stage: Stage,
) -> None:
    stage.node("a").spark.refuses.add(CREATE)
    put(stage, Step.DECISION_AFTER, 1, Node.kill)
    await lost(stage, ddl("a"))
    for name in ("b", "c"):
        outcome = await stage.submit(name, ddl(name))
        assert outcome.status is OutcomeStatus.REJECTED
        assert outcome.failure is not None and outcome.failure.sqlstate == "42501"
    await stage.settle()
    assert (await stage.submit("a", ddl("a"))).status is OutcomeStatus.REJECTED
    assert (len(operations(stage)), stage.order()) == (1, [])


# -- the origin freezes ------------------------------------------------------------------------


@pytest.mark.parametrize(("step", "count"), AT_WHICH)
@as_story()
async def test_origin_frozen_and_thawed_after_the_takeover_changes_nothing(
    stage: Stage, step: Step, count: int
) -> None:
    put(stage, step, count, Node.freeze)
    with pytest.raises((RequestError, TimeoutError)):
        await impatient(stage)
    await stage.apply("b", ddl("b"))
    await stage.ready("b", "c")
    stage.node("a").thaw()
    await stage.settle()
    assert sorted(stage.order()) == ["a", "b", "c"]
    assert {verdict for _, verdict in stage.decisions()} == {"commit"}
    assert (len(operations(stage)), reports(stage)) == (1, [])


async def impatient(stage: Stage) -> None:
    async with asyncio.timeout(10):
        await stage.submit("a", ddl("a"))


@as_story()
async def test_frozen_origin_with_an_error_that_the_others_met_too_agrees_with_them(
    stage: Stage,
) -> None:
    for node in stage.ring.nodes.values():
        node.spark.refuses.add(CREATE)
    put(stage, Step.APPLY_AFTER, 1, Node.freeze)
    with pytest.raises((RequestError, TimeoutError)):
        await impatient(stage)
    await stage.ready("b", "c")
    stage.node("a").thaw()
    await stage.settle()
    # a's reject came too late: the commit of whoever took over is the first decision
    *taken_over, late = stage.decisions()
    assert late == ("a", "reject")
    assert {verdict for _, verdict in taken_over} == {"commit"}
    assert sorted(reports(stage)) == ["a", "b", "c"]
    assert (await stage.submit("a", ddl("a"))).status is OutcomeStatus.FAILED


# -- clusters that differ ----------------------------------------------------------------------


@pytest.mark.parametrize("differing", ["b", "c"])
@as_story()
async def test_cluster_with_a_different_outcome_is_the_only_diverged_one(
    stage: Stage, differing: str
) -> None:
    stage.node(differing).spark.refuses.add(CREATE)
    outcome = await stage.apply("a", ddl("a"))
    assert outcome.clusters[differing].startswith("failed: REFUSED_HERE")
    await stage.until(lambda: stage.state(differing) is State.DIVERGED)
    await stage.ready(*(name for name in stage.ring.names if name != differing))
    stage.check_equal(*(name for name in stage.ring.names if name != differing))
    # once stored it stays so over a restart, and serves nothing
    await asyncio.sleep(1)
    stage.node(differing).restart()
    await stage.until(lambda: stage.state(differing) is State.DIVERGED)
    with pytest.raises(RequestError, match="DIVERGED"):
        await stage.submit(differing, ddl(differing, "other", "CREATE TABLE u (x)"))
    outcome = await stage.submit("a", ddl("a", "other", "CREATE TABLE u (x)"))
    assert outcome.clusters[differing] == "queued"


# -- two incarnations --------------------------------------------------------------------------


def second_incarnation(stage: Stage, name: str) -> Life:
    """Start another process for a cluster whose first one is frozen; peers reach the new one."""
    first = stage.node(name).replace()
    assert first is not None
    return first


def fenced(life: Life) -> bool:
    return life.member.core.condition.state is State.FENCED


@as_story()
async def test_second_incarnation_fences_the_first(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    stage.at("b", Step.APPLY_BEFORE, Node.freeze)
    await stage.submit("a", insert("one", "t", "a"))
    await stage.until(lambda: ("b", Step.APPLY_BEFORE) in stage.struck)
    first = second_incarnation(stage, "b")
    await stage.ready("b")
    await stage.submit("b", insert("two", "t", "b"))
    first.thaw()
    await stage.until(lambda: fenced(first))
    with pytest.raises(RequestError, match="FENCED"):
        await first.member.replica.writes.submit(insert("three", "t", "b"), 5)
    await stage.submit("a", insert("four", "t", "a"))
    await stage.settle()
    assert stage.node("b").spark.dump()["t"] == [("four",), ("one",), ("two",)]
    assert fenced(first)


@pytest.mark.parametrize("seed", range(6))
def test_decision_of_a_replaced_process_is_void(seed: int) -> None:
    async def script(stage: Stage) -> None:
        stage.at("a", Step.APPLY_BEFORE, Node.freeze, lambda node: None)
        attempt = asyncio.ensure_future(gone(stage))
        await stage.until(lambda: ("a", Step.APPLY_BEFORE) in stage.struck)
        # The second process runs it; the first wakes up and finds that the table exists.
        first = second_incarnation(stage, "a")
        stage.at("a", Step.APPLY_AFTER, lambda node: first.thaw())
        await stage.ready("a", "b", "c")
        attempt.cancel()
        await stage.settle()
        assert all("t" in stage.tables(name) for name in "abc")
        await stage.apply("b", ddl("a"))

    async def gone(stage: Stage) -> None:
        await stage.submit("a", ddl("a"), 60)

    story(script, seed)


# -- the stories find a broken rule ------------------------------------------------------------


def test_rule_of_waiting_for_decisions_broken_on_purpose_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Readiness, "lacks", lambda self, offset, op: False)
    found_by(lambda: story(error_on_the_origin), Violation.UNEQUAL)
