"""The speed of a table's copy from one cluster to another, beside that of Spark alone.

- ``storage``: the cluster's Spark reads the donor's files, beside `CREATE TABLE … AS SELECT` from
  the donor's folder on the same Spark.
- ``stream``: through the two HAProcs, beside a program of PySpark's that reads the table from one
  Spark, a slice at a time, and writes it to the other one.

Copies are timed as a whole, from the request (`haproc table repair`) until the cluster has gone on.
Both sides of a pair take turns; the better of `ROUNDS` counts.

``python -m bench.bench_copy [storage] [stream]`` (both by default).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Final

import yaml
from pyspark.sql.connect.session import SparkSession

import haclient
from bench.report import Row, report
from bench.rings import past_ring, ring_of
from haproc.cli.queue import Asker
from haproc.ring.local import LocalRing

PARTS: Final = ("storage", "stream")
ROWS: Final = 3_500_000
"""Rows of 300 bytes that do not compress: about a GiB."""
FILES: Final = 16
SLICES: Final = 16
ROUNDS: Final = 2
WAIT_S: Final = 600.0
TABLE: Final = "spark_catalog.default.big"
OTHER: Final = "spark_catalog.default.other"
MIB: Final = 1 << 20


def main() -> None:
    """Measure and report."""
    parts = sys.argv[1:] or PARTS
    with ring_of(2, memory="2g") as ring:
        asyncio.run(ring.up(warm=True))
        donor, taker = (past_ring(ring.sparks[name]) for name in "ab")
        size, place = filled(ring, donor)
        rows = list[Row]()
        if "storage" in parts:
            names = "copied by storage", "CREATE TABLE AS SELECT of the donor's files"
            rows.append(
                _row(ring, taker, size, {place: place}, names, lambda: _selected(taker, place))
            )
        if "stream" in parts:
            names = "copied as a stream", "a program of PySpark's between the two"
            rows.append(_row(ring, taker, size, {}, names, lambda: _carried(donor, taker)))
    report("copy", rows)


def filled(ring: LocalRing, donor: SparkSession) -> tuple[float, str]:
    """Make the table on both clusters; return its size in MiB, and its folder at the donor."""
    with haclient.connect([ring.config.client_url(name) for name in ring.names]) as connection:
        columns = ", ".join(f"sha2(concat(id, '{n}'), 512) AS {n}" for n in "xy")
        connection.execute(f"CREATE TABLE {TABLE} (id BIGINT, x STRING, y STRING) USING delta")
        connection.execute(
            f"INSERT INTO {TABLE} SELECT id, {columns} FROM range(0, {ROWS}, 1, {FILES})"
        )
    found = donor.sql(f"DESCRIBE DETAIL {TABLE}").collect()[0]
    return found["sizeInBytes"] / MIB, found["location"]


def _row(
    ring: LocalRing,
    taker: SparkSession,
    size: float,
    storage: dict[str, str],
    what: tuple[str, str],
    theirs: Callable[[], None],
) -> Row:
    """Copy the table, and do it by ``theirs``; ``what``: the names of both."""
    asyncio.run(_begun_anew(ring, storage))
    ours_s, theirs_s = _best(taker, lambda: asyncio.run(_copied(ring)), theirs)
    return Row(what[0], "MiB/s", size / ours_s, what[1], size / theirs_s)


def _best(
    taker: SparkSession, ours: Callable[[], None], theirs: Callable[[], None]
) -> tuple[float, float]:
    """Return the shortest time of each, in seconds."""
    times: tuple[list[float], list[float]] = [], []
    for _ in range(ROUNDS):
        for one, took in zip((ours, theirs), times, strict=True):
            taker.sql(f"DROP TABLE IF EXISTS {OTHER}").collect()
            began = time.perf_counter()
            one()
            took.append(time.perf_counter() - began)
    print(f"  {times}", file=sys.stderr)
    return min(times[0]), min(times[1])


async def _begun_anew(ring: LocalRing, storage: dict[str, str]) -> None:
    """Start the HAProc of b anew; ``storage``: the paths by which its Spark reaches a's files."""
    config = yaml.safe_load(ring.file.read_text())
    config["clusters"][0]["storage"] = storage
    ring.file.write_text(yaml.safe_dump(config))
    await ring.stop_haproc("b")
    await ring.start_haproc("b")
    async with Asker(ring.config) as asker, asyncio.timeout(WAIT_S):
        while (await asker.ask("b", "GET", "/ha/v1/status"))["state"] != "READY":  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def _copied(ring: LocalRing) -> None:
    body = {"cluster": "b", "table": TABLE.removeprefix("spark_catalog."), "donor": "a"}
    async with Asker(ring.config) as asker, asyncio.timeout(WAIT_S):
        offset = (await asker.ask("b", "POST", "/ha/v1/repair", body))["offset"]
        while True:
            status = await asker.ask("b", "GET", "/ha/v1/status")
            if status["copy_failed"]:
                raise RuntimeError(status["copy_failed"])
            if status["cursor"] > offset and status["copy"] is None:
                return
            await asyncio.sleep(0.05)


def _selected(taker: SparkSession, place: str) -> None:
    taker.sql(f"CREATE TABLE {OTHER} USING delta AS SELECT * FROM delta.`{place}`").collect()


def _carried(donor: SparkSession, taker: SparkSession) -> None:
    """Copy the table from one Spark to the other, slice by slice, so that memory suffices."""
    step = -(-ROWS // SLICES)
    for start in range(0, ROWS, step):
        slice_ = donor.table(TABLE).where(f"id >= {start} AND id < {start + step}")
        taker.createDataFrame(slice_.toArrow()).write.mode("append").format("delta").saveAsTable(
            OTHER
        )


if __name__ == "__main__":
    main()
