"""The cost of Spark's reading of writes, on one HAProc in this process and one local Spark.

Each statement is run repeated, so that its verdict is known, and in a form never seen before, so
that Spark is asked. The time of its reading is taken out of its own time, because two statements
of their own differ more than by that.

``python -m bench.bench_reading [rounds]``; a server that runs already is used with
``HOST:PORT:TOKEN`` as a second argument.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.report import Row, report
from bench.rings import spark_or_given
from dmq import MemoryKeyValueStore, MemoryLog, MemoryStore
from haproc.classify.model import Recognised
from haproc.classify.rules import Rules
from haproc.config.model import Address, ClusterConfig, Config
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.interface import EngineAddress
from haproc.membership.connections import HttpPeers, Links, PeerDoors
from haproc.membership.members import Members
from haproc.metrics import Metrics
from haproc.node.member import World, build_member, build_reads, build_sessions
from haproc.reading.judge import Judged
from haproc.ring.process import free_port
from haproc.route.forward import HttpForwarding
from haproc.route.model import Request, SentSql
from haproc.route.parts import Resources
from haproc.route.service import RingService

ROUNDS = 15
STATEMENTS = {
    "INSERT … VALUES": "INSERT INTO {s}.t VALUES ({n}, 'x{n}', 1)",
    "INSERT … SELECT": "INSERT INTO {s}.t SELECT a + {n}, b, i FROM {s}.u WHERE a{c} > 0",
    "UPDATE": "UPDATE {s}.t SET b = 'y{n}' WHERE a = {n} AND a{c} > 0",
}
"""``{c}`` and ``{n}`` make statements that were never seen before."""


class Timed:
    """The readings of a member, and the total time that they took."""

    def __init__(self, readings: Any) -> None:
        self._readings = readings
        self.taken_s = 0.0

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the readings."""
        return getattr(self._readings, name)

    async def judged(self, *given: Any) -> Judged:
        """Read and judge a statement; add the time."""
        judged: Judged = await self._timed(self._readings.judged(*given))
        return judged

    async def recognised(self, *given: Any) -> Recognised:
        """Parse a statement; add the time."""
        recognised: Recognised = await self._timed(self._readings.recognised(*given))
        return recognised

    async def _timed(self, work: Awaitable[Any]) -> Any:
        started = time.perf_counter()
        try:
            return await work
        finally:
            self.taken_s += time.perf_counter() - started


def main() -> None:
    """Measure and report."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with tempfile.TemporaryDirectory(prefix="haproc-bench-") as folder:
        rows = asyncio.run(_measured(Path(folder), rounds))
    report("reading", rows)


async def _measured(folder: Path, rounds: int) -> list[Row]:
    async with spark_or_given(folder) as address, _service(address) as service:
        schema = f"bench_{uuid.uuid4().hex[:8]}"
        for sql in (
            f"CREATE SCHEMA {schema}",
            f"CREATE TABLE {schema}.t (a BIGINT, b STRING, i INT) USING delta",
            f"CREATE TABLE {schema}.u (a BIGINT, b STRING, i INT) USING delta",
            f"INSERT INTO {schema}.u VALUES (1, 'x', 1), (2, 'y', 2)",
            f"INSERT INTO {schema}.t VALUES (1, 'x', 1), (2, 'y', 2)",
        ):
            await _run(service, sql)
        try:
            return await _compared(service, schema, rounds)
        finally:
            await _run(service, f"DROP SCHEMA {schema} CASCADE")


async def _compared(service: RingService, schema: str, rounds: int) -> list[Row]:
    timed: Any = Timed(service._making.readings)
    service._making.readings = timed
    service._classifying._recognised = timed.recognised
    rows = []
    for name, text in STATEMENTS.items():
        whole: dict[str, list[float]] = {"repeated": [], "never seen": []}
        rest: dict[str, list[float]] = {"repeated": [], "never seen": []}
        for n in range(-2, rounds):
            for kind in whole:
                number = n + 10 if kind == "never seen" else 0
                sql = text.format(s=schema, n=number, c=f" + {number}" * number)
                timed.taken_s = 0.0
                started = time.perf_counter()
                await _run(service, sql)
                taken = time.perf_counter() - started
                if n >= 0:
                    whole[kind].append(taken)
                    rest[kind].append(taken - timed.taken_s)
        for kind, times in whole.items():
            value, without = statistics.median(times), statistics.median(rest[kind])
            compared = "the same without its reading"
            rows.append(Row(f"{name}, {kind}", "ms", value * 1000, compared, without * 1000))
    return rows


async def _run(service: RingService, sql: str) -> None:
    answer = await service.execute(Request(uuid.uuid4().hex, SentSql(sql), uuid.uuid4().hex))
    async for _ in answer.result:
        pass


@asynccontextmanager
async def _service(address: EngineAddress) -> AsyncIterator[RingService]:
    here = Address("127.0.0.1", free_port())
    cluster = ClusterConfig("a", here, Address("127.0.0.1", free_port()), address)
    config = Config("bench", "memory:", (cluster,), "secret")
    engine = SparkConnectEngine(address, ring=f"bench{uuid.uuid4().hex[:6]}", cluster="a")
    peers = PeerDoors(config, "a")
    members = Members(config.membership, ("a", "a1"), (), Links(config, "a"))
    log = MemoryLog(MemoryStore())
    world = World(log, MemoryKeyValueStore(), engine, HttpPeers(peers), members)
    member = build_member(config, world)
    metrics = Metrics("bench", "a", ["READY"])
    reads = build_reads(config, member, HttpForwarding(peers), metrics)
    sessions, *_ = build_sessions(config, member, world)
    given = Resources(
        config, member.replica, engine, Rules.builtin(), member.assurance, reads, sessions
    )
    service = RingService(given)
    task = asyncio.ensure_future(member.replica.run())
    try:
        while not member.replica.serving:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        yield service
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await peers.aclose()
        await engine.aclose()


if __name__ == "__main__":
    main()
