"""A write of many rows that have to be computed: its time and memory, beside Spark's own write.

``python -m bench.many_rows HOST:PORT TOKEN [MEGABYTES]``: a ring of that one cluster, its HAProc
in this process with a SQLite log, so that the peak of memory told is HAProc's alone. By hand: the
server's heap should be as small as clusters' drivers are (1 GiB), which it has to survive.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
import time
import uuid
from pathlib import Path

from dmq import open_log
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.interface import EngineAddress, Settings
from haproc.engine.statement import SqlText
from haproc.route.model import Request, SentSql
from tests.integration.one_cluster import one_cluster

ROW_BYTES = 8 + 8 + 4 + 256
QUERY = "SELECT id, rand() AS x, repeat(md5(cast(rand() AS STRING)), 8) AS text FROM range({rows})"


def resident(what: str) -> float:
    """Return this process's memory in MB: VmRSS now, VmHWM at its peak."""
    status = Path("/proc/self/status").read_text()
    (kilobytes,) = re.findall(rf"{what}:\s+(\d+) kB", status)
    return int(kilobytes) / 1000


async def main(address: str, token: str, megabytes: int = 1000) -> None:
    """Write once past HAProc, then through it."""
    host, _, port = address.partition(":")
    at = EngineAddress(host, int(port), token)
    query = QUERY.format(rows=megabytes * 1_000_000 // ROW_BYTES)
    schema = f"bench_rows_{uuid.uuid4().hex[:6]}"
    engine = SparkConnectEngine(at, ring="bench", cluster="a")
    lane = engine.lane(0)

    async def run(sql: str) -> float:
        began = time.perf_counter()
        await lane.apply(SqlText(sql), Settings(), None, timeout_s=3600)
        return time.perf_counter() - began

    columns = "(id BIGINT, x DOUBLE, text STRING) USING delta"
    with tempfile.TemporaryDirectory() as folder:
        log = await open_log(f"sqlite:{folder}/log.db")
        await run(f"CREATE SCHEMA {schema}")
        for table in ("direct", "ring"):
            await run(f"CREATE TABLE {schema}.{table} {columns}")
        direct_s = await run(f"INSERT INTO {schema}.direct {query}")
        print(f"Spark alone: {direct_s:.1f} s")
        try:
            async with one_cluster(at, log=log) as (service, _):
                before, began = resident("VmRSS"), time.perf_counter()
                sent = SentSql(f"INSERT INTO {schema}.ring {query}")
                answer = await service.execute(
                    Request(uuid.uuid4().hex, sent, uuid.uuid4().hex, timeout_s=3600)
                )
                ring_s = time.perf_counter() - began
                peak = resident("VmHWM")
            print(f"through the ring: {ring_s:.1f} s, {ring_s / direct_s:.2f} times")
            print(f"{answer.affected_rows} rows; memory before {before:.0f}, peak {peak:.0f} MB")
        finally:
            await run(f"DROP SCHEMA {schema} CASCADE")
            await engine.aclose()
            await log.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])))
