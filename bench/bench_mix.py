"""How fast a cluster that was away drains a mixed queue, against one by one on bare Spark.

70 % INSERTs of a row, 20 % UPDATEs and 10 % DELETEs by key, on 8 tables. One by one is what each of
them takes a single client of PySpark on one of the same servers, on tables of the same size.

``python -m bench.bench_mix [queued] [clusters]`` (1,000 operations and 2 clusters by default: the
others have to do them one by one first).
"""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from pyspark.sql.connect.session import SparkSession

import haclient
import haclient.aio
from bench.bench_ring import WAIT_S, replay
from bench.report import Row, report
from haproc.ring.compare import contents, differences
from haproc.ring.local import LocalRing

QUEUED: Final = 1_000
TABLES: Final = 8
WRITERS: Final = 32
ROWS: Final = 1_000
"""In each table before."""
SINGLE: Final = 9
BAR: Final = 50.0
COLUMNS: Final = "(id BIGINT, name STRING, price DOUBLE, visits INT)"


def main() -> None:
    """Measure and report."""
    queued = int(sys.argv[1]) if len(sys.argv) > 1 else QUEUED
    clusters = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    with tempfile.TemporaryDirectory(prefix="haproc-bench-") as folder:
        ring = LocalRing.open_or_create(
            Path(folder) / "ring",
            clusters=clusters,
            settings={"timeouts": {"probe_interval_s": 0.5}},
            progress=lambda who, what: print(f"  {who}: {what}", file=sys.stderr),
        )
        try:
            asyncio.run(ring.up(warm=True))
            report("mix", drain(ring, queued))
        finally:
            asyncio.run(ring.down())


def drain(ring: LocalRing, queued: int) -> list[Row]:
    """Let one cluster miss the mix, start it, and time its replay."""
    names = [f"mix{n}" for n in range(TABLES)]
    with haclient.connect(ring.urls) as connection, connection.cursor() as cursor:
        for name in names:
            cursor.execute(f"CREATE TABLE {name} {COLUMNS} USING delta")
            cursor.execute(f"INSERT INTO {name} VALUES {rows(range(ROWS))}")
    insert_s, update_s, delete_s = one_by_one(ring)
    last = ring.names[-1]
    asyncio.run(ring.stop_haproc(last))
    began = time.perf_counter()
    counts = asyncio.run(_write(ring, names, queued))
    writing_s = time.perf_counter() - began
    draining_s = asyncio.run(replay(ring, last))
    wrong = differences(asyncio.run(contents(ring.config, names)))
    assert not wrong, wrong
    single_s = sum(n * s for n, s in zip(counts, (insert_s, update_s, delete_s), strict=True))
    name = f"{queued:,} operations of the mix"
    bare = "one by one on bare Spark"
    return [
        Row(f"{name}, drained by a returning cluster", "s", draining_s, bare, single_s),
        Row("drain, operations per second", "1/s", queued / draining_s, bare, queued / single_s),
        Row("times as fast as one by one", "", single_s / draining_s, "bar", BAR),
        Row(f"the same written by {WRITERS} clients", "1/s", queued / writing_s),
        Row("one-row INSERT on bare Spark, p50", "s", insert_s),
        Row("UPDATE by key on bare Spark, p50", "s", update_s),
        Row("DELETE by key on bare Spark, p50", "s", delete_s),
    ]


def rows(ids: range) -> str:
    """Return rows as SQL."""
    return ", ".join(f"({n}, 'n{n}', {n}.5, 0)" for n in ids)


def one_by_one(ring: LocalRing) -> tuple[float, float, float]:
    """Return what an INSERT, an UPDATE and a DELETE take one client of bare Spark."""
    spark = ring.sparks[ring.names[0]]
    remote = f"sc://127.0.0.1:{spark.port}/;authorization={quote(f'Bearer {spark.token}')}"
    session = SparkSession.builder.remote(remote).create()
    session.sql(f"CREATE TABLE by_pyspark {COLUMNS} USING delta").collect()
    session.sql(f"INSERT INTO by_pyspark VALUES {rows(range(ROWS))}").collect()
    found = []
    for what in (insert, update, delete):
        taken = []
        for n in range(SINGLE):
            began = time.perf_counter()
            session.sql(what("by_pyspark", ROWS + n if what is insert else n)).collect()
            taken.append(time.perf_counter() - began)
        found.append(statistics.median(taken))
    session.sql("DROP TABLE by_pyspark").collect()
    session.stop()
    return found[0], found[1], found[2]


def insert(table: str, key: int) -> str:
    """Return one of the mix."""
    return f"INSERT INTO {table} VALUES ({key}, 'n{key}', {key}.5, 0)"


def update(table: str, key: int) -> str:
    """Return one of the mix."""
    return f"UPDATE {table} SET visits = visits + 1, name = 'seen {key}' WHERE id = {key}"


def delete(table: str, key: int) -> str:
    """Return one of the mix."""
    return f"DELETE FROM {table} WHERE id = {key}"


def mix(names: list[str], count: int) -> list[tuple[int, str]]:
    """Return statements, each with its kind: 0 INSERT, 1 UPDATE, 2 DELETE."""
    rng = random.Random(14)
    ends = dict.fromkeys(names, ROWS)
    found = []
    for _ in range(count):
        name, chance = rng.choice(names), rng.random()
        if chance < 0.7:
            found.append((0, insert(name, ends[name])))
            ends[name] += 1
        else:
            key = rng.randrange(ends[name])
            found.append((1, update(name, key)) if chance < 0.9 else (2, delete(name, key)))
    return found


async def _write(ring: LocalRing, names: list[str], count: int) -> list[int]:
    """Write the mix; return how many of each kind it was."""
    statements = mix(names, count)
    left = iter(statements)

    async def writer(connection: Any) -> None:
        async with connection.cursor() as cursor:
            for _, sql in left:
                await cursor.execute(sql)

    async with haclient.aio.connect(ring.urls, timeout_s=WAIT_S) as connection:
        await asyncio.gather(*(writer(connection) for _ in range(WRITERS)))
    return [sum(kind == each for kind, _ in statements) for each in range(3)]


if __name__ == "__main__":
    main()
