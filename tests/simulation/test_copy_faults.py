"""Tests of copies beside other work: a second copy, a verification, a drop, a failing operation."""

from __future__ import annotations

import asyncio

import pytest

from haproc.classify.model import Kind
from haproc.engine.interface import TableState
from haproc.failure import RequestError
from haproc.membership.peers import CopyAnswer
from haproc.membership.state import Cause, Divergence, State
from haproc.replicate.agree import donating
from haproc.replicate.agree.donating import Donor
from haproc.replicate.agree.rebuilding import ask_for
from haproc.replicate.member.steps import Step
from haproc.replicate.records.progress import CopyRequest
from tests.simulation.copies import SimCopies
from tests.simulation.directed import Stage, as_story, ddl, story
from tests.simulation.life import Life
from tests.simulation.ring import Node, cluster_of
from tests.simulation.scenario import insert, operation
from tests.simulation.spark import SimSpark
from tests.simulation.test_copies import copies, filled, join, rebuild, repair, writes
from tests.simulation.test_poison_rejection import begin as poison_begin
from tests.simulation.test_poison_rejection import sent as poison_sent


@as_story()
async def test_rebuild_uses_nothing_of_an_earlier_one(stage: Stage) -> None:
    """A wrong row that was copied would stay wrong for ever."""
    await stage.submit("a", ddl("a"))
    await writes(stage, 5)
    await stage.ready(*"abc")
    await rebuild(stage, "c", "a")
    await stage.ready(*"abc")
    stage.node("c").spark.mend("DELETE FROM t")  # which no commit tells of
    await rebuild(stage, "c", "a")
    await stage.equal(*"abc")
    assert stage.node("c").spark.shelf.copied == ["t", "t"]


@as_story()
async def test_tables_that_are_repaired_at_once_are_all_repaired(stage: Stage) -> None:
    await filled(stage)
    for table in "tu":
        stage.node("c").spark.mend(f"DELETE FROM {table}")
    await asyncio.gather(repair(stage, "c", "t", "a"), repair(stage, "c", "u", "a"))
    await stage.until(lambda: sorted(stage.node("c").spark.shelf.copied) == ["t", "u"])
    await stage.equal(*"abc")


@as_story()
async def test_donor_that_becomes_diverged_is_replaced_by_another_donor(stage: Stage) -> None:
    await filled(stage)

    def differs(node: Node) -> None:
        stage.node("a").spark.mend("DELETE FROM u")
        found = Divergence(0, Cause.TABLES, applies=True, tables="u")
        stage.replica("a").core.condition.differs(found)

    stage.at("c", Step.COPIED_TABLE, differs)
    await rebuild(stage, "c")
    await stage.until(lambda: stage.alive_state("c") is State.READY, 300)
    await stage.equal(*"bc")
    assert copies(stage) == 2  # the other one is b's


@as_story()
async def test_repair_of_a_table_that_the_donor_lacks_is_refused_and_changes_nothing(
    stage: Stage,
) -> None:
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


@pytest.mark.parametrize("added", ["before", "after"])
@as_story()
async def test_new_cluster_has_the_tables_that_the_others_had_before_the_log(
    stage: Stage, added: str
) -> None:
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
        await stage.replica("a").admission.join("d", d.peer, f"http://{d.listen}")
        await stage.until(lambda: stage.alive_state("d") is State.COPYING)
    await stage.ready("a", "b", "d")
    await writes(stage, 3, by="d")
    await stage.equal("a", "b", "d")
    assert stage.tables("d") == {"old", "t"}
    assert stage.ring.store.start == 0


@as_story()
async def test_poison_operation_before_a_rebuild_is_revoked_by_an_operator(
    stage: Stage,
) -> None:
    """The operator vouches for the cluster that is being rebuilt: it does not vote."""
    await poison_begin(stage, *"abc")
    offset = await poison_sent(stage)
    await rebuild(stage, "c")
    await stage.until(lambda: stage.alive_state("c") is State.COPYING)
    await stage.until(lambda: stage.alive_state("a") is State.STUCK, 300)
    found = await stage.replica("a").operators.revoke(offset, "poison", ["c"])
    assert found["status"] == "revoked"
    await stage.equal(*"abc")


@as_story()
async def test_drop_that_waits_at_the_donor_delays_no_other_operation(stage: Stage) -> None:
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
    await stage.equal(*"abc")


def test_copies_at_once_share_the_donors_limit_of_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(donating, "READS_AT_ONCE", 1)
    original, running = SimCopies.read_file_part, list[int]()
    most = 0

    async def counted(
        self: SimCopies, location: str, path: str, offset: int, length: int
    ) -> tuple[int, bytes]:
        nonlocal most
        running.append(1)
        most = max(most, len(running))
        try:
            return await original(self, location, path, offset, length)
        finally:
            running.pop()

    monkeypatch.setattr(SimCopies, "read_file_part", counted)

    async def script(stage: Stage) -> None:
        await filled(stage)
        await asyncio.gather(rebuild(stage, "b", "a"), rebuild(stage, "c", "a"))
        await stage.equal(*"abc")
        assert most == 1

    story(script)


@as_story()
async def test_donor_with_an_unfinished_verification_gives_no_tables(stage: Stage) -> None:
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
    await stage.equal(*"bc")


@as_story()
async def test_donor_that_restarts_during_a_copy_makes_the_copy_begin_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers before it knows whether there are notes: that is not an empty list of files."""

    monkeypatch.setattr(Donor, "_without_notes", lambda self, marker: CopyAnswer("pending"))

    await filled(stage)
    stage.at("c", Step.COPIED_TABLE, lambda _: stage.node("a").restart())
    await rebuild(stage, "c", "a")
    await stage.until(lambda: stage.alive_state("c") is State.READY, 300)
    await stage.equal(*"abc")
    assert copies(stage) == 2


@as_story()
async def test_repaired_cluster_applies_missed_operations_before_it_serves(stage: Stage) -> None:
    await filled(stage)
    loading = asyncio.ensure_future(writes(stage, 40, table="u"))
    stage.at("c", Step.COPIED_TABLE, Node.freeze)
    await repair(stage, "c", "t", "a")
    await stage.until(lambda: ("c", Step.COPIED_TABLE) in stage.struck)
    await asyncio.sleep(5)
    states = list[State]()

    def note(life: Life, state: State, reason: str) -> None:
        if life.node.name == "c":
            states.append(state)

    stage.ring.on_state = note
    stage.node("c").thaw()
    await loading
    await stage.ready(*"abc")
    assert states.index(State.RECOVERING) < states.index(State.READY)
    stage.check_equal(*"abc")


@as_story()
async def test_rebuild_from_a_donor_with_an_uncopyable_table_is_refused(
    stage: Stage,
) -> None:
    await filled(stage)
    stage.node("a").spark.shelf.others.append(("default.p", "a parquet table"))
    with pytest.raises(RequestError, match=r"default\.p: a parquet table"):
        await rebuild(stage, "c", "a")
    await stage.ready(*"abc")
    await writes(stage, 2, by="c")
    await repair(stage, "c", "t", "a")  # a single table can be
    await stage.equal(*"abc")


@as_story()
async def test_rebuild_whose_donor_is_repaired_from_it_can_be_withdrawn(stage: Stage) -> None:
    """Each waits for the other: the one that lost a table reports it, the other one is whole."""
    await filled(stage)
    await asyncio.gather(rebuild(stage, "b", "a"), repair(stage, "a", "t", "b"))
    await stage.until(lambda: stage.alive_state("a") is State.DIVERGED, 200)
    await stage.until(lambda: "a is DIVERGED" in stage.reason("b"))
    stage.operators("b").withdraw("b")
    await stage.until(lambda: stage.alive_state("b") is State.READY)
    await rebuild(stage, "a", "b")
    await stage.equal(*"abc")


@as_story()
async def test_rebuilds_that_wait_for_each_other_can_be_withdrawn(stage: Stage) -> None:
    await filled(stage)
    with pytest.raises(RequestError, match="does not wait for a donor: it is READY"):
        stage.operators("a").withdraw("a")
    for name in "abc":  # as if all had been asked at the same moment
        await ask_for(stage.replica(name).core, CopyRequest())
    for name in "abc":
        stage.operators(name).on_rebuild()
    await asyncio.sleep(60)
    assert {stage.alive_state(name) for name in "abc"} == {State.COPYING}
    stage.operators("b").withdraw("b")
    await stage.equal(*"abc")
    assert stage.node("b").spark.shelf.copied == []
    with pytest.raises(RequestError, match="does not wait for a donor"):
        stage.operators("b").withdraw("b")
