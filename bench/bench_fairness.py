"""The effect of one user's flood of small queries on another user and on the cluster's health.

A ring of one with two users: one runs a hundred different small queries at any time, the other
asks now and then. With a bound on what Spark plans at once (`limits.planned_max`) as it is by
default, with other bounds, and with next to none.

``python -m bench.bench_fairness [PLANNED_MAX …]``
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from bench.report import Row, report
from bench.rings import ring_of
from haproc.config.sections import Limits
from haproc.ring.local import LocalRing

CLIENTS: Final = 100
FLOOD_S: Final = 40.0
ALONE: Final = 30
PAUSE_S: Final = 0.1
QUERY: Final = "SELECT count(*) FROM small"
NO_BOUND: Final = 256


@dataclass
class Found:
    """The figures of one flood: the other user's times, and the number of answers by result."""

    alone_s: float
    queries_s: list[float] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    flood: Counter[str] = field(default_factory=Counter)
    ready: Counter[bool] = field(default_factory=Counter)


def main() -> None:
    """Measure and report."""
    bounds = [int(each) for each in sys.argv[1:]] or [Limits().planned_max, NO_BOUND]
    rows: list[Row] = []
    for bound in bounds:
        settings = {"limits": {"planned_max": bound}}
        with ring_of(1, users=["flood", "other"], settings=settings) as ring:
            asyncio.run(ring.up())
            rows += rows_of(bound, asyncio.run(flooded(ring)))
    report("fairness", rows)


async def flooded(ring: LocalRing) -> Found:
    """Run a flood; return the figures of another user meanwhile."""
    timeout = aiohttp.ClientTimeout(total=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
        other, flood = Client(ring, http, "other"), Client(ring, http, "flood")
        await other.ask("CREATE TABLE small (id BIGINT) USING delta")
        await other.ask("INSERT INTO small VALUES (1), (2)")
        alone_s = statistics.median([(await other.ask(QUERY))[1] for _ in range(ALONE)])
        found, ends_at, numbers = Found(alone_s), time.monotonic() + FLOOD_S, itertools.count()

        async def asking() -> None:
            while time.monotonic() < ends_at:
                result, _ = await flood.ask(f"SELECT {next(numbers)}, count(*) FROM small")
                found.flood[result] += time.monotonic() < ends_at
                if result != "SUCCEEDED":
                    await asyncio.sleep(1)

        async def watching() -> None:
            while time.monotonic() < ends_at:
                found.ready[await other.sees_it_ready()] += 1
                await asyncio.sleep(PAUSE_S)

        tasks = [asyncio.create_task(asking()) for _ in range(CLIENTS)]
        tasks.append(asyncio.create_task(watching()))
        await asyncio.sleep(2)
        while time.monotonic() < ends_at:
            result, seconds = await other.ask(QUERY)
            found.answers[result] += 1
            if result == "SUCCEEDED":
                found.queries_s.append(seconds)
            await asyncio.sleep(PAUSE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return found


class Client:
    """The client of one user."""

    def __init__(self, ring: LocalRing, http: aiohttp.ClientSession, user: str) -> None:
        token = (ring.folder / "secrets" / f"user-{user}").read_text().strip()
        self._url = ring.urls
        self._headers = {"Authorization": f"Bearer {token}"}
        self._http = http

    async def ask(self, sql: str) -> tuple[str, float]:
        """Run a statement; return its state or error, and the seconds that it took."""
        began, request = time.monotonic(), {"statement": sql, "wait_timeout": "50s"}
        try:
            url = f"{self._url}/api/2.0/sql/statements"
            async with self._http.post(url, json=request, headers=self._headers) as answer:
                body: dict[str, Any] = await answer.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            return type(error).__name__, time.monotonic() - began
        status = body.get("status")
        result = status["state"] if isinstance(status, dict) else body.get("error_class")
        return str(result), time.monotonic() - began

    async def sees_it_ready(self) -> bool:
        """True if the HAProc reports that it serves."""
        try:
            async with self._http.get(f"{self._url}/readyz", headers=self._headers) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False


def rows_of(bound: int, found: Found) -> list[Row]:
    """Return the figures."""
    print(bound, found.answers, found.flood, found.ready, file=sys.stderr)
    planned, alone = f"{bound} planned at once", "the same without the flood"
    unready = found.ready[False] / found.ready.total()
    return [
        Row(
            f"another user's query, p50, {planned}",
            "ms",
            1000 * statistics.median(found.queries_s or [FLOOD_S]),
            alone,
            1000 * found.alone_s,
        ),
        Row(
            f"another user's query, longest, {planned}",
            "ms",
            1000 * max(found.queries_s, default=0),
        ),
        Row(f"the flood's queries, {planned}", "1/s", found.flood["SUCCEEDED"] / FLOOD_S),
        Row(f"share of the time in which it was not ready, {planned}", "", unready),
    ]


if __name__ == "__main__":
    main()
