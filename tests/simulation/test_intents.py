"""Tests of intents of statements without a marker: stored after a look, and removed in time.

The ring is a, b, c in this order, and a is the origin. A look at tables takes long on a, so that
another lane stores the progress meanwhile, and a dies twice: during its look, and later after its
commit.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from haproc.classify.model import Kind, OperationClass
from haproc.engine.interface import ABSENT
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.facts import Fate
from haproc.replicate.queue.turns import UNMARKED_MAX, Unmarked
from tests.simulation.directed import Script, Stage, story
from tests.simulation.ring import Node
from tests.simulation.scenario import insert
from tests.simulation.test_beside import SLOW, table
from tests.simulation.violations import Violation, found_by

LOOK_S = 3


async def dead_while_it_looks(stage: Stage) -> int:
    """Kill a during its look, with another write durably done; return the offset of `slow`."""
    await stage.submit("a", table("make", "ids", "CREATE TABLE ids (id)"))
    spark, offset = stage.node("a").spark, stage.ring.store.end
    look = spark.look

    async def long_look() -> None:
        await asyncio.sleep(LOOK_S)
        await look()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark, "look", long_look)
        slow = table("slow", "slow", SLOW, Kind.CREATE_TABLE_AS)
        made = asyncio.create_task(stage.submit("a", slow, 300))
        await stage.until(lambda: stage.ring.store.end > offset)
        write = asyncio.create_task(stage.submit("a", insert("i", "ids", "a"), 100))
        schedule = stage.replica("a").core.schedule
        await stage.until(lambda: offset + 1 in schedule.progress.done, LOOK_S)
        await asyncio.sleep(0.5)  # and that is stored
        assert stage.order(SLOW) == []
        stage.node("a").kill()
        for task in (made, write):
            task.cancel()
    await asyncio.sleep(1)
    return offset


async def dead_behind_its_commit(stage: Stage) -> None:
    await dead_while_it_looks(stage)
    stage.at("a", Step.APPLY_AFTER, Node.kill)
    stage.node("a").start()
    await stage.until(lambda: not stage.node("a").alive)
    await stage.settle()
    assert sorted(stage.order(SLOW)) == [*"abc"]


async def without_spark_behind_its_commit(stage: Stage) -> None:
    await dead_while_it_looks(stage)
    spark, note = stage.node("a").spark, stage.node("a").spark.on_commit

    def commit(cluster: str, sql: str) -> None:
        note(cluster, sql)
        if sql == SLOW:
            spark.on_commit = note
            spark.kill()
            asyncio.get_running_loop().call_later(1, spark.restart)

    spark.on_commit = commit
    stage.node("a").start()
    await stage.until(lambda: "a" in stage.order(SLOW))
    await stage.settle()
    assert sorted(stage.order(SLOW)) == [*"abc"]


async def wanted_back_behind_its_commit(stage: Stage) -> None:
    """The revoke must not report that a has not committed the operation."""
    offset = await dead_while_it_looks(stage)
    stage.at("a", Step.APPLY_AFTER, Node.kill)
    stage.node("a").start()
    await stage.until(lambda: stage.order(SLOW) == ["a"] and not stage.node("a").alive)
    revocation = asyncio.create_task(stage.replica("b").revoking.revoke(offset, "its sender"))
    await asyncio.sleep(1)
    stage.node("a").start()
    assert (await revocation).fate is not Fate.REVOKED
    await stage.settle()
    assert all("slow" in stage.tables(name) for name in "abc")


async def given_up_again_and_again(stage: Stage) -> None:
    """For each possible intent, b dies right after it reports that it cannot apply the write."""
    for number in range(UNMARKED_MAX):
        name = f"slow{number}"
        for node in "abc":
            stage.node(node).spark.held.add(name)
        made = f"CREATE TABLE {name} AS SELECT 'x' AS id"
        op = table(name, name, made, Kind.CREATE_TABLE_AS)
        op = replace(op, operation_class=OperationClass.ASYNCHRONOUS)
        at = stage.ring.store.end
        waiting = asyncio.ensure_future(stage.submit("a", op, 1000))
        await stage.until(lambda: bool(stage.replica("b").core.schedule.unmarked.stored))
        assert stage.replica("b").core.schedule.unmarked.stored == ((at, ABSENT),)
        await asyncio.sleep(1)
        stage.at("b", Step.UNABLE_AFTER, Node.kill)
        revocation = asyncio.ensure_future(stage.replica("a").revoking.revoke(at, "its sender"))
        await stage.until(lambda: not stage.node("b").alive)
        await asyncio.gather(revocation, waiting)
        stage.node("b").start()
        await stage.ready("b")
        await asyncio.sleep(5)  # and all have said what their tables hold
    await stage.settle()
    last = table("last", "last", "CREATE TABLE last AS SELECT 'x' AS id", Kind.CREATE_TABLE_AS)
    await stage.submit("a", last)
    await stage.settle()
    assert [stage.tables(name) for name in "abc"] == [{"last"}] * 3


@pytest.mark.parametrize(
    "script",
    [
        dead_behind_its_commit,
        without_spark_behind_its_commit,
        wanted_back_behind_its_commit,
        given_up_again_and_again,
    ],
)
def test_intent_has_the_state_before_its_operation_and_ends_with_it(script: Script) -> None:
    story(script)


# -- rules broken on purpose ---------------------------------------------------------------------


def stored_before_a_look(patch: pytest.MonkeyPatch) -> None:
    """Store intents before the look at the present tables."""
    begins = Unmarked.begins

    def hasty(self: Unmarked, offset: int) -> None:
        begins(self, offset)
        self._stood.setdefault(offset, "")

    patch.setattr(Unmarked, "begins", hasty)


@pytest.mark.parametrize("script", [dead_behind_its_commit, wanted_back_behind_its_commit])
def test_rule_that_an_intent_follows_a_look_broken_on_purpose_is_found(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs twice, and its origin takes the second outcome for its own."""
    stored_before_a_look(monkeypatch)
    found_by(lambda: story(script), Violation.UNEQUAL)
