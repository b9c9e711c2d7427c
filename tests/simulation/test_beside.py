"""A table that takes long to compute, story by story.

Docs: docs/proofs/fences.md, "Tables that are computed".

The ring is a, b, c in this order, and a is the origin. `slow` cannot be written before it is let.
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
from tests.simulation.directed import Stage, ddl, story
from tests.simulation.ring import TIMEOUTS
from tests.simulation.scenario import insert
from tests.simulation.violations import Violation, found_by

SLOW = "CREATE TABLE slow AS SELECT 'x' AS id"


def table(op_id: str, name: str, sql: str, kind: Kind = Kind.CREATE_TABLE) -> Operation:
    return ddl("a", op_id, sql, kind=kind, writes=frozenset({name}))


async def begun(stage: Stage) -> asyncio.Task[OperationOutcome]:
    """Make `ids`, and begin with `slow` at a; return what waits for it."""
    await stage.submit("a", table("make", "ids", "CREATE TABLE ids (id)"))
    for name in "abc":
        stage.node(name).spark.held.add("slow")
    slow = table("slow", "slow", SLOW, Kind.CREATE_TABLE_AS)
    made = asyncio.create_task(stage.submit("a", slow, 300))
    await stage.until(lambda: Step.INTENT_AFTER in stage.ring.steps)
    await asyncio.sleep(1)
    return made


def decided_by(stage: Stage) -> list[str]:
    """Return all that decided on `slow`, in log order."""
    decisions = [message for message in stage.messages() if isinstance(message, Decision)]
    return [decision.by for decision in decisions if decision.operation_id == "slow"]


def let(stage: Stage) -> None:
    for name in "abc":
        stage.node(name).spark.held.clear()


async def others_go_on(stage: Stage, names: str = "abc") -> None:
    """Write, and make and drop another table, on these clusters, which takes moments."""
    began = stage.now
    for n, name in enumerate(names):
        assert (
            await stage.submit(name, insert(f"i{n}", "ids", name))
        ).status is OutcomeStatus.APPLIED
    other = replace(table("other", "other", "CREATE TABLE other (id)"), origin=names[0])
    assert (await stage.submit(names[0], other)).status is OutcomeStatus.APPLIED
    assert (
        await stage.submit(names[0], insert("o", "other", names[0]))
    ).status is OutcomeStatus.APPLIED
    assert stage.now - began < 15


def test_others_go_on_while_a_table_is_computed() -> None:
    async def tell(stage: Stage) -> None:
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

    story(tell)


def schema(op_id: str, origin: str = "a") -> Operation:
    """Make DDL that says no table, and so waits for everything that stands before it."""
    sql = f"CREATE TABLE {op_id} (id)"
    made = ddl(origin, op_id, sql, kind=Kind.CREATE_NAMESPACE, writes=frozenset())
    return replace(made, tables_known=False)


def test_what_touches_more_than_it_names_waits_outside_and_holds_up_nobody() -> None:
    """At whichever cluster it comes, until the last one has computed the table."""

    async def tell(stage: Stage) -> None:
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
        assert (await stage.submit("a", insert("on", "ids", "a"))).status is OutcomeStatus.APPLIED
        let(stage)
        assert [(await each).status for each in waiting] == 2 * [OutcomeStatus.APPLIED]
        logged = {each.id for each in stage.messages() if isinstance(each, Operation)}
        assert "late" not in logged
        await stage.settle()

    story(tell)


def test_ddl_of_its_own_tables_waits_outside_too() -> None:
    async def tell(stage: Stage) -> None:
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

    story(tell)


def test_cluster_that_is_away_with_its_table_uncomputed_holds_up_no_schema() -> None:
    async def tell(stage: Stage) -> None:
        made = await begun(stage)
        stage.node("c").kill()
        stage.node("a").spark.held.clear()
        stage.node("b").spark.held.clear()
        assert (await made).status is OutcomeStatus.APPLIED
        await stage.submit("a", schema("s_a"), 10)
        stage.node("c").start()
        let(stage)
        await stage.settle()

    story(tell)


def test_process_that_dies_over_it_finds_it_again_with_others_done_behind_it() -> None:
    async def tell(stage: Stage) -> None:
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

    story(tell)


def test_process_that_dies_between_its_end_and_the_decision_decides_when_it_is_back() -> None:
    """It decides for itself: others would, but later."""

    async def tell(stage: Stage) -> None:
        stage.node("b").spark.held.add("ids")
        stage.node("c").spark.held.add("ids")
        made = await begun(stage)
        stage.node("a").spark.held.add("ids")
        write = asyncio.create_task(stage.submit("a", insert("i", "ids", "a"), 100))
        await asyncio.sleep(1)
        stage.at("a", Step.FANOUT_BEFORE, lambda node: node.kill())
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

    story(tell)


def test_origin_that_is_gone_is_decided_for_while_others_go_on() -> None:
    async def tell(stage: Stage) -> None:
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

    story(tell)


@pytest.mark.thorough
def test_rule_that_it_is_doubted_behind_a_crash_broken_on_purpose_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Unmarked, "doubted", lambda self, offset: False)

    async def tell(stage: Stage) -> None:
        made = await begun(stage)
        stage.at("a", Step.APPLY_AFTER, lambda node: node.kill())
        let(stage)
        await stage.until(lambda: not stage.node("a").alive)
        made.cancel()
        stage.node("a").start()
        await stage.settle()

    found_by(lambda: story(tell), Violation.UNEQUAL)


@pytest.mark.thorough
def test_rule_that_every_one_is_decided_for_broken_on_purpose_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing(self: Takeover) -> None:
        pass

    monkeypatch.setattr(Takeover, "_look", nothing)
    found_by(
        test_origin_that_is_gone_is_decided_for_while_others_go_on, "assert decided and decided"
    )
