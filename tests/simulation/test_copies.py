"""Tests of a cluster that becomes a copy of another one: new, rebuilt, and killed meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from haproc.classify.model import Kind
from haproc.config.model import OnDivergence
from haproc.failure import RequestError
from haproc.membership.state import State
from haproc.replicate.agree import donating
from haproc.replicate.member.steps import Step
from haproc.replicate.records.control import Copy
from tests.simulation.directed import CREATE, Stage, as_story, ddl
from tests.simulation.log import SimLog
from tests.simulation.ring import LIMITS, Node, cluster_of
from tests.simulation.scenario import insert, operation

WINDOW = 20
SHORT = replace(LIMITS, window_records=WINDOW)


async def writes(stage: Stage, count: int, *, by: str = "a", table: str = "t") -> None:
    for n in range(count):
        await stage.submit(by, insert(f"{stage.now}-{table}-{n}", table, by))
        await asyncio.sleep(0.5)


async def filled(stage: Stage) -> None:
    """Create two tables, t and u, with rows in both; all clusters serve."""
    await stage.submit("a", ddl("a"))
    await stage.submit("a", ddl("a", "second", CREATE.replace(" t ", " u ")))
    await writes(stage, 5)
    await writes(stage, 5, table="u")
    await stage.ready(*"abc")


async def join(stage: Stage, name: str) -> Node:
    member, node = cluster_of(name), stage.ring.add(name)
    await stage.replica("a").admission.join(name, member.peer, f"http://{member.listen}")
    return node


async def rebuild(stage: Stage, name: str, donor: str = "") -> None:
    await stage.replica(name).operators.rebuild(name, donor)
    await asyncio.sleep(1)


async def repair(stage: Stage, name: str, table: str, donor: str = "") -> None:
    await stage.replica(name).operators.repair(name, f"default.{table}", donor)


def copies(stage: Stage) -> int:
    """Return the number of copy records in the log."""
    return sum(isinstance(message, Copy) for message in stage.messages())


@as_story(limits=SHORT)
async def test_new_cluster_copies_its_tables_when_the_log_is_trimmed(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    await writes(stage, 40)
    await stage.until(lambda: stage.ring.store.start > 0)
    node = await join(stage, "d")
    node.start()
    await stage.until(lambda: stage.alive_state("d") is State.COPYING)
    loading = asyncio.ensure_future(writes(stage, 40))
    await stage.ready(*"abcd")
    await loading
    await stage.ready(*"abcd")
    assert node.spark.shelf.copied == ["t"]
    found = await stage.verify("d")
    assert {each["finding"] for each in found["clusters"].values()} == {"equal"}
    stage.check_equal(*"abcd")
    await writes(stage, 3, by="d")
    await stage.equal(*"abcd")


@as_story(limits=SHORT)
async def test_log_trimmed_while_a_process_begins_does_not_stop_the_process(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, trimmed = SimLog.start, list[int]()

    async def start(log: SimLog) -> int:
        found = await original(log)
        if log.of == "d" and not trimmed:
            trimmed.append(found)
            await log.trim(found + 1)  # as another HAProc may at this moment
        return found

    await stage.submit("a", ddl("a"))
    await writes(stage, 40)
    await stage.until(lambda: stage.ring.store.start > 0)
    node = await join(stage, "d")
    monkeypatch.setattr(SimLog, "start", start)
    node.start()
    await stage.ready(*"abcd")
    assert len(trimmed) == 1
    stage.check_equal(*"abcd")


@as_story(limits=SHORT)
async def test_new_cluster_with_tables_of_its_own_is_not_overwritten_without_a_rebuild(
    stage: Stage,
) -> None:
    await stage.submit("a", ddl("a"))
    await writes(stage, 40)
    await stage.until(lambda: stage.ring.store.start > 0)
    node = await join(stage, "d")
    node.spark.mend("CREATE TABLE mine (x)")
    node.start()
    await stage.until(lambda: stage.alive_state("d") is State.TOO_FAR_BEHIND)
    assert "haproc cluster rebuild d" in stage.reason("d")
    assert stage.tables("d") == {"mine"}
    await rebuild(stage, "d")
    await stage.equal(*"abcd")


@as_story()
async def test_diverged_cluster_is_rebuilt_under_load(stage: Stage) -> None:
    await filled(stage)
    stage.node("c").spark.mend("DELETE FROM t")
    await stage.verify("a")
    await stage.until(lambda: stage.alive_state("c") is State.DIVERGED)
    loading = asyncio.ensure_future(writes(stage, 30, table="u"))
    await rebuild(stage, "c", "b")
    await stage.until(lambda: stage.alive_state("c") is State.COPYING)
    assert "copies b" in stage.reason("c") or "begins to copy" in stage.reason("c")
    await stage.ready(*"abc")
    await loading
    await stage.equal(*"abc")
    found = await stage.verify("a")
    assert {each["finding"] for each in found["clusters"].values()} == {"equal"}


@pytest.mark.parametrize("step", [Step.COPIED_TABLE, Step.COPIED])
@as_story()
async def test_copy_of_a_killed_process_continues_with_the_missing_tables(
    stage: Stage, step: Step
) -> None:
    await filled(stage)
    stage.at("c", step, Node.kill)
    await rebuild(stage, "c")
    await stage.until(lambda: ("c", step) in stage.struck)
    await writes(stage, 5, table="u")
    stage.node("c").start()
    await stage.equal(*"abc")
    # What was done is not done again: the donor knows the marker still.
    assert sorted(stage.node("c").spark.shelf.copied) == ["t", "u"]
    assert copies(stage) == 1


@as_story()
async def test_donor_that_dies_is_replaced_by_another_donor(stage: Stage) -> None:
    await filled(stage)

    def donor_dies(node: Node) -> None:
        assert node.replica is not None
        progress = node.replica.taking.progress
        assert progress is not None
        stage.node(progress.donor).kill()

    stage.at("c", Step.COPIED_TABLE, donor_dies)
    await rebuild(stage, "c", "")
    await stage.until(lambda: stage.alive_state("c") is State.READY, 300)
    for name in "ab":
        stage.node(name).start()
    await stage.equal(*"abc")
    # The other one has noted the same: what was finished is not copied again.
    assert sorted(stage.node("c").spark.shelf.copied) == ["t", "u"]
    assert copies(stage) == 1


@as_story()
async def test_drop_waits_at_the_donor_until_the_copy_is_done(stage: Stage) -> None:
    await filled(stage)
    await rebuild(stage, "c", "a")
    await stage.until(lambda: stage.alive_state("c") is State.COPYING)
    await stage.until(lambda: "copies a" in stage.reason("c"))
    drop = operation("drop", Kind.DROP_TABLE, "DROP TABLE t", "b")
    dropped = asyncio.ensure_future(stage.submit("b", drop, 100))
    await stage.ready(*"abc")
    await dropped
    await stage.ready(*"abc")
    assert "t" not in stage.tables("c")
    stage.check_equal(*"abc")
    assert copies(stage) == 1


@as_story()
async def test_copy_begins_again_when_a_table_is_gone_at_the_donor(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(donating, "HELD", frozenset())

    await stage.submit("a", ddl("a"))
    await stage.submit("a", ddl("a", "second", CREATE.replace(" t ", " u ")))
    await stage.submit("a", ddl("a", "third", CREATE.replace(" t ", " v ")))
    await writes(stage, 5)
    await stage.ready(*"abc")

    stage.at("c", Step.COPIED_TABLE, Node.freeze)
    await rebuild(stage, "c", "a")
    await stage.until(lambda: ("c", Step.COPIED_TABLE) in stage.struck)
    await stage.submit("a", operation("drop", Kind.DROP_TABLE, "DROP TABLE v", "a"), 100)
    stage.node("c").thaw()
    await stage.ready(*"abc")
    await stage.until(lambda: "v" not in stage.tables("c"))
    await stage.equal(*"abc")
    assert copies(stage) == 2
    assert sorted(stage.node("c").spark.shelf.copied) == ["t", "u"]


@as_story()
async def test_rebuild_of_the_last_good_cluster_is_refused(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    for name in "bc":
        stage.node(name).kill()
    with pytest.raises(RequestError, match="no cluster could be copied"):
        await rebuild(stage, "a")
    assert stage.tables("a") == {"t"}


@as_story()
async def test_two_copies_at_once_leave_equal_clusters(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    await writes(stage, 5)
    await stage.ready(*"abc")
    await asyncio.gather(rebuild(stage, "b", "a"), rebuild(stage, "c", "a"))
    await writes(stage, 5)
    await stage.equal(*"abc")


@pytest.mark.parametrize("killed", [False, True])
@as_story()
async def test_single_table_is_repaired_under_load(stage: Stage, killed: bool) -> None:
    await filled(stage)
    stage.node("c").spark.mend("DELETE FROM t")
    await stage.verify("a")
    await stage.until(lambda: stage.alive_state("c") is State.DIVERGED)
    loading = asyncio.ensure_future(writes(stage, 10))
    if killed:
        stage.at("c", Step.COPIED_TABLE, Node.kill)
    await repair(stage, "c", "t")
    if killed:
        await stage.until(lambda: ("c", Step.COPIED_TABLE) in stage.struck)
        stage.node("c").start()
    await loading
    await stage.until(lambda: stage.node("c").spark.shelf.copied == ["t"])
    await stage.verify("a")
    await stage.equal(*"abc")
    assert stage.node("c").spark.shelf.copied == ["t"]


@as_story()
async def test_repair_without_a_donor_changes_nothing(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    await writes(stage, 5)
    await stage.ready(*"abc")
    copied = Copy("c", "a", stage.replica("c").core.own_log.epoch, ("default.t",))
    stage.node("a").kill()
    offset = await stage.replica("c").core.own_log.append(copied)
    await stage.until(lambda: stage.replica("c").taking.failure is not None, 300)
    failed = stage.replica("c").status().copy_failed
    assert failed is not None and failed.offset == offset
    await stage.equal(*"bc")


@pytest.mark.parametrize("killed", [False, True])
@as_story()
async def test_repair_that_fails_in_the_middle_takes_the_cluster_out_of_service(
    stage: Stage, killed: bool
) -> None:
    await stage.submit("a", ddl("a"))
    await writes(stage, 5)
    await stage.ready(*"abc")
    await repair(stage, "c", "t", "a")
    await stage.until(lambda: "t" in stage.node("c").spark.shelf.half)
    stage.node("a").kill()
    if killed:
        stage.node("c").restart()
    await stage.until(lambda: stage.alive_state("c") is State.DIVERGED, 300)
    assert "run haproc cluster rebuild" in stage.reason("c")
    stage.node("a").start()
    await rebuild(stage, "c", "b")
    await stage.equal(*"abc")


@pytest.mark.parametrize("undecided", [False, True])
@as_story()
async def test_diverged_cluster_is_rebuilt_automatically_if_the_others_agree(
    stage: Stage, undecided: bool
) -> None:
    stage.ring.configure(on_divergence=OnDivergence.REBUILD)
    for name in "abc":
        stage.node(name).restart()
    await stage.ready(*"abc")
    await stage.submit("a", ddl("a"))
    await writes(stage, 5)
    await stage.ready(*"abc")
    if undecided:
        stage.node("b").kill()
    stage.node("c").spark.mend("DELETE FROM t")
    await stage.verify("a", trusted="a")
    await stage.until(lambda: stage.alive_state("c") is State.DIVERGED)
    if undecided:  # one of two others is no majority
        await asyncio.sleep(120)
        assert stage.alive_state("c") is State.DIVERGED
        stage.node("b").start()
    await stage.equal(*"abc")
    assert stage.node("c").spark.shelf.copied == ["t"]


@pytest.mark.parametrize("wanted", ["", "a"])
@as_story()
async def test_copy_waits_for_a_donor_whose_spark_died(stage: Stage, wanted: str) -> None:
    await filled(stage)
    donor = []

    def spark_dies(node: Node) -> None:
        assert node.replica is not None and node.replica.taking.progress is not None
        donor.append(stage.node(node.replica.taking.progress.donor))
        donor[0].spark.kill()

    stage.at("c", Step.COPIED_TABLE, spark_dies)
    await rebuild(stage, "c", wanted)
    await stage.until(lambda: bool(donor))
    await asyncio.sleep(40)  # less than another one is asked after
    assert stage.alive_state("c") is State.COPYING
    donor[0].spark.restart()
    await stage.equal(*"abc")
    assert copies(stage) == 1


@as_story()
async def test_rebuild_waits_for_its_chosen_donor(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    await writes(stage, 5)
    await stage.ready(*"abc")
    await stage.replica("c").operators.rebuild("c", "a")
    stage.node("a").kill()
    stage.node("a").spark.kill()
    await asyncio.sleep(200)
    assert stage.alive_state("c") is State.COPYING
    assert copies(stage) <= 2
    stage.node("a").spark.restart()
    stage.node("a").start()
    await stage.equal(*"abc")
