"""The cost of durable client sessions: looking, recording, taking one over.

Two HAProcs' sessions in this process over one SQLite file, on one local Spark.

``python -m bench.bench_sessions [rounds]``; a server that runs already is used with
``HOST:PORT:TOKEN`` as a second argument.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable
from pathlib import Path

from bench.report import Row, report
from bench.rings import spark_or_given
from dmq import KeyValueStore, open_store
from haproc import protos
from haproc.config.sections import Limits
from haproc.config.shares import Shares
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.interface import Settings
from haproc.engine.statement import SqlText
from haproc.sessions.client import ClientSession
from haproc.sessions.durable import Blobs, SessionStore
from haproc.sessions.journal import ArtifactEntry, ConfEntry, Entry, PlanEntry, SqlEntry
from haproc.sessions.sessions import Sessions, Surroundings

ROUNDS = 20
ADOPTION_S_MAX = 0.6
"""The most seconds for the adoption of a session of ten steps."""


def _sessions(cluster: str, engine: SparkConnectEngine, store: KeyValueStore) -> Sessions:
    def name() -> str:
        return uuid.uuid4().hex

    def unix_ms() -> int:
        return time.time_ns() // 1_000_000

    async def caught_up() -> None:
        return

    around = Surroundings("bench", engine, Settings(), Limits(), 60.0, caught_up, time.monotonic)
    durable = SessionStore(store, cluster, name, unix_ms)
    return Sessions(around, durable, Blobs(store, name, unix_ms), Shares(10_000))


async def _ten_steps(sessions: Sessions, session: ClientSession) -> list[Entry]:
    blob = await sessions.put_blob(session, b"x = 42" * 1000)
    plan = protos.base.Plan()
    made = plan.command.create_dataframe_view
    made.input.sql.query, made.name, made.replace = "SELECT id + 1 AS id FROM v1", "v2", True
    return [
        ConfEntry((("spark.sql.shuffle.partitions", "3"),)),
        ArtifactEntry("files/x.py", (blob,), 6000),
        ConfEntry((("spark.sql.session.timeZone", "Asia/Tokyo"),)),
        SqlEntry("CREATE TEMPORARY VIEW v1 AS SELECT id FROM range(10)"),
        PlanEntry(bytes(plan.SerializeToString())),
        SqlEntry("DECLARE VARIABLE here INT DEFAULT 3"),
        SqlEntry("SET VAR here = 7"),
        SqlEntry("CREATE TEMPORARY FUNCTION twice(x INT) RETURNS INT RETURN x * 2"),
        SqlEntry("CREATE TEMPORARY VIEW v3 AS SELECT twice(here) AS n, sum(id) AS s FROM v2"),
        ConfEntry((("spark.sql.shuffle.partitions", "5"),)),
    ]


async def _timed(call: Awaitable[object]) -> float:
    began = time.perf_counter()
    await call
    return time.perf_counter() - began


async def _run(rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        async with spark_or_given(path / "spark") as address:
            url = f"sqlite://{path / 'ring.db'}"
            stores = [await open_store(url) for _ in range(2)]
            engines = [SparkConnectEngine(address, ring="bench", cluster=name) for name in "ab"]
            a, b = (
                _sessions(name, engine, store)
                for name, engine, store in zip("ab", engines, stores, strict=True)
            )
            try:
                return await _measured(a, b, rounds)
            finally:
                for engine in engines:
                    await engine.aclose()
                for store in stores:
                    await store.close()


async def _measured(a: Sessions, b: Sessions, rounds: int) -> list[Row]:
    looks: list[float] = []
    records: list[float] = []
    adoptions: list[float] = []
    selects: list[float] = []

    async def enter(sessions: Sessions, name: str) -> ClientSession:
        return await sessions.enter("ann", name, create=True)

    async def taken_over(name: str) -> None:
        await (await enter(b, name)).spark.ready()

    async def select(session: ClientSession) -> None:
        async for _ in await session.spark.query(SqlText("SELECT 1"), timeout_s=60):
            pass

    for number in range(rounds + 2):  # the first ones warm Spark up
        name = f"s{number}"
        session = await enter(a, name)
        for entry in await _ten_steps(a, session):
            records.append(await _timed(a.record(session, entry)))
        looks += [await _timed(enter(a, name)) for _ in range(20)]
        adoptions.append(await _timed(taken_over(name)))
        mine = await enter(b, name)
        selects.append(await _timed(select(mine)))
        await b.close("ann", name)
    median, adoptions = statistics.median, adoptions[2:]
    select_ms = median(selects[2:]) * 1000
    return [
        Row("a request's look for its owner", "ms", median(looks) * 1000, "SELECT 1", select_ms),
        Row("a step recorded", "ms", median(records) * 1000, "SELECT 1", select_ms),
        Row("a session of ten steps taken over", "s", median(adoptions), "bar", ADOPTION_S_MAX),
        Row("… the slowest", "s", max(adoptions), "bar", ADOPTION_S_MAX),
    ]


if __name__ == "__main__":
    given = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    report("sessions", asyncio.run(_run(given)))
