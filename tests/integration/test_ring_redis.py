"""Test of a real ring with heartbeats through Redis, which is killed while clients write."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.redis_servers import RedisServer, running
from tests.rig import Rig, Writer

pytestmark = [pytest.mark.spark, pytest.mark.logs("sqlite")]

NOTICED_S = 20.0
"""A bound for a busy machine; the aim is shorter."""


@pytest.fixture
def redis(rig: Rig, tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis that the ring uses until the end of the test."""
    server = RedisServer(tmp_path)
    file = rig.ring.file
    before = file.read_text()
    with running(server):
        server.start()
        file.write_text(f"{before}state: redis\nredis: {{url: redis://127.0.0.1:{server.port}}}\n")
        try:
            restart_all(rig)
            yield server
        finally:
            file.write_text(before)
            restart_all(rig)


def restart_all(rig: Rig) -> None:
    """Start all HAProcs again, so that they read their configuration."""

    async def stop() -> None:
        await asyncio.gather(*(rig.ring.stop_haproc(name) for name in rig.ring.names))

    asyncio.run(stop())
    rig.up()


def carried_by(rig: Rig, way: str) -> bool:
    """Return whether all HAProcs receive each other's heartbeats by this transport."""
    statuses = [rig.status(name) for name in rig.ring.names]
    return all(
        status["transport"]["in_use"] == way
        and set(status["transport"]["peers"].values()) == {way}
        and all(cluster["direct"] for cluster in status["clusters"])
        for status in statuses
    )


@pytest.mark.thorough
def test_redis_killed_while_clients_write_changes_no_state(rig: Rig, redis: RedisServer) -> None:
    table = rig.table()
    rig.wait(lambda: carried_by(rig, "redis"), NOTICED_S)
    before = {name: rig.status(name)["since"] for name in rig.ring.names}
    writer = Writer(rig, table)
    writer.start()
    writer.wait_for(2)
    redis.kill()
    rig.wait(lambda: carried_by(rig, "mesh"), NOTICED_S)
    assert "127.0.0.1" in rig.status("a")["transport"]["reason"]
    writer.wait_for(2)
    redis.start()
    rig.wait(lambda: carried_by(rig, "redis"), NOTICED_S)
    writer.wait_for(2)
    writer.stop()
    # no cluster left service, or was called down
    assert {name: rig.status(name)["since"] for name in rig.ring.names} == before
    for by in rig.ring.names:
        for name in rig.ring.names:
            assert rig.seen(by, name)["since"] == before[name]
    rig.check_equal(table)
