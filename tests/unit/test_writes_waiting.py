"""Tests of writes that are in the log and wait for their outcome: they block no other request."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from haproc.config.sections import Limits
from tests.unit.door_rig import WAIT_S, until
from tests.unit.test_reads_between_doors import QUERY, HAProc, Pair, pair

WRITES = 5


def sent(ring: Pair) -> list[asyncio.Future[dict[str, Any]]]:
    """Send some writes, which a's cluster does not apply yet."""
    ring.a.spark.go.clear()
    statements = [f"INSERT INTO t VALUES ({number})" for number in range(WRITES)]
    return [asyncio.ensure_future(ring.ask(ring.a, sql)) for sql in statements]


async def in_the_log(haproc: HAProc, count: int) -> None:
    await until(lambda: haproc.core.schedule.pending == count)


async def idle(haproc: HAProc) -> None:
    gate = haproc.registry.request_admission
    await until(lambda: gate.inside == gate._wait_queue.length == gate._at_rest.taken == 0)


async def test_writes_in_the_log_hold_no_permits(tmp_path: Path) -> None:
    async with pair(tmp_path, limits=Limits(statements_max=1)) as ring, asyncio.timeout(WAIT_S):
        waiting = sent(ring)
        await in_the_log(ring.a, WRITES)
        assert ring.a.registry.request_admission.inside == WRITES
        assert await ring.name_from(ring.a, consistency="any") == "a"
        ring.a.spark.go.set()
        states = [answer["status"]["state"] for answer in await asyncio.gather(*waiting)]
        assert states == ["SUCCEEDED"] * WRITES
        await idle(ring.a)


async def test_writes_beyond_the_limit_of_waiting_writes_keep_their_permits(tmp_path: Path) -> None:
    limits = Limits(statements_max=2, writes_waiting_max=1)
    async with pair(tmp_path, limits=limits) as ring, asyncio.timeout(WAIT_S):
        waiting = sent(ring)
        await in_the_log(ring.a, 3)
        gate = ring.a.registry.request_admission
        await until(lambda: (gate._wait_queue.length, gate.inside) == (WRITES - 3, 3))
        ring.a.spark.go.set()
        states = [answer["status"]["state"] for answer in await asyncio.gather(*waiting)]
        assert states == ["SUCCEEDED"] * WRITES
        await idle(ring.a)


async def test_writes_whose_clients_disconnected_are_counted_until_they_end(tmp_path: Path) -> None:
    async with pair(tmp_path, limits=Limits(statements_max=1)) as ring, asyncio.timeout(WAIT_S):
        waiting = sent(ring)
        await in_the_log(ring.a, WRITES)
        for each in waiting:
            each.cancel()
        await until(lambda: ring.a.registry.request_admission._waiting.taken == 0)
        assert ring.a.registry.request_admission.inside == WRITES  # a drain waits for them
        answer = await ring.ask(ring.a, QUERY, consistency="any")
        assert answer["status"]["state"] == "SUCCEEDED"
        ring.a.spark.go.set()
        await idle(ring.a)
