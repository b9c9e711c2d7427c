"""Measure PySpark through a ring, against PySpark directly on the same Spark server.

A ring of one cluster shows what HAProc adds to each kind of call: queries, settings, rows, writes.
In a ring of two clusters sessions move to the other HAProc, and the HAProc in use is killed. The
calls through the ring and the direct ones take turns, so that a busy machine slows both alike;
compare the ratios.

``python -m bench.bench_connect [MEBIBYTES]``: the size of the large appends, in Arrow, by default
64. The highest memory use of the HAProc during them is measured, too; the bar for it is meant for
1024 MiB. ``--only costs|ddl|large|losses`` measures only this part, and writes no file.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
import pyarrow as pa
from pyspark.sql.connect.client import DefaultChannelBuilder
from pyspark.sql.connect.dataframe import DataFrame
from pyspark.sql.connect.session import SparkSession
from pyspark.sql.types import LongType

import haclient
from bench.measures import forget_peak, in_turn, peak, timed
from bench.report import Row, median_and_worst, ms, report, show
from bench.rings import past_ring, ring_of
from haproc.ring.local import LocalRing

SELECTS = 60
SETTINGS = 300
WRITES = 15
DDL_TIMES = 7
DDL = (
    "CREATE DATABASE of_{0}",
    "CREATE TABLE of_{0}.t (id BIGINT, price DOUBLE) USING delta",
    "ALTER TABLE of_{0}.t ADD COLUMN n INT",
    "CREATE VIEW of_{0}.v AS SELECT id FROM of_{0}.t",
    "DROP VIEW of_{0}.v",
    "DROP TABLE of_{0}.t",
    "DROP DATABASE of_{0}",
)
FETCHES = 5
FETCHED_MIB = 100
LARGE_MIB = 64
ADOPTIONS = 5
KILLS = 5
USUAL = 20
ADOPTION_BAR_S = 0.6
GAP_BAR_MS = 100.0
MEMORY_BAR_MIB = 300.0
_DIRECT = "PySpark on the same server"
_ROW_BYTES = 64
"""The size of a row of the large appends: eight columns of eight bytes."""


def main() -> None:
    """Run the benchmark on both rings; print its figures; without ``--only`` also write them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("mebibytes", type=int, nargs="?", default=LARGE_MIB)
    parser.add_argument("--only", choices=("costs", "ddl", "large", "losses"))
    options = parser.parse_args()
    parts: dict[str, tuple[int, Callable[[LocalRing], list[Row]]]] = {
        "costs": (1, costs),
        "ddl": (1, ddl),
        "large": (1, lambda ring: large(ring, options.mebibytes)),
        "losses": (2, losses),
    }
    chosen = [options.only] if options.only else list(parts)
    rows: list[Row] = []
    for size in sorted({parts[name][0] for name in chosen}):
        settings = {"timeouts": {"probe_interval_s": 0.5}}
        with ring_of(size, memory="2g", settings=settings) as ring:
            asyncio.run(ring.up(warm=True))
            for measure in (parts[name][1] for name in chosen if parts[name][0] == size):
                rows += measure(ring)
                show("connect", rows)
    if options.only is None:
        report("connect", rows)


def costs(ring: LocalRing) -> list[Row]:
    """Return the times of queries, settings and writes in a ring of one, and directly on Spark."""
    through, direct = _through(ring), _direct(ring)
    selects = _both(through, direct, _select, SELECTS)
    settings = _both(through, direct, _setting, SETTINGS)
    rows = [
        ms("sql('select 1').collect(), p50 (bar 1.2)", selects, _DIRECT),
        ms("conf.get, p50 (bar 3)", settings, _DIRECT),
        _flow(_both(through, direct, _fetch, FETCHES)),
    ]
    for spark, name in ((through, "ring"), (direct, "direct")):
        for table in ("inserted", "appended", "added"):
            spark.sql(f"CREATE TABLE {table}_{name} (id BIGINT, price DOUBLE) USING delta")
    inserts = in_turn(
        lambda: through.sql("INSERT INTO inserted_ring VALUES (1, 1.5)"),
        lambda: direct.sql("INSERT INTO inserted_direct VALUES (1, 1.5)"),
        WRITES,
    )
    ones = in_turn(
        lambda: _one(through).writeTo("added_ring").append(),
        lambda: _one(direct).writeTo("added_direct").append(),
        WRITES,
    )
    appends = in_turn(
        lambda: _append(_small(through), "appended_ring"),
        lambda: _append(_small(direct), "appended_direct"),
        WRITES,
    )
    through.stop()
    direct.stop()
    return [
        *rows,
        ms("spark.sql('INSERT …') of one row, p50 (bar 1.15)", inserts, _DIRECT),
        ms("append of a DataFrame of one row, p50 (bar 1.1)", ones, _DIRECT),
        ms("append of a DataFrame of 10,000 rows, p50 (bar 1.2)", appends, _DIRECT),
    ]


def ddl(ring: LocalRing) -> list[Row]:
    """Return the times of DDL statements through a ring of one, and directly on Spark."""
    through, direct = _through(ring), _direct(ring)
    took: dict[str, list[tuple[float, float]]] = {statement: [] for statement in DDL}
    for number in range(DDL_TIMES + 1):  # the first round warms both
        for statement in DDL:
            texts = (statement.format(f"{who}{number}") for who in ("ring", "direct"))
            pair = [
                timed(partial(spark.sql, text))
                for spark, text in zip((through, direct), texts, strict=True)
            ]
            took[statement].append((pair[0], pair[1]))
    through.stop()
    direct.stop()
    return [
        ms(
            f"{' '.join(statement.split()[:2])}, p50 (bar 1.5)",
            (statistics.median(ours), statistics.median(theirs)),
            _DIRECT,
        )
        for statement, pairs in took.items()
        for ours, theirs in [zip(*pairs[1:], strict=True)]
    ]


def large(ring: LocalRing, size_mib: int) -> list[Row]:
    """Time the append of a large DataFrame: sent as a plan, or with rows that HAProc stages."""
    count = size_mib * (1 << 20) // _ROW_BYTES
    through, direct = _through(ring), _direct(ring)
    pid = ring.pids(ring.names[0])["haproc"]
    assert pid is not None
    rows: list[Row] = []
    for how, first, bar in (("as a plan", "id", 1.1), ("staged", "rand()", 2.5)):
        forget_peak(pid)
        # In turn and back again: what a server has done before makes it slower or faster.
        direct_s, ring_s, ring_again_s, direct_again_s = (
            _appended(spark, count, first, table)
            for spark, table in (
                (direct, "large_direct"),
                (through, "large_ring"),
                (through, "large_ring"),
                (direct, "large_direct"),
            )
        )
        ring_s, direct_s = (ring_s + ring_again_s) / 2, (direct_s + direct_again_s) / 2
        rows += [
            Row(f"append of {size_mib} MiB, {how} (bar {bar})", "s", ring_s, _DIRECT, direct_s),
            Row(f"the HAProc's memory meanwhile, {how}", "MiB", peak(pid), "bar", MEMORY_BAR_MIB),
        ]
    through.stop()
    direct.stop()
    return rows


def _appended(spark: SparkSession, count: int, first: str, table: str) -> float:
    """Append ``count`` wide rows to a new table; return the seconds that it took."""
    _append(_wide(spark, 1, first), table)
    took = timed(lambda: _append(_wide(spark, count, first), table))
    assert spark.table(table).count() == count + 1
    spark.sql(f"DROP TABLE {table}")
    return took


def losses(ring: LocalRing) -> list[Row]:
    """Return how long a program waits when its session moves, and when its HAProc is killed."""
    what = "a session of ten entries adopted"
    rows = median_and_worst(what, "s", _adoptions(ring), ADOPTION_BAR_S)
    for client, connect in (("plain PySpark", _plain), ("haclient.spark", _ours)):
        what = f"HAProc killed: {client}, beyond the usual"
        rows += median_and_worst(what, "ms", _gaps(ring, connect), GAP_BAR_MS)
    return rows


def _adoptions(ring: LocalRing) -> list[float]:
    """Return the seconds until the second HAProc first answers for a session of the first."""
    took: list[float] = []
    here, there = ring.names[:2]
    for _ in range(ADOPTIONS):
        parameters = f";session_id={uuid.uuid4()}"
        spark = _through(ring, here, parameters)
        _fill(spark)
        moved = _through(ring, there, parameters)
        took.append(timed(lambda moved=moved: _setting(moved)))  # type: ignore[misc]
        assert _setting(moved) == "4" and _view(moved)
        moved.stop()
        spark.stop()  # else PySpark looks for a server for minutes when the program ends
    return took


def _fill(spark: SparkSession) -> None:
    """Put ten entries into a session: four settings, four views, a schema and a function."""
    for number in range(4):
        spark.conf.set("spark.sql.shuffle.partitions", str(number + 1))
        spark.range(number + 1).createOrReplaceTempView(f"view_{number}")
    spark.sql("USE default")
    spark.udf.register("plus_one", lambda value: value + 1, LongType())
    _view(spark)


def _gaps(ring: LocalRing, connect: Callable[[LocalRing, list[str]], SparkSession]) -> list[float]:
    """Kill the HAProc in use, several times; return by how many ms each next answer was late."""
    gaps: list[float] = []
    for number in range(KILLS):
        used, other = ring.names[number % 2], ring.names[1 - number % 2]
        spark = connect(ring, [used, other])
        usual = statistics.median(timed(lambda spark=spark: _select(spark)) for _ in range(USUAL))  # type: ignore[misc]
        ring.kill(used, "haproc")
        gaps.append((timed(lambda spark=spark: _select(spark)) - usual) * 1e3)  # type: ignore[misc]
        spark.stop()
        asyncio.run(ring.start_haproc(used))
    return gaps


class _SeveralAddresses(DefaultChannelBuilder):  # type: ignore[misc]
    """PySpark's own channel to several addresses, like a host name that has all of them."""

    def __init__(self, addresses: list[str]) -> None:
        super().__init__(f"sc://{addresses[0]}")
        self._addresses = addresses

    def toChannel(self) -> grpc.Channel:
        return self._insecure_channel("ipv4:" + ",".join(self._addresses))


def _plain(ring: LocalRing, names: list[str]) -> SparkSession:
    builder = _SeveralAddresses([_address(ring, name) for name in names])
    return SparkSession.builder.channelBuilder(builder).create()


def _ours(ring: LocalRing, names: list[str]) -> SparkSession:
    return haclient.spark("sc://" + ",".join(_address(ring, name) for name in names))


def _address(ring: LocalRing, name: str) -> str:
    door = ring.config.cluster(name).connect
    assert door is not None
    return f"{door.host}:{door.port}"


def _through(ring: LocalRing, name: str | None = None, parameters: str = "") -> SparkSession:
    url = f"sc://{_address(ring, name or ring.names[0])}/{parameters}"
    return SparkSession.builder.remote(url).create()


def _direct(ring: LocalRing) -> SparkSession:
    return past_ring(ring.sparks[ring.names[0]])


def _select(spark: SparkSession) -> Any:
    return spark.sql("select 1").collect()


def _view(spark: SparkSession) -> Any:
    return spark.sql("select plus_one(id) from view_3").collect()


def _setting(spark: SparkSession) -> Any:
    return spark.conf.get("spark.sql.shuffle.partitions")


def _fetch(spark: SparkSession) -> pa.Table:
    """Fetch `FETCHED_MIB` MiB as a table of three columns of eight bytes."""
    rows = FETCHED_MIB * (1 << 20) // 24
    return spark.range(rows).selectExpr("id", "id * 3 AS n", "id / 7 AS share").toArrow()


def _one(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame([(1, 1.5)], "id BIGINT, price DOUBLE")


def _small(spark: SparkSession) -> DataFrame:
    rows = pa.table({"id": range(10_000), "price": [number / 7 for number in range(10_000)]})
    return spark.createDataFrame(rows)


def _wide(spark: SparkSession, rows: int, first: str) -> DataFrame:
    """Return ``rows`` rows of eight columns that hardly compress; ``first``: SQL of the first."""
    scattered = [f"xxhash64(id, {number}) AS n{number}" for number in range(7)]
    return spark.range(rows).selectExpr(f"{first} AS first", *scattered)


def _append(data: DataFrame, table: str) -> None:
    data.write.format("delta").mode("append").saveAsTable(table)


def _both(
    through: SparkSession, direct: SparkSession, call: Callable[[SparkSession], Any], times: int
) -> tuple[float, float]:
    return in_turn(lambda: call(through), lambda: call(direct), times)


def _flow(pair: tuple[float, float]) -> Row:
    name = f"{FETCHED_MIB} MiB of Arrow (bar 0.65)"
    return Row(name, "MiB/s", FETCHED_MIB / pair[0], _DIRECT, FETCHED_MIB / pair[1])


if __name__ == "__main__":
    main()
