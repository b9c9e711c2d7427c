"""The cost and the gain of a ring, against doing the same with PySpark on the same server.

A ring of one shows the price of the path through HAProc; a ring of three that of having replicas
on the same two cores. Then a HAProc is killed while a client asks, and a cluster that missed many
one-row INSERTs drains its queue, against the time that bare Spark takes for them one by one. In the
end a cluster is killed whole, misses as many, and is started again: how soon after its Spark
answers does it apply what it missed?

``python -m bench.bench_ring [queued]`` (10,000 queued INSERTs by default).
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
from functools import partial
from typing import Any

import haclient
import haclient.aio
from bench.measures import in_turn, timed, times_in_turn
from bench.report import Row, median_and_worst, ms, report
from bench.rings import past_ring, ring_of, status_of
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import EngineError
from haproc.ring.holdings import contents, differences
from haproc.ring.local import LocalRing

SELECTS = 200
INSERTS = 15
BARE_INSERTS = 40
KILLS = 5
QUEUED = 10_000
BULKS = 3
FETCHES = 2
WRITERS = 200
WAIT_S = 600.0
FAILOVER_BAR_MS = 100.0
RECOVERY_BAR_S = 2.0
RESULTS_MIB = (100, 1024)
_ROW_BYTES = 24
_ONE_BY_ONE = "one by one on bare Spark"
_PYSPARK = "the same through PySpark"


def main() -> None:
    """Measure both rings and report."""
    queued = int(sys.argv[1]) if len(sys.argv) > 1 else QUEUED
    rows: list[Row] = []
    for size in (1, 3):
        with ring_of(
            size,
            memory="4g" if size == 1 else "1g",
            spark_settings={"spark.driver.maxResultSize": "4g"},
            settings={"timeouts": {"probe_interval_s": 0.5}},
        ) as ring:
            asyncio.run(ring.up(warm=True))
            rows += latency(ring)
            if size == 1:
                rows += results(ring)
            if size == 3:
                rows += failover(ring)
                report("ring", rows)
                rows += drain(ring, queued)
                report("ring", rows)
                rows += recovery(ring, queued)
    report("ring", rows)


def latency(ring: LocalRing) -> list[Row]:
    """Return the times of a SELECT and an INSERT, in turn with the same through PySpark."""
    size = len(ring.names)
    pyspark = past_ring(ring.sparks[ring.names[0]])
    with haclient.connect(ring.urls) as connection, connection.cursor() as cursor:

        def run(sql: str) -> None:
            cursor.execute(sql)
            if cursor.description:
                cursor.fetchall()

        run("CREATE TABLE by_ring (id BIGINT) USING delta")
        pyspark.sql("CREATE TABLE by_pyspark (id BIGINT) USING delta").collect()
        selects = times_in_turn(
            lambda: run("SELECT 1"), lambda: pyspark.sql("SELECT 1").collect(), SELECTS
        )
        inserts = in_turn(
            lambda: run("INSERT INTO by_ring VALUES (1)"),
            lambda: pyspark.sql("INSERT INTO by_pyspark VALUES (1)").collect(),
            INSERTS,
        )
        pyspark.sql("DROP TABLE by_pyspark").collect()
    pyspark.stop()
    return [
        ms(f"SELECT 1, ring of {size}, p50", _percentile(50, *selects), _PYSPARK),
        ms(f"SELECT 1, ring of {size}, p99", _percentile(99, *selects), _PYSPARK),
        ms(f"one-row INSERT, ring of {size}, p50", inserts, _PYSPARK),
    ]


def _percentile(percent: int, *taken: list[float]) -> tuple[float, float]:
    first, second = (sorted(times)[len(times) * percent // 100] for times in taken)
    return first, second


def results(ring: LocalRing) -> list[Row]:
    """Fetch large results as Arrow, in turn with the same through PySpark."""
    pyspark = past_ring(ring.sparks[ring.names[0]])
    rows = []
    with haclient.connect(ring.urls, timeout_s=WAIT_S) as connection:
        for mib in RESULTS_MIB:
            count = mib * (1 << 20) // _ROW_BYTES
            sql = f"SELECT id, id * 3 AS n, id / 7 AS share FROM range({count})"
            pair = in_turn(
                lambda sql=sql: connection.execute(sql).fetch_arrow_table(),  # type: ignore[misc]
                lambda sql=sql: pyspark.sql(sql).toArrow(),  # type: ignore[misc]
                FETCHES,
            )
            rate = [mib / seconds for seconds in pair]
            rows.append(Row(f"{mib:,} MiB of Arrow", "MiB/s", rate[0], _PYSPARK, rate[1]))
    pyspark.stop()
    return rows


def failover(ring: LocalRing) -> list[Row]:
    """Kill the HAProc in use; return the time by which the next answer takes longer than usual."""
    extra_ms: list[float] = []
    for _ in range(KILLS):
        with haclient.connect(ring.urls) as connection, connection.cursor() as cursor:
            usual_s = statistics.median(_answer_s(cursor) for _ in range(20))
            name = str(cursor.ha["cluster"])
            ring.kill(name, "haproc")
            extra_ms.append((_answer_s(cursor) - usual_s) * 1e3)
            assert cursor.ha["cluster"] != name
        asyncio.run(ring.start_haproc(name))
    what = "next answer after kill -9, beyond the usual"
    return median_and_worst(what, "ms", extra_ms, FAILOVER_BAR_MS)


def _answer_s(cursor: haclient.Cursor) -> float:
    return timed(lambda: cursor.execute("SELECT 1").fetchall())


def drain(ring: LocalRing, queued: int) -> list[Row]:
    """Let one cluster miss INSERTs, start it, and time its replay."""
    with haclient.connect(ring.urls) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE queue (id BIGINT, name STRING, price DOUBLE) USING delta")
        texts = [f"INSERT INTO queue VALUES ({-n}, 'single', 1.5)" for n in range(INSERTS)]
        single = [timed(partial(cursor.execute, text)) for text in texts]
    last = ring.names[-1]
    asyncio.run(ring.stop_haproc(last))
    writing_s = timed(lambda: asyncio.run(_write(ring, "queue", queued)))
    draining_s = asyncio.run(replay(ring, last))
    wrong = differences(asyncio.run(contents(ring.config, ["queue"])))
    assert not wrong, wrong
    bare_s = _one_by_one(ring, last)
    bulk_s = _bulk(ring, last, queued)
    return [
        Row(
            f"{queued:,} one-row INSERTs drained by a returning cluster",
            "s",
            draining_s,
            _ONE_BY_ONE,
            bare_s * queued,
        ),
        Row("drain, operations per second", "1/s", queued / draining_s, _ONE_BY_ONE, 1 / bare_s),
        Row("the same drained", "s", draining_s, "one INSERT of all rows on bare Spark", bulk_s),
        Row(
            f"the same written by {WRITERS} clients at once, acknowledged",
            "1/s",
            queued / writing_s,
            "one client of the ring",
            1 / statistics.median(single),
        ),
    ]


def _one_by_one(ring: LocalRing, name: str) -> float:
    """Return the seconds of one of many INSERTs on bare Spark, with Delta's checkpoints."""
    session = past_ring(ring.sparks[name])
    session.sql("CREATE TABLE single (id BIGINT, name STRING, price DOUBLE) USING delta").collect()
    began = time.perf_counter()
    for number in range(BARE_INSERTS):
        session.sql(f"INSERT INTO single VALUES ({number}, 'single', 1.5)").collect()
    taken = time.perf_counter() - began
    session.sql("DROP TABLE single").collect()
    session.stop()
    return taken / BARE_INSERTS


def _bulk(ring: LocalRing, name: str, count: int) -> float:
    """Return the seconds of one INSERT of this number of rows on bare Spark."""
    session = past_ring(ring.sparks[name])
    session.sql("CREATE TABLE bulk (id BIGINT, name STRING, price DOUBLE) USING delta").collect()
    rows = ", ".join(f"({number}, 'n{number}', {number}.5)" for number in range(count))
    text = f"INSERT INTO bulk VALUES {rows}"
    taken = [timed(lambda: session.sql(text).collect()) for _ in range(BULKS)]
    session.sql("DROP TABLE bulk").collect()
    session.stop()
    return statistics.median(taken)


async def _write(ring: LocalRing, table: str, count: int) -> None:
    numbers = iter(range(count))

    async def writer(connection: Any) -> None:
        async with connection.cursor() as cursor:
            for number in numbers:
                await cursor.execute(
                    f"INSERT INTO {table} VALUES ({number}, 'n{number}', {number}.5)"
                )

    async with haclient.aio.connect(ring.urls, timeout_s=WAIT_S) as connection:
        await asyncio.gather(*(writer(connection) for _ in range(WRITERS)))


async def replay(ring: LocalRing, name: str) -> float:
    """Start the cluster's HAProc; return the seconds from RECOVERING to READY."""
    await ring.start_haproc(name, ready=False)
    began, end = None, time.monotonic() + WAIT_S
    while time.monotonic() < end:
        status = await asyncio.to_thread(status_of, ring, name)
        if began is None and status["state"] == "RECOVERING":
            began = time.perf_counter()
        if status["state"] == "READY":
            return time.perf_counter() - (began or time.perf_counter() - 0.01)
        await asyncio.sleep(0.01)
    raise TimeoutError(f"{name} did not drain its queue")


def recovery(ring: LocalRing, queued: int) -> list[Row]:
    """Kill a cluster, let it miss INSERTs, start it, and time the first: its HAProc, or all of it.

    A Spark that has just started is slow with whatever it does first: the last row is mostly that.
    """
    rows: list[Row] = []
    last = ring.names[-1]
    for table, killed, since in (
        ("missed", ("haproc",), "a killed HAProc, after its start"),
        ("missed_all", ("haproc", "spark"), "HAProc and Spark, both killed, after Spark's answer"),
    ):
        with haclient.connect(ring.urls) as connection:
            connection.execute(
                f"CREATE TABLE {table} (id BIGINT, name STRING, price DOUBLE) USING delta"
            )
        for what in killed:
            ring.kill(last, what)
        asyncio.run(_write(ring, table, queued))
        answered, applying = asyncio.run(_come_back(ring, last))
        wrong = differences(asyncio.run(contents(ring.config, [table])))
        assert not wrong, wrong
        what = f"the first of {queued:,} missed operations begins: {since}"
        rows.append(Row(what, "s", applying - answered, "bar", RECOVERY_BAR_S))
    return rows


async def _come_back(ring: LocalRing, name: str) -> tuple[float, float]:
    """Start a cluster; return when its Spark first answers, and when its HAProc recovers."""
    spark = asyncio.ensure_future(ring.sparks[name].start(warm=False))
    answering = asyncio.ensure_future(_first_answer(ring, name))
    await ring.start_haproc(name, ready=False)
    recovering = 0.0
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        status = await asyncio.to_thread(status_of, ring, name)
        now = time.perf_counter()
        if not recovering and status["state"] in ("RECOVERING", "READY"):
            recovering = now
        if status["state"] == "READY":
            await spark
            return await answering, recovering
        await asyncio.sleep(0.01)
    raise TimeoutError(f"{name} did not recover")


async def _first_answer(ring: LocalRing, name: str) -> float:
    """Return when the cluster first ran the statement that HAProcs probe with."""
    engine = SparkConnectEngine(ring.config.cluster(name).spark, ring="bench", cluster=name)
    try:
        while True:
            with contextlib.suppress(EngineError):
                await engine.probe(timeout_s=WAIT_S)
                return time.perf_counter()
            await asyncio.sleep(0.02)
    finally:
        await engine.aclose()


if __name__ == "__main__":
    main()
