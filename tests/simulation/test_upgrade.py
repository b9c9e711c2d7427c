"""Records of a later version stop a cluster without damage until it is upgraded."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from dmq import Cursor, Record, encode
from haproc.membership.state import State
from haproc.replicate import reader
from haproc.replicate.records.operation import Filler, Message, from_record
from tests.simulation.directed import Stage, as_story, ddl
from tests.simulation.scenario import insert


def later(format_version: int | None = None) -> bytes:
    """Return a record of a later version: one of a new kind, or one of a new format."""
    data = encode(Record("operation.2", "later"))
    if format_version is not None:
        data = data[:2] + bytes([format_version]) + data[3:]
    return data


@pytest.mark.parametrize("format_version", [None, 2])
@as_story()
async def test_record_of_a_later_version_stops_each_cluster_in_front_of_it(
    stage: Stage, format_version: int | None
) -> None:
    await stage.submit("a", ddl("a"))
    await stage.submit("a", insert("one", "t", "a"))
    await stage.ready("a", "b", "c")
    (offset,) = stage.ring.store.append_stored([later(format_version)])
    for name in "abc":
        await stage.until(lambda name=name: stage.state(name) is State.TOO_FAR_BEHIND)  # type: ignore[misc]
        replica = stage.replica(name)
        reason = replica.core.condition.reason
        assert "upgrade" in reason and "nothing beyond" in reason
        assert replica.core.schedule.low == offset
        assert stage.node(name).spark.dump() == {"t": [("one",)]}
        # Nor does starting it again lead past it.
        stage.node(name).restart()
        await stage.until(lambda name=name: stage.state(name) is State.TOO_FAR_BEHIND)  # type: ignore[misc]
        assert stage.ring.store.cursors[name].offset <= offset


@as_story()
async def test_cluster_stopped_by_a_record_of_a_later_version_continues_after_its_upgrade(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def upgraded(record: Record) -> Message | Filler:
        return Filler() if record.kind == "operation.2" else from_record(record)

    await stage.submit("a", ddl("a"))
    await stage.ready("a", "b", "c")
    stage.ring.store.append_stored([later()])
    await stage.until(lambda: all(stage.state(n) is State.TOO_FAR_BEHIND for n in "abc"))
    monkeypatch.setattr(reader, "from_record", upgraded)
    for name in "abc":
        # Who is upgraded serves, whatever the others are like.
        stage.node(name).restart()
        await stage.ready(name)
        await stage.submit(name, insert(name, "t", name))
    await stage.settle()
    assert stage.node("a").spark.dump() == {"t": [("a",), ("b",), ("c",)]}


@as_story()
async def test_cursor_of_a_later_version_is_refused_and_kept(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    await stage.ready("a", "b", "c")
    await asyncio.sleep(1)
    stage.node("b").kill()
    kept = stage.ring.store.cursors["b"]
    note = json.dumps({**json.loads(kept.note), "v": 2, "new": [1, 2]})
    stage.ring.store.cursors["b"] = newer = Cursor(kept.offset, note, kept.epoch)
    stage.node("b").start()
    await stage.until(lambda: stage.state("b") is State.TOO_FAR_BEHIND)
    replica = stage.replica("b")
    assert "note has version 2" in replica.core.condition.reason
    await stage.submit("a", insert("one", "t", "a"))
    await asyncio.sleep(60)
    assert stage.ring.store.cursors["b"] == newer
    # The version that wrote it goes on from there.
    stage.node("b").kill()
    stage.ring.store.cursors["b"] = replace(newer, note=kept.note)
    stage.node("b").start()
    await stage.settle()
