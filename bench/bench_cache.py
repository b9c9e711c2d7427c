"""The time of a query with a kept answer, against the same query run again, on a ring of one.

A sum over a table of a million rows, as a dashboard asks it: by one client at levels `any` and
`linearizable`, while another client writes to another table, and by many clients at once.

``python -m bench.bench_cache``
"""

from __future__ import annotations

import asyncio
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import haclient
from bench.report import Row, ms, report
from bench.rings import ring_of, writing

ROWS: Final = 1_000_000
TIMES: Final = 100
RUNS: Final = 15
FIRSTS: Final = 5
CLIENTS: Final = 16
BAR: Final = 0.05
QUERY: Final = "SELECT g, count(*), sum(v) FROM facts GROUP BY g ORDER BY g"


def main() -> None:
    """Measure and report."""
    with ring_of(1) as ring:
        asyncio.run(ring.up())
        report("cache", measured(ring.urls))


def measured(urls: str) -> list[Row]:
    """Return the figures."""
    with haclient.connect(urls) as client:
        client.execute("CREATE TABLE facts (g INT, v BIGINT) USING delta")
        client.execute("CREATE TABLE others (id BIGINT) USING delta")
        client.execute(
            f"INSERT INTO facts SELECT CAST(id % 20 AS INT), id FROM range(0, {ROWS}, 1, 4)"
        )
        median_s(client, 5, cache=False)
        run_s = median_s(client, RUNS, cache=False)
        first_s = firsts(client)
        kept_s = median_s(client, TIMES, cache=True)
        exact_s = median_s(client, TIMES, cache=True, consistency="linearizable")
        with haclient.connect(urls) as writer, writing(writer, "others"):
            busy_run_s = median_s(client, 3, cache=False, consistency="linearizable")
            busy_s = median_s(client, TIMES // 4, cache=True, consistency="linearizable")
    many_run = many(urls, 1, cache=False)
    many_kept = many(urls, TIMES, cache=True)
    again = "the query run again, p50"
    return [
        ms("kept answer, p50", (kept_s, run_s), again),
        Row("a kept answer's share of the query's time", "", kept_s / run_s, "bar", BAR),
        ms("kept answer at level linearizable, p50", (exact_s, run_s), again),
        ms(
            "the same while another table is written",
            (busy_s, busy_run_s),
            "run again, linearizable, likewise",
        ),
        ms("first time that an answer is kept (analysis, DESCRIBE), p50", (first_s, run_s), again),
        Row(f"kept answers, {CLIENTS} clients", "1/s", many_kept, "run again", many_run),
    ]


def median_s(client: haclient.Connection, times: int, **options: Any) -> float:
    """Return the median of so many queries in seconds; of kept ones each must be one."""
    taken = []
    client.execute(QUERY, **options).fetchall()
    for _ in range(times):
        began = time.perf_counter()
        cursor = client.execute(QUERY, **options)
        cursor.fetchall()
        taken.append(time.perf_counter() - began)
        assert not options["cache"] or cursor.ha["cache"]["hit"], cursor.ha
    return statistics.median(taken)


def firsts(client: haclient.Connection) -> float:
    """Return the median time of queries that never ran before."""
    taken = []
    for number in range(FIRSTS):
        began = time.perf_counter()
        cursor = client.execute(QUERY.replace("sum(v)", f"sum(v + {number})"), cache=True)
        cursor.fetchall()
        taken.append(time.perf_counter() - began)
        assert cursor.ha["cache"]["kept"], cursor.ha
    return statistics.median(taken)


def many(urls: str, times: int, **options: Any) -> float:
    """Return how many queries a second as many clients get answered together."""

    def client(_: int) -> None:
        with haclient.connect(urls) as connection:
            median_s(connection, times, **options)

    began = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(client, range(CLIENTS)))
    return CLIENTS * (times + 1) / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
