"""Tests of a ring that lost its log and is founded on one cluster, and of a moved log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dmq import MemoryKeys, MemoryKeyValueStore, MemoryLog
from dmq.key_value import origin_of
from dmq.log import FILLER_STORED
from dmq.moving import export_log, import_log
from haproc.failure import RequestError
from haproc.membership.state import State
from haproc.replicate.records.control import Copy
from haproc.ring.new_log import found
from tests.simulation.directed import Stage, as_story, ddl
from tests.simulation.log import KeepingStore
from tests.simulation.scenario import insert


async def differing(stage: Stage) -> int:
    """Stop the ring with b behind the others, and lose its log; return the log's end."""
    await stage.submit("a", ddl("a"))
    await stage.submit("a", insert("first", "t", "a"))
    await stage.ready(*"abc")
    stage.node("b").kill()
    await stage.submit("a", insert("second", "t", "a"))
    await stage.ready(*"ac")
    for node in stage.ring.nodes.values():
        node.kill()
    end = stage.ring.store.end
    stage.ring.store = KeepingStore()
    stage.ring.store.identity = "the new one"
    stage.ring.keyed = MemoryKeys()
    return end


async def founded(stage: Stage, founder: str, begins_at: int) -> None:
    store = stage.ring.store
    log, keyed = MemoryLog(store), MemoryKeyValueStore(stage.ring.keyed)
    await found(log, keyed, founder, stage.ring.names, begins_at)
    store.everything = [FILLER_STORED] * begins_at
    await log.close()
    await keyed.close()


def rows(stage: Stage, name: str) -> int:
    return len(stage.node(name).spark.dump()["t"])


@pytest.mark.parametrize("founder", "ab")
@as_story()
async def test_all_clusters_become_copies_of_the_founder_before_they_serve(
    stage: Stage, founder: str
) -> None:
    end = await differing(stage)
    held = rows(stage, founder)
    await founded(stage, founder, end)
    others = [name for name in "abc" if name != founder]
    for name in others:
        stage.node(name).start()
    await asyncio.sleep(30)
    assert {stage.alive_state(name) for name in others} == {State.COPYING}
    for name in others:
        with pytest.raises(RequestError):
            stage.operators(name).withdraw(name)
    stage.node(founder).start()
    await stage.equal(*"abc")
    assert rows(stage, founder) == held
    for number, name in enumerate("abc"):
        await stage.submit(name, insert(f"new-{number}", "t", name))
    await stage.equal(*"abc")
    assert rows(stage, founder) == held + 3
    verified = await stage.verify(founder)
    assert {each["finding"] for each in verified["clusters"].values()} == {"equal"}


@as_story()
async def test_request_of_the_lost_log_is_refused_and_not_applied_again(stage: Stage) -> None:
    began = stage.now
    end = await differing(stage)
    held = rows(stage, "a")
    await founded(stage, "a", end)
    for node in stage.ring.nodes.values():
        node.start()
    await stage.ready(*"abc")
    with pytest.raises(RequestError) as refused:
        await stage.submit("a", insert("second", "t", "a"), age_s=stage.now - began)
    assert "UNKNOWN" in str(refused.value.outcome).upper()
    await stage.ready(*"abc")
    assert rows(stage, "a") == held


@as_story()
async def test_cluster_without_a_cursor_at_the_founding_does_not_serve_its_own_tables(
    stage: Stage,
) -> None:
    end = await differing(stage)
    await founded(stage, "a", end)
    del stage.ring.store.cursors["b"]
    for node in stage.ring.nodes.values():
        node.start()
    await stage.until(lambda: stage.alive_state("b") is State.TOO_FAR_BEHIND)
    assert "it has tables of its own" in stage.reason("b")


@as_story()
async def test_moved_ring_continues_at_the_cursor_of_each_cluster(
    stage: Stage, tmp_path: Path
) -> None:
    began = stage.now
    old, keyed = stage.ring.store, stage.ring.keyed
    await differing(stage)
    log, store = MemoryLog(old), MemoryKeyValueStore(keyed)
    contents = await export_log(log, store, tmp_path / "ring.dmq")
    new, kept = MemoryLog(stage.ring.store), MemoryKeyValueStore(stage.ring.keyed)
    assert await import_log(tmp_path / "ring.dmq", new, kept) == contents
    # What it is known as, once it is opened (`dmq.open_both`).
    stage.ring.store.identity = (await origin_of(new, kept)).identity
    assert stage.ring.store.identity == old.identity
    for each in (log, store, new, kept):
        await each.close()
    for node in stage.ring.nodes.values():
        node.start()
    await stage.equal(*"abc")
    await stage.submit("b", insert("second", "t", "a"), age_s=stage.now - began)
    await stage.submit("b", insert("third", "t", "b"))
    await stage.equal(*"abc")
    assert rows(stage, "b") == 3
    assert not any(isinstance(message, Copy) for message in stage.messages())
