"""Copies beside other work of the ring: a second copy, a verification, a drop, a failing operation."""

from __future__ import annotations

import asyncio

import pytest

from haproc.classify.model import Kind
from haproc.engine.interface import TableState
from haproc.failure import RequestError
from haproc.membership.state import Cause, Divergence, State
from haproc.replicate.member.steps import Step
from tests.simulation.directed import Stage, ddl, story
from tests.simulation.ring import Node, cluster_of
from tests.simulation.scenario import insert, operation
from tests.simulation.spark import SimSpark
from tests.simulation.test_copies import copies, filled, join, rebuild, repair, writes
from tests.simulation.test_poison_rejection import begin as poison_begin
from tests.simulation.test_poison_rejection import sent as poison_sent


def test_rebuild_keeps_nothing_of_an_earlier_one() -> None:
    """What was copied wrongly would be wrong for ever."""

    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        await writes(stage, 5)
        await stage.ready(*"abc")
        await rebuild(stage, "c", "a")
        await stage.ready(*"abc")
        stage.node("c").spark.mend("DELETE FROM t")  # which no commit tells of
        await rebuild(stage, "c", "a")
        await stage.ready(*"abc")
        stage.check_equal(*"abc")
        assert stage.node("c").spark.shelf.copied == ["t", "t"]

    story(tell)


def test_tables_that_are_repaired_at_the_same_time_are_all_repaired() -> None:
    async def tell(stage: Stage) -> None:
        await filled(stage)
        for table in "tu":
            stage.node("c").spark.mend(f"DELETE FROM {table}")
        await asyncio.gather(repair(stage, "c", "t", "a"), repair(stage, "c", "u", "a"))
        await stage.until(lambda: sorted(stage.node("c").spark.shelf.copied) == ["t", "u"])
        await stage.ready(*"abc")
        stage.check_equal(*"abc")

    story(tell)


def test_donor_that_is_found_to_differ_gives_nothing_more() -> None:
    async def tell(stage: Stage) -> None:
        await filled(stage)

        def differs(node: Node) -> None:
            stage.node("a").spark.mend("DELETE FROM u")
            found = Divergence(0, Cause.TABLES, applies=True, tables="u")
            stage.replica("a").core.condition.differs(found)

        stage.at("c", Step.COPIED_TABLE, differs)
        await rebuild(stage, "c")
        await stage.until(lambda: stage.alive_state("c") is State.READY, 300)
        await stage.ready(*"bc")
        stage.check_equal(*"bc")
        assert copies(stage) == 2  # the other one is b's

    story(tell)


def test_repair_of_what_the_donor_does_not_have_is_refused_and_changes_nothing() -> None:
    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        await writes(stage, 5)
        await stage.ready(*"abc")
        stage.node("c").spark.mend("CREATE TABLE mine (x)")
        with pytest.raises(RequestError, match=r"a has no Delta table default\.mine"):
            await repair(stage, "c", "mine", "a")
        await repair(stage, "c", "T", "a")  # names are as in Spark
        await stage.until(lambda: stage.node("c").spark.shelf.copied == ["t"])
        assert stage.tables("c") == {"mine", "t"}
        assert stage.node("c").spark.dump()["t"] == stage.node("a").spark.dump()["t"]

    story(tell)


@pytest.mark.parametrize("added", ["before", "after"])
def test_new_cluster_has_the_tables_that_the_others_had_before_the_log(added: str) -> None:
    async def tell(stage: Stage) -> None:
        for name in "abc":
            stage.node(name).spark.mend("CREATE TABLE old (x)")
            stage.node(name).spark.mend("INSERT INTO old VALUES ('kept')")
        await stage.submit("a", ddl("a"))
        await writes(stage, 5)
        if added == "before":
            (await join(stage, "d")).start()
        else:
            await stage.replica("a").admission.leave("c")  # so that the log names the members
            stage.ring.add("d").start()
            await stage.until(lambda: stage.alive_state("d") is State.REMOVED)
            await writes(stage, 3)
            d = cluster_of("d")
            await stage.replica("a").admission.join("d", d.peer, d.client_url)
            await stage.until(lambda: stage.alive_state("d") is State.COPYING)
        await stage.ready("a", "b", "d")
        await writes(stage, 3, by="d")
        await stage.ready("a", "b", "d")
        stage.check_equal("a", "b", "d")
        assert stage.tables("d") == {"old", "t"}
        assert stage.ring.store.start == 0

    story(tell)


def test_operation_that_no_cluster_can_apply_does_not_hold_a_rebuild_for_ever() -> None:
    """The operator vouches for the cluster whose tables are replaced: it has nothing to say."""

    async def tell(stage: Stage) -> None:
        await poison_begin(stage, *"abc")
        offset = await poison_sent(stage)
        await rebuild(stage, "c")
        await stage.until(lambda: stage.alive_state("c") is State.COPYING)
        await stage.until(lambda: stage.alive_state("a") is State.STUCK, 300)
        found = await stage.replica("a").operators.revoke(offset, "poison", ["c"])
        assert found["status"] == "revoked"
        await stage.ready(*"abc")
        stage.check_equal(*"abc")

    story(tell)


def test_drop_that_waits_at_the_donor_holds_up_nobody_else() -> None:
    async def tell(stage: Stage) -> None:
        await filled(stage)
        stage.at("c", Step.COPIED_TABLE, Node.freeze)
        await rebuild(stage, "c", "a")
        await stage.until(lambda: ("c", Step.COPIED_TABLE) in stage.struck)
        drop = operation("drop", Kind.DROP_TABLE, "DROP TABLE t", "a")
        dropped = asyncio.ensure_future(stage.submit("a", drop, 300))
        await asyncio.sleep(5)
        began = stage.now
        await stage.submit("b", insert("meanwhile", "u", "b"), 60)
        assert stage.now - began < 20 and not dropped.done()
        stage.node("c").thaw()
        await dropped
        await stage.ready(*"abc")
        stage.check_equal(*"abc")

    story(tell)


def test_donor_whose_verification_is_not_judged_gives_nothing() -> None:
    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        await writes(stage, 5)
        await stage.ready(*"abc")
        stage.node("a").spark.mend("DELETE FROM t")
        original = SimSpark.checksum

        async def slow(self: SimSpark, state: TableState, *, timeout_s: float) -> str:
            await asyncio.sleep(100 if self.name == "b" else 0)
            return await original(self, state, timeout_s=timeout_s)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SimSpark, "checksum", slow)
            verifying = asyncio.ensure_future(stage.verify("a"))
            await asyncio.sleep(2)
            await rebuild(stage, "c", "")
            await verifying
        await stage.until(lambda: stage.alive_state("a") is State.DIVERGED, 300)
        await stage.ready(*"bc")
        stage.check_equal(*"bc")

    story(tell)
