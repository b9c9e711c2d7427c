"""Tests of a table with a long computation, story by story.

Docs: docs/proofs/fences.md, "Tables that are computed".
The ring is a, b, c in this order, and a is the origin. `slow` cannot be written until `let`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from haproc.classify.model import Kind
from haproc.failure import ErrorClass, RequestError
from haproc.replicate.apply.takeover import Takeover
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OperationOutcome, OutcomeStatus
from haproc.replicate.queue.turns import Unmarked
from haproc.replicate.records.operation import Decision, Operation
from tests.simulation.directed import Stage, as_story, ddl, story
from tests.simulation.ring import TIMEOUTS, Node
from tests.simulation.scenario import insert
from tests.simulation.violations import Violation, found_by

SLOW = "CREATE TABLE slow AS SELECT 'x' AS id"


def table(op_id: str, name: str, sql: str, kind: Kind = Kind.CREATE_TABLE) -> Operation:
    return ddl("a", op_id, sql, kind=kind, writes=frozenset({name}))


async def begun(stage: Stage) -> asyncio.Task[OperationOutcome]:
    """Create `ids`, and begin with `slow` at a; return the task that waits for it."""
    await stage.submit("a", table("make", "ids", "CREATE TABLE ids (id)"))
    for name in "abc":
        stage.node(name).spark.held.add("slow")
    slow = table("slow", "slow", SLOW, Kind.CREATE_TABLE_AS)
    made = asyncio.create_task(stage.submit("a", slow, 300))
    await stage.until(lambda: Step.INTENT_AFTER in stage.ring.steps)
    await asyncio.sleep(1)
    return made


def decided_by(stage: Stage) -> list[str]:
    """Return the clusters that decided on `slow`, in log order."""
    decisions = stage.records(Decision)
    return [decision.by for decision in decisions if decision.operation_id == "slow"]


def let(stage: Stage) -> None:
    for name in "abc":
        stage.node(name).spark.held.clear()


async def others_go_on(stage: Stage, names: str = "abc") -> None:
    """Write, and create another table, on these clusters; that takes moments."""
    began = stage.now
    for n, name in enumerate(names):
        await stage.apply(name, insert(f"i{n}", "ids", name))
    other = replace(table("other", "other", "CREATE TABLE other (id)"), origin=names[0])
    await stage.apply(names[0], other)
    await stage.apply(names[0], insert("o", "other", names[0]))
    assert stage.now - began < 15


@as_story()
async def test_other_operations_continue_while_a_table_is_computed(stage: Stage) -> None:
    made = await begun(stage)
    await others_go_on(stage)
    schedule = stage.replica("b").core.schedule
    assert schedule.low < schedule.read_to
    others = frozenset({"ids", "other"})
    await stage.until(lambda: schedule.applied_of(others) == schedule.read_to)
    assert schedule.applied_of(frozenset({"slow"})) == schedule.low
    behind = asyncio.create_task(stage.submit("b", insert("s", "slow", "b"), 300))
    await asyncio.sleep(5)
    assert not made.done() and not behind.done()
    let(stage)
    assert (await made).status is OutcomeStatus.APPLIED
    assert (await behind).status is OutcomeStatus.APPLIED
    await stage.settle()
    assert stage.node("c").spark.dump()["slow"] == [("s",), ("x",)]


def schema(op_id: str, origin: str = "a") -> Operation:
    """Return DDL without known tables, which waits for all operations before it."""
    sql = f"CREATE TABLE {op_id} (id)"
    made = ddl(origin, op_id, sql, kind=Kind.CREATE_NAMESPACE, writes=frozenset())
    return replace(made, tables_known=False)


@as_story()
async def test_ddl_without_known_tables_waits_at_the_door_and_delays_no_other_operation(
    stage: Stage,
) -> None:
    """At any cluster it waits until the last cluster has computed the table."""
    made = await begun(stage)
    waiting = [
        asyncio.create_task(stage.submit(name, schema(f"s_{name}", name), 300)) for name in "ab"
    ]
    await asyncio.sleep(2)
    with pytest.raises(RequestError, match="computes a table") as refusal:
        await stage.submit("b", schema("late", "b"), 3)
    assert refusal.value.error_class == ErrorClass.BUSY
    with pytest.raises(RequestError, match="computes a table"):
        await stage.verify("b")
    await others_go_on(stage)
    stage.node("a").spark.held.clear()
    assert (await made).status is OutcomeStatus.APPLIED
    await asyncio.sleep(5)
    assert not any(each.done() for each in waiting), "b and c are not done with it"
    await stage.apply("a", insert("on", "ids", "a"))
    let(stage)
    assert [(await each).status for each in waiting] == 2 * [OutcomeStatus.APPLIED]
    logged = {each.id for each in stage.messages() if isinstance(each, Operation)}
    assert "late" not in logged
    await stage.settle()


@as_story()
async def test_ddl_of_the_computed_table_waits_at_the_door(stage: Stage) -> None:
    made = await begun(stage)
    drop = table("drop", "slow", "DROP TABLE slow", Kind.DROP_TABLE)
    dropped = asyncio.create_task(stage.submit("a", drop, 300))
    await asyncio.sleep(2)
    await others_go_on(stage)
    assert not dropped.done()
    let(stage)
    assert (await made).status is OutcomeStatus.APPLIED
    assert (await dropped).status is OutcomeStatus.APPLIED
    await stage.settle()
    assert "slow" not in stage.tables("b")


@as_story()
async def test_dead_cluster_with_an_uncomputed_table_delays_no_other_ddl(
    stage: Stage,
) -> None:
    made = await begun(stage)
    stage.node("c").kill()
    stage.node("a").spark.held.clear()
    stage.node("b").spark.held.clear()
    assert (await made).status is OutcomeStatus.APPLIED
    await stage.submit("a", schema("s_a"), 10)
    stage.node("c").start()
    let(stage)
    await stage.settle()


@as_story()
async def test_process_killed_during_the_computation_computes_the_table_after_its_restart(
    stage: Stage,
) -> None:
    made = await begun(stage)
    await others_go_on(stage)
    made.cancel()
    stage.node("a").kill()
    await asyncio.sleep(1)
    stage.node("a").start()
    await asyncio.sleep(2)
    let(stage)
    await stage.settle()
    for name in "abc":
        assert stage.node(name).spark.dump()["slow"] == [("x",)]


@as_story()
async def test_origin_that_dies_before_its_decision_decides_after_its_restart(
    stage: Stage,
) -> None:
    """The origin decides itself; other clusters would decide later."""
    stage.node("b").spark.held.add("ids")
    stage.node("c").spark.held.add("ids")
    made = await begun(stage)
    stage.node("a").spark.held.add("ids")
    write = asyncio.create_task(stage.submit("a", insert("i", "ids", "a"), 100))
    await asyncio.sleep(1)
    stage.at("a", Step.FANOUT_BEFORE, Node.kill)
    stage.node("a").spark.held.discard("slow")
    await stage.until(lambda: not stage.node("a").alive)
    for task in (made, write):
        task.cancel()
    assert decided_by(stage) == [], "it died too late"
    stage.node("a").start()
    began = stage.now
    let(stage)
    await stage.until(lambda: decided_by(stage) != [])
    assert decided_by(stage) == ["a"]
    assert stage.now - began < TIMEOUTS.takeover_s
    await stage.settle()
    assert stage.order(SLOW)[0] == "a"
    for name in "abc":
        found = stage.node(name).spark.dump()
        assert stage.order(SLOW).count(name) == 1
        assert found["slow"] == [("x",)]
        assert found["ids"] == [("i",)]


@as_story()
async def test_dead_origin_is_decided_for_by_others_that_continue(stage: Stage) -> None:
    made = await begun(stage)
    made.cancel()
    stage.node("a").kill()
    await others_go_on(stage, "bc")
    let(stage)
    await asyncio.sleep(2 * TIMEOUTS.takeover_s)
    decided = set(decided_by(stage))
    assert decided and decided <= {"b", "c"}
    assert stage.tables("b") >= {"slow", "other"}
    await stage.settle()


@pytest.mark.thorough
def test_rule_that_a_computation_is_checked_after_a_crash_broken_on_purpose_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Unmarked, "doubted", lambda self, offset: False)

    async def script(stage: Stage) -> None:
        made = await begun(stage)
        stage.at("a", Step.APPLY_AFTER, Node.kill)
        let(stage)
        await stage.until(lambda: not stage.node("a").alive)
        made.cancel()
        stage.node("a").start()
        await stage.settle()

    found_by(lambda: story(script), Violation.UNEQUAL)


@pytest.mark.thorough
def test_rule_that_a_dead_origin_is_decided_for_broken_on_purpose_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(self: Takeover) -> None:
        pass

    monkeypatch.setattr(Takeover, "_look", nothing)
    found_by(test_dead_origin_is_decided_for_by_others_that_continue, "assert decided and decided")
