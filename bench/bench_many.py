"""Measure many clients that insert one row at a time: through a ring, and on Spark directly.

The ring has one cluster. Each client sends its next INSERT as soon as the last one is acknowledged,
for some seconds. For comparison, the same number of PySpark clients do the same directly on the
same Spark server, each in a session of its own, but at most `SESSIONS_MAX` of them: a Spark server
of this size cannot hold more sessions. All clients of a side write into one table.

``python -m bench.bench_many [clients …]``: numbers of clients, by default 1, 8, 64, 256 and 1,000.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from typing import Final

import haclient.aio
from bench.report import Row, report, show
from bench.rings import past_ring, ring_of
from haproc.ring.local import LocalRing

CLIENTS: Final = (1, 8, 64, 256, 1_000)
SESSIONS_MAX: Final = 64
SECONDS: Final = 20.0
WAIT_S: Final = 120.0
ONE: Final = "one client of PySpark"
AS_MANY: Final = f"as many of PySpark, {SESSIONS_MAX} at most"


def main() -> None:
    """Run the benchmark; print its figures and write them to bench/results/many.json."""
    # One process stands for many programs: their objects are not looked through together.
    gc.freeze()
    gc.set_threshold(10_000)
    counts = [int(each) for each in sys.argv[1:]] or list(CLIENTS)
    with ring_of(1) as ring:
        asyncio.run(ring.up(warm=True))
        rows = measured(ring, counts)
    report("many", rows)


def measured(ring: LocalRing, counts: Sequence[int]) -> list[Row]:
    """Return the rate of each number of clients, beside one and as many PySpark clients."""
    rows: list[Row] = []
    bare_one = bare(ring, 1)
    for count in counts:
        ours = asyncio.run(_ours(ring, count))
        sessions = min(count, SESSIONS_MAX)
        theirs = bare_one if sessions == 1 else bare(ring, sessions)
        rows += [
            _row("INSERTs acknowledged", "1/s", count, _rate(ours), ONE, _rate(bare_one)),
            _row("INSERTs acknowledged", "1/s", count, _rate(ours), AS_MANY, _rate(theirs)),
            _row("p50", "s", count, _p50(ours), AS_MANY, _p50(theirs)),
        ]
        show("many", rows[-3:])
    return rows


async def _ours(ring: LocalRing, clients: int) -> list[float]:
    """Let clients write through the ring; return each acknowledged INSERT's seconds."""
    taken: list[float] = []
    async with haclient.aio.connect(ring.urls, timeout_s=WAIT_S) as connection:
        async with connection.cursor() as cursor:
            await cursor.execute("CREATE TABLE IF NOT EXISTS many (id BIGINT, name STRING)")
        end = time.perf_counter() + SECONDS

        async def writer(number: int) -> None:
            async with connection.cursor() as cursor:
                while (began := time.perf_counter()) < end:
                    await cursor.execute(f"INSERT INTO many VALUES ({number}, 'n{number}')")
                    if time.perf_counter() <= end:
                        taken.append(time.perf_counter() - began)

        await asyncio.gather(*(writer(number) for number in range(clients)))
    return taken


def bare(ring: LocalRing, clients: int) -> list[float]:
    """Let PySpark clients write on Spark directly; return each acknowledged INSERT's seconds."""
    sessions = [past_ring(ring.sparks[ring.names[0]]) for _ in range(clients)]
    sessions[0].sql("CREATE TABLE IF NOT EXISTS bare (id BIGINT, name STRING) USING delta")
    for session in sessions:
        session.sql("SELECT 1").collect()
    taken: list[float] = []
    end = time.perf_counter() + SECONDS

    def write(number: int) -> None:
        while (began := time.perf_counter()) < end:
            sessions[number].sql(f"INSERT INTO bare VALUES ({number}, 'n{number}')").collect()
            if time.perf_counter() <= end:
                taken.append(time.perf_counter() - began)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for session in sessions:
        session.stop()
    return taken


def _row(name: str, unit: str, clients: int, ours: float, bare: str, theirs: float) -> Row:
    return Row(name, unit, ours, bare, theirs, over="clients", at=clients)


def _rate(taken: list[float]) -> float:
    return len(taken) / SECONDS


def _p50(taken: list[float]) -> float:
    return statistics.median(taken) if taken else float("inf")


if __name__ == "__main__":
    main()
