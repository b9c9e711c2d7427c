"""The effect of a copy on the clients of a ring and on the memory of its HAProcs.

A ring of three. Each of two clients repeats its statement, a query and an INSERT of a row, on the
donor and on the cluster beside it: before a table is copied, and while the third cluster is rebuilt
from the donor. A statement is meant to take no longer then than twice its usual 99th percentile.

``python -m bench.bench_copying_beside [MEBIBYTES]`` (of the table; 300 by default).
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Final

import haclient
from bench.measures import forget_peak, peak
from bench.report import Row, report
from bench.rings import beside, ring_of
from haproc.cli.main import main as haproc
from haproc.ring.local import LocalRing

MIB: Final = 300
ROW_BYTES: Final = 1 << 10
USUAL_S: Final = 60.0
TIMES_MAX: Final = 2.0
MEMORY_BAR_MIB: Final = 300.0


def main() -> None:
    """Measure and report."""
    mebibytes = int(sys.argv[1]) if len(sys.argv) > 1 else MIB
    with ring_of(3) as ring:
        asyncio.run(ring.up(warm=True))
        report("copying_beside", copied(ring, mebibytes))


def copied(ring: LocalRing, mebibytes: int) -> list[Row]:
    """Rebuild the last cluster from the first one; return the effect on clients of the others."""
    donor, beside, receiver = ring.names
    _fill(ring, mebibytes)
    statements = {
        f"{what} on {who}": (ring.config.client_url(name), sql)
        for who, name in (("the donor", donor), ("another cluster", beside))
        for what, sql in (("SELECT 1", "SELECT 1"), ("INSERT", "INSERT INTO small VALUES ({n})"))
    }
    with _timed(statements) as usual:
        time.sleep(USUAL_S)
    pids = [ring.pids(name)["haproc"] or 0 for name in ring.names]
    for pid in pids:
        forget_peak(pid)
    with _timed(statements) as meanwhile:
        began = time.perf_counter()
        words = ("cluster", "rebuild", receiver, "--from", donor, "--yes", "--wait")
        assert haproc([*words, "--folder", str(ring.folder)]) == 0
        took_s = time.perf_counter() - began
    bar = f"usually; at most {TIMES_MAX:g} times is the bar"
    rows = [Row(f"copy of {mebibytes} MiB", "MiB/s", mebibytes / took_s)]
    for what, taken in meanwhile.items():
        usual_ms, now_ms = _p99(usual[what]) * 1e3, _p99(taken) * 1e3
        rows.append(Row(f"{what}, p99 while it is copied", "ms", now_ms, bar, usual_ms))
        rows.append(Row(f"{what}, longest", "ms", max(taken) * 1e3, "usual p99", usual_ms))
    for who, pid in zip(("donor", "other", "receiver"), pids, strict=True):
        rows.append(Row(f"memory of the {who}'s HAProc", "MiB", peak(pid), "bar", MEMORY_BAR_MIB))
    return rows


def _fill(ring: LocalRing, mebibytes: int) -> None:
    with haclient.connect(ring.urls) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE small (id BIGINT) USING delta")
        # Digests: what does not shrink, and is the same on every cluster.
        digests = ", ".join(f"sha2(concat(id, ' {n}'), 512)" for n in range(ROW_BYTES // 128))
        cursor.execute(
            f"CREATE TABLE large USING delta AS SELECT id, unhex(concat({digests})) AS data "
            f"FROM range({mebibytes << 20} DIV {ROW_BYTES // 2})"
        )


@contextmanager
def _timed(statements: dict[str, tuple[str, str]]) -> Iterator[dict[str, list[float]]]:
    """Repeat each statement at its server meanwhile; yield how long each took, in seconds."""
    found: dict[str, list[float]] = {what: [] for what in statements}

    def ask(what: str, url: str, sql: str, stopped: threading.Event) -> None:
        with haclient.connect([url], discover=False) as connection:
            for number in count():
                if stopped.is_set():
                    return
                began = time.perf_counter()
                connection.execute(sql.format(n=number))
                found[what].append(time.perf_counter() - began)

    with beside(*(partial(ask, what, *of) for what, of in statements.items())):
        yield found


def _p99(taken: list[float]) -> float:
    return sorted(taken)[len(taken) * 99 // 100]


if __name__ == "__main__":
    main()
