"""Measure HAProc's engine against PySpark's own client, on the same Spark server.

Both run the same statements in turn, so that a busy machine slows both alike; compare the ratios,
not the times.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from pathlib import Path

from bench.measures import in_turn
from bench.report import ms, report
from bench.rings import past_ring
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.interface import EngineAddress, Settings, TransactionMarker
from haproc.engine.statement import SqlText
from haproc.ring.process import free_port
from haproc.ring.spark import LocalSpark

SELECTS = 60
INSERTS = 15
_TIMEOUT_S = 60.0


def main() -> None:
    """Start a Spark server, run the benchmark on it, and stop the server."""
    with tempfile.TemporaryDirectory(prefix="haproc-bench-") as folder, asyncio.Runner() as runner:
        spark = LocalSpark("bench", Path(folder), free_port(), "bench", progress=print)
        runner.run(spark.start())
        try:
            measure(runner, spark)
        finally:
            runner.run(spark.stop())


def measure(runner: asyncio.Runner, spark: LocalSpark) -> None:
    """Run the benchmark on a running Spark server; print its figures and write them to a file."""
    pyspark = past_ring(spark)
    address = EngineAddress("127.0.0.1", spark.port, spark.token)
    engine = runner.run(_engine(address))
    for name in ("by_engine", "by_pyspark"):
        pyspark.sql(f"CREATE TABLE {name} (id BIGINT) USING delta").collect()
    versions = iter(range(1, 10 * INSERTS))
    selects = in_turn(
        lambda: runner.run(_select(engine)), lambda: pyspark.sql("SELECT 1").collect(), SELECTS
    )
    inserts, guarded = (
        in_turn(
            lambda guarded=guarded: runner.run(_insert(engine, next(versions), guarded)),  # type: ignore[misc]
            lambda: pyspark.sql("INSERT INTO by_pyspark VALUES (1)").collect(),
            INSERTS,
        )
        for guarded in (False, True)
    )
    probes = in_turn(
        lambda: runner.run(engine.probe(timeout_s=_TIMEOUT_S)),
        lambda: pyspark.range(2).count(),
        SELECTS // 2,
    )
    runner.run(engine.aclose())
    pyspark.stop()
    report(
        "engine",
        [
            ms("SELECT 1, p50", selects, "the same through PySpark"),
            ms("one-row INSERT with a mark, p50", inserts, "one without, through PySpark"),
            ms("the same guarded by Delta, p50", guarded, "one without, through PySpark"),
            ms("health probe, p50", probes, "range(2).count() through PySpark"),
        ],
    )


async def _engine(address: EngineAddress) -> SparkConnectEngine:
    return SparkConnectEngine(address, ring="bench", cluster="bench")


async def _select(engine: SparkConnectEngine) -> None:
    result = await engine.session("bench").query(SqlText("SELECT 1"), timeout_s=_TIMEOUT_S)
    async with contextlib.aclosing(result) as chunks:
        async for _ in chunks:
            pass


async def _insert(engine: SparkConnectEngine, version: int, guarded: bool) -> None:
    await engine.lane(0).apply(
        SqlText("INSERT INTO by_engine VALUES (1)"),
        Settings(),
        TransactionMarker("bench", version, guarded),
        timeout_s=_TIMEOUT_S,
    )


if __name__ == "__main__":
    main()
