"""Tests of copies by storage: a cluster's own Spark reads another cluster's files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from haproc.classify.model import Kind
from haproc.failure import RequestError
from haproc.membership.state import State
from haproc.replicate.member.steps import Step
from tests.simulation.copies import Shelf, SimCopies
from tests.simulation.directed import Stage, as_story, ddl
from tests.simulation.ring import Node
from tests.simulation.scenario import operation
from tests.simulation.test_copies import copies, filled, join, rebuild, repair, writes


def mount(stage: Stage, reader: str) -> Shelf:
    """Let a cluster's Spark read the files of all clusters; return the cluster's shelf."""
    shelf = stage.node(reader).spark.shelf
    shelf.mounts = {name: node.spark for name, node in stage.ring.nodes.items()}
    return shelf


async def configured(stage: Stage, **at: str) -> None:
    """Restart c's HAProc with a configuration that has the places of other clusters' files."""
    stage.ring.storage = {name: ((f"/{name}", place),) for name, place in at.items()}
    stage.node("c").restart()
    await stage.ready(*"abc")


async def begun(stage: Stage) -> Shelf:
    await filled(stage)
    await configured(stage, a="/mnt/a", b="/mnt/b")
    return mount(stage, "c")


@as_story()
async def test_configured_cluster_is_copied_by_storage_under_load(stage: Stage) -> None:
    shelf = await begun(stage)
    loading = asyncio.ensure_future(writes(stage, 20))
    await rebuild(stage, "c")
    await loading
    await stage.equal(*"abc")
    assert sorted(shelf.transferred) == sorted(shelf.copied) == ["t", "u"]


@pytest.mark.parametrize("way", ["storage", "stream"])
@as_story()
async def test_rebuild_uses_the_requested_way(stage: Stage, way: str) -> None:
    await filled(stage)
    if way == "stream":
        await configured(stage, a="/mnt/a", b="/mnt/b")
    shelf = mount(stage, "c")
    stage.node("a").spark.shelf.mounts = {}
    with pytest.raises(RequestError, match="the way is storage or stream"):
        await stage.operators("c").rebuild("c", "", "letter")
    if way == "storage":  # nothing says how a's files are reached
        with pytest.raises(RequestError, match="there is no folder /a/u@"):
            await stage.operators("c").rebuild("c", "a", way)
    else:
        await stage.operators("c").rebuild("c", "a", way)
        await stage.until(lambda: stage.alive_state("c") is State.COPYING)
    await stage.equal(*"abc")
    assert not shelf.transferred and sorted(shelf.copied) == ["t", "u"] * (way == "stream")


@as_story()
async def test_copy_by_storage_of_a_killed_process_continues_without_a_second_transfer(
    stage: Stage,
) -> None:
    shelf = await begun(stage)
    await rebuild(stage, "c")
    for count in (1, 2):  # the file is there, and its table is not finished
        await stage.until(lambda count=count: len(shelf.transferred) == count)  # type: ignore[misc]
        stage.node("c").kill()
        assert shelf.half
        stage.node("c").start()
    await stage.equal(*"abc")
    assert sorted(shelf.transferred) == sorted(shelf.copied) == ["t", "u"]
    assert copies(stage) == 1


@as_story()
async def test_wrong_mapping_is_found_before_a_table_is_dropped(stage: Stage) -> None:
    await filled(stage)
    await configured(stage, a="/mnt/elsewhere", b="/mnt/b")
    mount(stage, "c")
    with pytest.raises(RequestError, match=r"table at /mnt/elsewhere/u@.*--way stream"):
        await rebuild(stage, "c", "a")
    await stage.ready(*"abc")
    assert stage.node("c").spark.shelf.copied == [] and copies(stage) == 0
    stage.check_equal(*"abc")
    # A repair finds it at its place in the order, and the cluster goes on.
    await repair(stage, "c", "t", "a")
    await stage.until(lambda: stage.replica("c").taking.failure is not None, 300)
    await stage.equal(*"abc")
    await rebuild(stage, "c", "b")
    await stage.equal(*"abc")


@as_story()
async def test_new_cluster_with_a_wrong_mapping_reports_it_and_can_be_rebuilt_by_stream(
    stage: Stage,
) -> None:
    for name in "abc":
        stage.node(name).spark.mend("CREATE TABLE old (x)")
    await filled(stage)
    stage.ring.storage = {name: ((f"/{name}", "/mnt/elsewhere"),) for name in "abc"}
    node = await join(stage, "d")
    node.start()
    await stage.until(lambda: stage.alive_state("d") is State.TOO_FAR_BEHIND, 300)
    assert "/mnt/elsewhere" in stage.reason("d") and "--way stream" in stage.reason("d")
    await stage.operators("d").rebuild("d", "", "stream")
    await stage.equal(*"abcd")


@pytest.mark.parametrize(("away_s", "replaced"), [(30, False), (1000, True)])
@as_story()
async def test_storage_that_is_away_is_waited_for_or_replaced_by_the_spares(
    stage: Stage, away_s: float, replaced: bool
) -> None:
    """The cluster's lineage names the donor of the completed copy."""
    shelf, donors = await begun(stage), list[str]()

    def is_away(node: Node) -> None:
        assert node.replica is not None and node.replica.taking.progress is not None
        donors.append(node.replica.taking.progress.donor)
        del shelf.mounts[donors[0]]

    stage.at("c", Step.COPIED_TABLE, is_away)
    await rebuild(stage, "c")
    await stage.until(lambda: bool(donors))
    await asyncio.sleep(away_s)
    mount(stage, "c")
    await stage.equal(*"abc")
    assert sorted(shelf.copied) == ["t", "u"] and copies(stage) == 1
    copied_from, _ = stage.replica("c").core.notes.lineage[-1]
    assert (copied_from != donors[0]) is replaced


@as_story()
async def test_donor_keeps_its_files_during_a_long_transfer(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = SimCopies.transfer

    async def slow(
        self: SimCopies, source: str, target: str, paths: Sequence[str]
    ) -> tuple[int, int]:
        await asyncio.sleep(500)
        return await original(self, source, target, paths)

    monkeypatch.setattr(SimCopies, "transfer", slow)

    shelf = await begun(stage)
    await rebuild(stage, "c", "a")
    await stage.until(lambda: bool(shelf.half))
    drop = operation("drop", Kind.DROP_TABLE, "DROP TABLE u", "b")
    dropped = asyncio.ensure_future(stage.submit("b", drop, 3000))
    await stage.until(lambda: stage.alive_state("c") is State.READY, 3000)
    await dropped
    await stage.ready(*"abc")
    assert stage.tables("c") == {"t"}
    assert sorted(shelf.copied) == ["t", "u"] and copies(stage) == 1


@as_story()
async def test_drop_does_not_wait_at_a_spare(stage: Stage) -> None:
    await filled(stage)
    stage.at("c", Step.COPIED_TABLE, Node.freeze)
    await rebuild(stage, "c")
    await stage.until(lambda: ("c", Step.COPIED_TABLE) in stage.struck)
    began = stage.now
    drop = operation("drop", Kind.DROP_TABLE, "DROP TABLE u", "b")
    dropped = asyncio.ensure_future(stage.submit("b", drop, 3000))
    await stage.until(lambda: "u" not in stage.tables("b"))  # c has a's
    assert stage.now - began < 20 and "u" in stage.tables("a")
    stage.node("c").thaw()
    await dropped
    await stage.equal(*"abc")


@as_story()
async def test_repair_copies_matching_tables_only(stage: Stage) -> None:
    shelf = await begun(stage)
    await stage.submit("a", ddl("a", "third", "CREATE TABLE v (id INT, k TEXT)"))
    await stage.ready(*"abc")
    for table in "tu":
        stage.node("c").spark.mend(f"DELETE FROM {table}")
    answer = await stage.operators("c").repair("c", "DEFAULT.[tu]", "a")
    assert answer["tables"] == ["default.t", "default.u"]
    await stage.until(lambda: sorted(shelf.copied) == ["t", "u"])
    await stage.equal(*"abc")
    assert sorted(shelf.transferred) == ["t", "u"]
    with pytest.raises(RequestError, match=r"a has no Delta table other\.\*"):
        await stage.operators("c").repair("c", "other.*", "a")
    stage.node("c").spark.kill()
    await stage.until(lambda: stage.alive_state("c") is not State.READY)
    with pytest.raises(RequestError, match="cluster c is DOWN"):
        await stage.operators("c").repair("c", "default.*", "a")
