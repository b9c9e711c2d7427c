"""The memory of a HAProc over ten minutes of mixed load with kills.

A ring of two. Clients write, read and append through the first cluster; a HAProc or a Spark of the
second one is killed again and again, and started anew. The first HAProc lives through all of it:
its memory in the last minute stands beside that of the fourth, by which all its parts were used.

``python -m bench.bench_memory [MINUTES]`` (10 by default, at least 5).
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final

import pyarrow as pa

import haclient
from bench.measures import resident
from bench.report import Row, report
from bench.rings import beside, ring_of
from haproc.ring.local import LocalRing

MINUTES: Final = 10.0
FIRST_MINUTE: Final = 4
BAR: Final = 1.05
KILL_EVERY_S: Final = 40.0
SAMPLE_S: Final = 1.0
PAUSE_S: Final = 0.05
"""Between a client's statements: the cluster that was killed is to catch up on two cores."""
KEYS: Final = 50
KEPT_BYTES: Final = 200_000
OFTEN: Final = 100
"""The number of rounds of a client with one connection."""


def main() -> None:
    """Measure and report."""
    minutes = max(FIRST_MINUTE + 1.0, float(sys.argv[1]) if len(sys.argv) > 1 else MINUTES)
    with ring_of(2) as ring:
        asyncio.run(ring.up(warm=True))
        report("memory", measured(ring, minutes))


def measured(ring: LocalRing, minutes: float) -> list[Row]:
    """Return the HAProc's memory, and the number of rounds and kills meanwhile."""
    stays, falls = ring.names
    pid = ring.pids(stays)["haproc"]
    assert pid is not None
    with haclient.connect(ring.urls) as connection:
        connection.execute("CREATE TABLE kept (id BIGINT, s STRING) USING delta")
    done = Counter[str]()
    found: list[tuple[float, float]] = []
    began = time.monotonic()
    with _busy(ring, stays, falls, done):
        while (at_s := time.monotonic() - began) < minutes * 60:
            found.append((at_s, resident(pid)))
            time.sleep(SAMPLE_S)
    then = _mean(found, FIRST_MINUTE * 60 - 60)
    now = _mean(found, minutes * 60 - 60)
    name = f"memory in the last of {minutes:g} minutes (bar {BAR:g})"
    rows = [Row(name, "MiB", now, f"in minute {FIRST_MINUTE}", then)]
    return rows + [Row(what, "times", times) for what, times in sorted(done.items())]


def _mean(found: list[tuple[float, float]], from_s: float) -> float:
    return statistics.fmean(mib for at_s, mib in found if from_s <= at_s < from_s + 60)


Work = Callable[[haclient.Connection, int], None]


def by_sql(connection: haclient.Connection, number: int) -> None:
    """Insert, change and delete."""
    key = number % KEYS
    connection.execute(f"INSERT INTO kept VALUES ({key}, '{number}')")
    connection.execute(f"UPDATE kept SET s = 'x{number}' WHERE id = {key}")
    connection.execute(f"DELETE FROM kept WHERE id = {(key + 1) % KEYS}")


def by_rows(connection: haclient.Connection, number: int) -> None:
    """Append a row."""
    connection.append("kept", pa.table({"id": [number % KEYS], "s": [str(number)]}))


def by_query(connection: haclient.Connection, number: int) -> None:
    """Read from a session's view, and a result that HAProc keeps for a while."""
    connection.execute(f"CREATE OR REPLACE TEMPORARY VIEW mine AS SELECT {number} AS n")
    connection.execute("SELECT n FROM mine").fetchall()
    connection.execute(f"SELECT repeat('x', {KEPT_BYTES}), {number}").fetchall()


def by_error(connection: haclient.Connection, number: int) -> None:
    """Read a column that does not exist."""
    with suppress(haclient.ProgrammingError):
        connection.execute(f"SELECT missing_{number} FROM kept")


WORKS: Final[dict[str, Work]] = {
    "rounds of writes by SQL": by_sql,
    "appends": by_rows,
    "rounds of queries": by_query,
    "refused statements": by_error,
}


@contextmanager
def _busy(ring: LocalRing, stays: str, falls: str, done: Counter[str]) -> Iterator[None]:
    """Have clients work with one cluster, and parts of the other one killed, meanwhile."""

    def work(what: str, stopped: threading.Event) -> None:
        url = ring.config.client_url(stays)
        while not stopped.is_set():
            # Clients come and go.
            with haclient.connect([url], discover=False) as connection:
                for _ in range(OFTEN):
                    if stopped.wait(PAUSE_S):
                        return
                    WORKS[what](connection, done[what])
                    done[what] += 1

    def strike(stopped: threading.Event) -> None:
        for what in itertools.cycle(("haproc", "spark")):
            if stopped.wait(KILL_EVERY_S):
                return
            ring.kill(falls, what)
            done[f"kills of a {what}"] += 1
            if what == "spark":
                asyncio.run(ring.start_spark(falls))
            asyncio.run(ring.start_haproc(falls))

    with beside(strike, *(partial(work, what) for what in WORKS)):
        yield


if __name__ == "__main__":
    main()
