"""The time until a dead HAProc is noticed, on a real ring: ``python -m bench.bench_membership``.

Kills one HAProc after another with -9 and asks another's /clusterStatus until it says so, as
clients and operators would. The rest of the ring serves on and is asked a query meanwhile. Then
freezes one after another (SIGSTOP) and takes the time until its client has the next answer.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time

import haclient
from bench.report import Row, report
from bench.rings import ring_of, status_of
from haproc.ring.local import LocalRing

KILLS = 10
BAR_MS = 500.0
FROZEN_BAR_MS = 1000.0
POLL_S = 0.01


def _alive(ring: LocalRing, by: str, name: str) -> bool:
    clusters = status_of(ring, by)["clusters"]
    return any(each["name"] == name and each["alive"] for each in clusters)


def _until(ring: LocalRing, by: str, name: str, alive: bool) -> None:
    end = time.monotonic() + 120
    while _alive(ring, by, name) is not alive:
        assert time.monotonic() < end, f"{by} does not see that {name} is {alive=}"
        time.sleep(POLL_S)


def _measure(ring: LocalRing) -> tuple[list[float], list[float]]:
    """Return milliseconds until each kill was noticed, and the longest query meanwhile."""
    noticed, waited = [], []
    names = ring.names
    for number in range(KILLS):
        name, by = names[number % len(names)], names[(number + 1) % len(names)]
        servers = [ring.config.client_url(each) for each in (name, by)]
        _until(ring, by, name, True)
        with haclient.connect(servers) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            began = time.monotonic()
            ring.kill(name, "haproc")
            killed = time.monotonic()
            _until(ring, by, name, False)
            noticed.append((time.monotonic() - began) * 1000)
            requested_at = time.monotonic()
            cursor.execute("SELECT 1")
            waited.append((time.monotonic() - requested_at) * 1000)
        assert killed - began < 1
        asyncio.run(ring.start_haproc(name))
    return noticed, waited


def _measure_frozen(ring: LocalRing) -> list[float]:
    """Return milliseconds from a query to a frozen HAProc to its answer by the next one."""
    waited = []
    names = ring.names
    for number in range(KILLS):
        name, other = names[number % len(names)], names[(number + 1) % len(names)]
        servers = [ring.config.client_url(each) for each in (name, other)]
        with haclient.connect(servers, discover=False) as connection:
            assert connection.execute("SELECT 1").ha["cluster"] == name
            ring.signal(name, "haproc", signal.SIGSTOP)
            began = time.monotonic()
            try:
                assert connection.execute("SELECT 1").ha["cluster"] == other
                waited.append((time.monotonic() - began) * 1000)
            finally:
                ring.signal(name, "haproc", signal.SIGCONT)
        asyncio.run(ring.start_haproc(name))
        _until(ring, other, name, True)
    return waited


def main() -> None:
    """Measure and report."""
    with ring_of(3, memory="1g", cores=2) as ring:
        asyncio.run(ring.up(warm=True))
        noticed, waited = _measure(ring)
        frozen = _measure_frozen(ring)
    report(
        "membership",
        [
            Row(
                "kill -9 until seen as down, median",
                "ms",
                statistics.median(noticed),
                "bar",
                BAR_MS,
            ),
            Row("the same, worst", "ms", max(noticed), "bar", BAR_MS),
            Row("its client's next query, median", "ms", statistics.median(waited)),
            Row("the same, worst", "ms", max(waited)),
            Row(
                "its HAProc frozen: client's next query, median",
                "ms",
                statistics.median(frozen),
                "bar",
                FROZEN_BAR_MS,
            ),
            Row("the same, worst", "ms", max(frozen)),
        ],
    )
    print(f"\n  load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
