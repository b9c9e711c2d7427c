"""The cost of a read level: the same query at each level in turn, on a ring of three.

First with nothing else to do, where a level costs what it asks of the log; then while a client
writes through another cluster, where it also waits for what was written before.

``python -m bench.bench_reads [sqlite|kafka]`` (both by default).
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from typing import Any

import haclient
from bench.report import Row, ms, report
from bench.rings import ring_of, writing
from haproc.ring.local import LocalRing, LogChoice

READS = 150
READS_UNDER_LOAD = 5
WARM_UP = 10
BARS_MS = {"sqlite": 10.0, "kafka": 20.0}
"""The most milliseconds that a level may add to the median."""
LEVELS = ("any", "bounded", "session", "linearizable")
QUERY = "SELECT count(*) FROM read_levels"


def main() -> None:
    """Measure on each log and report."""
    rows: list[Row] = []
    for log in sys.argv[1:] or list(BARS_MS):
        with ring_of(3, log=LogChoice(log)) as ring:
            asyncio.run(ring.up(warm=True))
            rows += measured(ring, log)
    report("reads", rows)


def measured(ring: LocalRing, log: str) -> list[Row]:
    """Return each level's median beside that of `any`, idle and under load."""
    urls = ring.urls.split(",")
    with haclient.connect(urls[1], discover=False) as writer:
        writer.execute("CREATE TABLE read_levels (id BIGINT) USING delta")
        writer.execute("INSERT INTO read_levels VALUES (0)")
        token = writer.after_offset
        with haclient.connect(urls[0], discover=False, after_offset=token) as reader:
            idle = medians(reader, READS)
            with writing(writer, "read_levels"):
                loaded = medians(reader, READS_UNDER_LOAD)
    rows = []
    for level in LEVELS[1:]:
        added = (idle[level] - idle["any"]) * 1e3
        name = f"{log}: what {level} adds to a query's p50"
        rows.append(Row(name, "ms", added, "bar", BARS_MS[log]))
        name = f"{log}: query at level {level}, p50"
        rows.append(ms(name, (idle[level], idle["any"]), "at level any"))
        name = f"{log}: the same while another client writes"
        rows.append(ms(name, (loaded[level], loaded["any"]), "at level any"))
    return rows


def medians(reader: haclient.Connection, times: int) -> dict[str, float]:
    """Return the median of each level in seconds; the levels take turns."""
    taken: dict[str, list[float]] = {level: [] for level in LEVELS}
    for number in range(times + WARM_UP):
        for level in LEVELS:
            bound: dict[str, Any] = {"acceptable_offset_lag": 0} if level == "bounded" else {}
            began = time.perf_counter()
            reader.execute(QUERY, consistency=level, **bound).fetchall()
            if number >= WARM_UP:
                taken[level].append(time.perf_counter() - began)
    return {level: statistics.median(found) for level, found in taken.items()}


if __name__ == "__main__":
    main()
