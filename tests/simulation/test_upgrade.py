"""What an earlier version left is gone on from; what a later one wrote stops a cluster unharmed.

tests/golden/v1/log.db.xz is the log of a ring of version 1: a applied all of it; b was killed with
one of its statements done, a batch written down and not run; c never ran. log_tables.json holds
what their tables were like.
"""

from __future__ import annotations

import asyncio
import json
import lzma
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dmq import Cursor, MemoryKeyValueStore, Record, encode
from dmq.sqlite import SqliteLog
from haproc.config.model import Timeouts
from haproc.config.sections import Limits
from haproc.membership.peers import PeerUnavailableError
from haproc.membership.state import State
from haproc.node.member import World, build_member
from haproc.replicate import reader
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.records.operation import Filler, Message, from_record
from haproc.replicate.records.progress import from_cursor
from haproc.replicate.replica import Replica
from tests.alone import alone
from tests.simulation.directed import Stage, ddl, story
from tests.simulation.life import unix_ms
from tests.simulation.ring import config_of
from tests.simulation.scenario import insert
from tests.simulation.spark import SimEngine, SimSpark

GOLDEN = Path(__file__).parents[1] / "golden" / "v1"
END = 22
TABLES = {
    "r": [(1, "a")],
    "t": [("late0",), ("late1",), ("late2",), ("late3",), ("one",), ("two",)],
    "u": [("else",)],
}


class NoPeers:
    """Each is alone."""

    async def status(self, *_: object) -> None:
        raise PeerUnavailableError("nobody")

    apply_now = outcome = checksums = status


def cluster_as_kept(name: str) -> SimSpark:
    spark = SimSpark(name, random.Random(name))
    kept = json.loads((GOLDEN / "log_tables.json").read_text())
    if name in kept:
        spark._disk.executescript("\n".join(kept[name]))
        spark._notes.update(kept["notes"][name])
        spark._marks.update(kept["marks"][name])
    return spark


async def always() -> None:
    return None


async def started(spark: SimSpark, log: SqliteLog) -> tuple[Replica, asyncio.Task[None]]:
    timeouts = Timeouts(probe_interval_s=0.1, retry_first_s=0.02)
    config = config_of("abc", limits=Limits(lanes=3), timeouts=timeouts)
    engine: Any = SimEngine(spark, always)
    peers: Any = NoPeers()
    members = alone(config, spark.name, f"{spark.name}-new")
    world = World(log, MemoryKeyValueStore(), engine, peers, members, unix_ms=unix_ms)
    replica = build_member(config, world).replica
    return replica, asyncio.ensure_future(replica.run())


async def until_ready(replica: Replica) -> None:
    async with asyncio.timeout(60):
        while replica.core.condition.state is not State.READY:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.thorough
async def test_ring_over_the_state_of_version_1_goes_on_from_it(tmp_path: Path) -> None:
    file = tmp_path / "log.db"
    file.write_bytes(lzma.decompress((GOLDEN / "log.db.xz").read_bytes()))
    log = await SqliteLog.open(file)
    assert await log.end() == END
    cursor = await log.load_cursor("b")
    assert cursor is not None
    progress = from_cursor(cursor)
    assert (progress.low, progress.done, progress.batches) == (17, {19}, ((17, 20),))
    tasks = []
    try:
        for name in "abc":
            spark = cluster_as_kept(name)
            replica, task = await started(spark, log)
            tasks.append(task)
            await until_ready(replica)
            assert spark.dump() == TABLES
            # Its own first write, and one that version 1 wrote down.
            outcome = await replica.writes.submit(insert(f"new-{name}", "n", name), 30)
            assert outcome[1].status is OutcomeStatus.FAILED  # there is no such table
            again = replace(insert("two", "t", name), user="ada")
            offset, _ = await replica.writes.submit(again, 30)
            assert offset == 9
            assert spark.dump() == TABLES
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await log.close()


def later(format_version: int | None = None) -> bytes:
    """Return a record of a later version: of a kind, or of the format."""
    data = encode(Record("operation.6", "later"))
    if format_version is not None:
        data = data[:2] + bytes([format_version]) + data[3:]
    return data


@pytest.mark.parametrize("format_version", [None, 2])
def test_record_of_a_later_version_stops_each_cluster_in_front_of_it(
    format_version: int | None,
) -> None:
    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        await stage.submit("a", insert("one", "t", "a"))
        await stage.ready("a", "b", "c")
        (offset,) = stage.ring.store.append_stored([later(format_version)])
        for name in "abc":
            await stage.until(lambda name=name: stage.state(name) is State.TOO_FAR_BEHIND)  # type: ignore[misc]
            replica = stage.node(name).replica
            assert replica is not None
            reason = replica.core.condition.reason
            assert "upgrade" in reason and "nothing beyond" in reason
            assert replica.core.schedule.low == offset
            assert stage.node(name).spark.dump() == {"t": [("one",)]}
            # Nor does starting it again lead past it.
            stage.node(name).kill()
            stage.node(name).start()
            await stage.until(lambda name=name: stage.state(name) is State.TOO_FAR_BEHIND)  # type: ignore[misc]
            assert stage.ring.store.cursors[name].offset <= offset

    story(tell)


def test_cluster_stopped_by_a_later_version_goes_on_once_it_is_upgraded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def upgraded(record: Record) -> Message | Filler:
        return Filler() if record.kind == "operation.6" else from_record(record)

    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        await stage.ready("a", "b", "c")
        stage.ring.store.append_stored([later()])
        await stage.until(lambda: all(stage.state(n) is State.TOO_FAR_BEHIND for n in "abc"))
        monkeypatch.setattr(reader, "from_record", upgraded)
        for name in "abc":
            # Who is upgraded serves, whatever the others are like.
            stage.node(name).kill()
            stage.node(name).start()
            await stage.ready(name)
            await stage.submit(name, insert(name, "t", name))
        await stage.settle()
        assert stage.node("a").spark.dump() == {"t": [("a",), ("b",), ("c",)]}

    story(tell)


def test_cursor_of_a_later_version_is_refused_and_kept() -> None:
    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        await stage.ready("a", "b", "c")
        await asyncio.sleep(1)
        stage.node("b").kill()
        kept = stage.ring.store.cursors["b"]
        note = json.dumps({**json.loads(kept.note), "v": 3, "new": [1, 2]})
        stage.ring.store.cursors["b"] = newer = Cursor(kept.offset, note, kept.epoch)
        stage.node("b").start()
        await stage.until(lambda: stage.state("b") is State.TOO_FAR_BEHIND)
        replica = stage.node("b").replica
        assert replica is not None and "note has version 3" in replica.core.condition.reason
        await stage.submit("a", insert("one", "t", "a"))
        await asyncio.sleep(60)
        assert stage.ring.store.cursors["b"] == newer
        # The version that wrote it goes on from there.
        stage.node("b").kill()
        stage.ring.store.cursors["b"] = replace(newer, note=kept.note)
        stage.node("b").start()
        await stage.settle()

    story(tell)
