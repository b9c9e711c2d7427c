"""Tests of backups: a cluster is backed up to a place outside, and a new ring restored from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from haproc.classify.model import Kind
from haproc.engine.backups import Manifest, TableBackup, manifest_offsets
from haproc.engine.errors import EngineError, ErrorKind
from haproc.failure import RequestError
from haproc.membership.state import State
from haproc.replicate.agree import donating
from haproc.replicate.backing_up import BackupState
from haproc.replicate.member.steps import Step
from haproc.replicate.records.operation import Operation
from haproc.replicate.restoring import RestoreState
from tests.simulation.copies import SimCopies, checksum
from tests.simulation.directed import Stage, as_story, story
from tests.simulation.places import Places
from tests.simulation.ring import Node
from tests.simulation.scenario import operation
from tests.simulation.test_copies import filled, writes

PLACE = "/outside/sales"


def begin(stage: Stage, name: str = "a") -> None:
    stage.operators(name).backup(name, PLACE)


async def over(stage: Stage, name: str = "a", timeout_s: float = 300) -> Mapping[str, Any]:
    """Wait until a cluster's backup has ended; return its status."""
    standing = stage.operators(name).backup_status
    await stage.until(lambda: standing()["state"] != BackupState.RUNNING, timeout_s)
    return standing()


async def back_up(stage: Stage, name: str = "a") -> Manifest:
    """Make a backup; return its manifest."""
    begin(stage, name)
    found = await over(stage, name)
    assert found["state"] == BackupState.DONE, found["message"]
    return manifests(stage.ring.places)[-1]


def manifests(places: Places) -> list[Manifest]:
    """Return the manifests in the place, oldest first."""
    names = sorted(name for name in places.names(PLACE) if manifest_offsets([name]))
    return [Manifest.of(places.files[f"{PLACE}/{name}"]) for name in names]


def check_manifest(stage: Stage, manifest: Manifest) -> None:
    """Check that the place holds the manifest's tables, with their rows and checksums."""
    for table in manifest.tables:
        kept = stage.ring.places.table(table.table(PLACE).location, table.version)
        assert (kept.version, kept.meta["id"]) == (table.version, table.id)
        assert checksum(rows_of(stage.ring.places, table)) == table.checksum
        assert len(rows_of(stage.ring.places, table)) == table.rows


def rows_of(places: Places, table: TableBackup) -> list[tuple[object, ...]]:
    folder = table.table(PLACE).location
    kept = places.table(folder, table.version)
    files = [places.files[f"{folder}/{path}"] for path in sorted(kept.adds)]
    return [tuple(row) for data in files for row in json.loads(data)]


def kept(manifest: Manifest) -> dict[str, str]:
    return {table.name: table.checksum for table in manifest.tables}


def held(stage: Stage, name: str) -> dict[str, str]:
    return {table: checksum(rows) for table, rows in stage.node(name).spark.dump().items()}


async def fresh(stage: Stage) -> Stage:
    """Return a new ring, with a log and clusters of its own, that reaches the same place."""
    other = Stage(7)
    other.ring.places.files = stage.ring.places.files
    await other.ring.begin()
    return other


async def ask(stage: Stage, name: str, offset: int) -> RestoreState:
    """Request a running cluster's restore; return the state."""
    answer = await stage.operators(name).restore(name, PLACE, offset, verify=True)
    return RestoreState(str(answer["state"]))


async def restore(stage: Stage, manifest: Manifest) -> None:
    """Restore all clusters of a ring, as ``haproc restore`` does; they serve at the end."""
    names = tuple(stage.ring.nodes)
    for name in names:
        stage.node(name).drain(drained=True)
    for name in names:
        assert await ask(stage, name, manifest.offset) == RestoreState.ASKED
    for name in names:
        await restored(stage, name, manifest)
        stage.node(name).drain(drained=False)
    await stage.ready(*names)
    assert all(held(stage, name) == kept(manifest) for name in names)


async def restored(stage: Stage, name: str, manifest: Manifest) -> None:
    """Wait until a cluster is restored; a process that dies is started again."""
    async with asyncio.timeout(300):
        while True:
            await asyncio.sleep(0.5)
            stage.node(name).start()
            assert stage.alive_state(name) is not State.TOO_FAR_BEHIND, stage.reason(name)
            if stage.alive_state(name) in (State.COPYING, State.STARTING):
                continue
            try:
                if await ask(stage, name, manifest.offset) == RestoreState.RESTORED:
                    return
            except RequestError:
                continue


def once_written(stage: Stage, count: int) -> Callable[[], bool]:
    """Return a function that returns whether so many more files were written to the place."""
    before = len(stage.ring.places.written)
    return lambda: len(stage.ring.places.written) >= before + count


@as_story()
async def test_backup_under_load_is_of_one_log_offset_and_restores_a_new_ring(
    stage: Stage,
) -> None:
    await filled(stage)
    loading = asyncio.gather(writes(stage, 30), writes(stage, 30, table="u", by="b"))
    await asyncio.sleep(3)
    manifest = await back_up(stage)
    await loading
    await stage.ready(*"abc")
    check_manifest(stage, manifest)
    # All that is below the marker, and nothing that is behind it.
    below = {"t": 0, "u": 0}
    for message in stage.ring.store.all_messages()[: manifest.offset]:
        if isinstance(message, Operation) and message.kind is Kind.INSERT:
            below[next(iter(message.writes))] += 1
    assert {table.name: table.rows for table in manifest.tables} == below
    assert held(stage, "a") != kept(manifest)

    other = await fresh(stage)
    await restore(other, manifest)
    await writes(other, 3, by="b")
    await other.ready(*"abc")
    other.check_equal(*"abc")


@pytest.mark.parametrize("files", [0, 1, 2, 4, 5, 6])
@as_story()
async def test_backup_whose_process_is_killed_has_no_manifest_and_the_next_one_completes(
    stage: Stage, files: int
) -> None:
    await filled(stage)
    struck = once_written(stage, files)
    begin(stage)
    await stage.until(lambda: struck() and bool(files or stage.ring.places.files))
    stage.node("a").kill()
    # Whatever the seed: four files, two commits and the manifest make a backup.
    assert manifests(stage.ring.places) == []
    await writes(stage, 2, by="b")
    stage.node("a").start()
    await stage.ready(*"abc")
    assert stage.operators("a").backup_status()["state"] == BackupState.NONE
    manifest = await back_up(stage)
    check_manifest(stage, manifest)
    await restore(await fresh(stage), manifest)


@pytest.mark.parametrize("files", [0, 1, 3, 4, 6])
@as_story()
async def test_backup_continues_when_spark_is_back(stage: Stage, files: int) -> None:
    await filled(stage)
    struck = once_written(stage, files)
    begin(stage)
    await stage.until(struck)
    stage.node("a").spark.kill()
    await asyncio.sleep(20)
    assert stage.operators("a").backup_status()["state"] == BackupState.RUNNING
    stage.node("a").spark.restart()
    found = await over(stage)
    assert found["state"] == BackupState.DONE, found["message"]
    (manifest,) = manifests(stage.ring.places)
    check_manifest(stage, manifest)
    await restore(await fresh(stage), manifest)


@as_story()
async def test_later_backup_writes_only_changes_and_both_can_be_restored(stage: Stage) -> None:
    await filled(stage)
    first = await back_up(stage)
    files = len(stage.ring.places.written)
    await writes(stage, 4)
    second = await back_up(stage)
    # Three of t's files at most, its commit, and the manifest; u costs nothing.
    assert len(stage.ring.places.written) - files <= 5
    versions = [{table.name: table.version for table in each.tables} for each in (first, second)]
    assert versions == [{"t": 0, "u": 0}, {"t": 1, "u": 0}]
    # Another cluster's tables have other files and other versions, but the same rows.
    third = await back_up(stage, "b")
    assert kept(third) == kept(second)
    for manifest in (first, second, third):
        check_manifest(stage, manifest)
        await restore(await fresh(stage), manifest)


@as_story()
async def test_drop_waits_until_the_backup_has_the_table(stage: Stage) -> None:
    await filled(stage)
    struck = once_written(stage, 1)
    begin(stage)
    await stage.until(struck)
    drop = operation("drop", Kind.DROP_TABLE, "DROP TABLE u", "b")
    dropped = asyncio.ensure_future(stage.submit("b", drop, 100))
    found = await over(stage)
    assert found["state"] == BackupState.DONE, found["message"]
    await dropped
    await stage.ready(*"abc")
    assert stage.tables("a") == {"t"}
    (manifest,) = manifests(stage.ring.places)
    assert set(kept(manifest)) == {"t", "u"}
    await restore(await fresh(stage), manifest)


@as_story()
async def test_backup_of_a_dropped_table_fails_and_leaves_the_earlier_backup(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(stage)
    earlier = await back_up(stage)
    monkeypatch.setattr(donating, "HELD", frozenset())
    await writes(stage, 2)
    await writes(stage, 2, table="u")
    struck = once_written(stage, 1)
    begin(stage)
    await stage.until(struck)
    await stage.submit("b", operation("drop", Kind.DROP_TABLE, "DROP TABLE u", "b"), 100)
    found = await over(stage)
    assert (found["state"], found["message"]) == (BackupState.FAILED, "u is gone")
    assert manifests(stage.ring.places) == [earlier]
    await stage.ready(*"abc")
    later = await back_up(stage)
    assert set(kept(later)) == {"t"}
    for manifest in (earlier, later):
        check_manifest(stage, manifest)
        await restore(await fresh(stage), manifest)


@pytest.mark.parametrize("seed", range(12))
def test_two_backups_into_one_place_each_succeed_whole_or_fail(seed: int) -> None:
    async def script(stage: Stage) -> None:
        await filled(stage)
        loading = asyncio.gather(writes(stage, 20), writes(stage, 20, table="u", by="b"))
        begin(stage, "a")
        await asyncio.sleep(seed / 10)
        begin(stage, "b")
        ends = [await over(stage, name) for name in "ab"]
        await loading
        done = [end for end in ends if end["state"] == BackupState.DONE]
        assert len(manifests(stage.ring.places)) == len(done)
        for end in ends:
            if end not in done:
                assert "back up into another place" in str(end["message"])
        await stage.ready(*"abc")
        await back_up(stage, "b")
        for manifest in manifests(stage.ring.places):
            check_manifest(stage, manifest)
            await restore(await fresh(stage), manifest)

    story(script, seed=seed)


@pytest.mark.parametrize("step", [None, Step.COPIED_TABLE, Step.COPIED])
@as_story()
async def test_restore_that_is_killed_continues(stage: Stage, step: Step | None) -> None:
    await filled(stage)
    manifest = await back_up(stage)
    other = await fresh(stage)
    if step is not None:
        other.at("a", step, Node.kill)
        other.at("b", step, lambda node: node.spark.kill())
    striking = asyncio.ensure_future(strike(other, step))
    await restore(other, manifest)
    await striking
    assert all(sorted(other.node(name).spark.shelf.copied) == ["t", "u"] for name in "abc")


async def strike(stage: Stage, step: Step | None) -> None:
    """Kill a's HAProc and b's Spark in the middle of a table, or at a step; start the Spark."""
    if step is None:
        await half_way(stage, "a")
        stage.node("a").kill()
        await half_way(stage, "b")
        stage.node("b").spark.kill()
    else:
        await stage.until(lambda: {("a", step), ("b", step)} <= stage.struck.keys(), 300)
    await asyncio.sleep(5)
    stage.node("b").spark.restart()


async def half_way(stage: Stage, name: str) -> None:
    """Wait until a cluster has a part of a table."""
    shelf = stage.node(name).spark.shelf
    await stage.until(lambda: any(files for _, files in shelf.half.values()), 300)


@as_story()
async def test_restore_that_cannot_read_a_file_reports_it_and_continues_when_it_can(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, gone = SimCopies.transfer, [True]

    async def transfer(
        self: SimCopies, source: str, target: str, paths: Sequence[str]
    ) -> tuple[int, int]:
        if gone[0]:
            raise EngineError(ErrorKind.ENVIRONMENT, "a file cannot be read")
        return await original(self, source, target, paths)

    monkeypatch.setattr(SimCopies, "transfer", transfer)

    await filled(stage)
    gone[0] = False
    manifest = await back_up(stage)
    other, gone[0] = await fresh(stage), True
    restoring = asyncio.ensure_future(restore(other, manifest))
    await other.until(lambda: "again after: a file cannot be read" in other.reason("a"))
    gone[0] = False
    await other.until(lambda: "again after" not in other.reason("a"))
    await restoring
