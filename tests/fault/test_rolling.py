"""Tests of rolling restarts under load and of a frozen HAProc: no request fails or is doubled."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import haclient
import haclient.aio
from haproc.cli.rings import roll_ring
from tests.rig import Rig

pytestmark = [pytest.mark.fault, pytest.mark.logs("sqlite")]

ROLL_S = 120.0
PAUSE_S = 2.5
"""The pause between a client's writes. Without it two cores have no time left for catching up."""
FROZEN_S = 30.0
"""A bound for a busy machine. The aim is a second: `bench.bench_membership` measures it."""


class Load(threading.Thread):
    """Reads and writes through one connection, in a session of its own, until it is stopped."""

    def __init__(self, urls: list[str], table: str, number: int) -> None:
        super().__init__(daemon=True)
        self._urls = urls
        self._table = table
        self._first = number * 1_000_000
        self._number = number
        self._stopped = threading.Event()
        self.answered: Counter[str] = Counter()
        self.errors: list[haclient.Error] = []
        self.written = 0
        self.longest_s = 0.0

    def stop(self) -> None:
        self._stopped.set()

    def _noted(self, cluster: str, began: float) -> None:
        self.written += 1
        self.answered[cluster] += 1
        self.longest_s = max(self.longest_s, time.monotonic() - began)

    def _insert(self) -> str:
        return f"INSERT INTO {self._table} VALUES ({self._first + self.written}, 'x')"

    def run(self) -> None:
        options: dict[str, Any] = {"client_number": self._number, "timeout_s": 120.0}
        with haclient.connect(self._urls, order="spread", **options) as connection:
            connection.execute("CREATE TEMPORARY VIEW mine AS SELECT 7 AS n")
            while not self._stopped.is_set():
                began = time.monotonic()
                try:
                    cursor = connection.execute("SELECT n FROM mine")
                    assert cursor.fetchall() == [(7,)]
                    connection.execute(self._insert())
                except haclient.Error as error:
                    self.errors.append(error)
                else:
                    self._noted(cursor.ha["cluster"], began)
                self._stopped.wait(PAUSE_S)


class AioLoad(Load):
    """Reads and writes with the asyncio client, without a session."""

    def run(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        options = {"client_number": self._number, "timeout_s": 120.0, "hedge_after_s": 0.5}
        async with haclient.aio.connect(self._urls, order="spread", **options) as connection:
            while not self._stopped.is_set():
                began = time.monotonic()
                try:
                    cursor = await connection.execute("SELECT 1")
                    await connection.execute(self._insert())
                except haclient.Error as error:
                    self.errors.append(error)
                else:
                    self._noted(cursor.ha["cluster"], began)
                await asyncio.sleep(PAUSE_S)


@contextmanager
def load(rig: Rig, table: str) -> Iterator[list[Load]]:
    """Let clients of each kind work; afterwards all acknowledged rows must be there once."""
    urls = [rig.url(name) for name in "abc"]
    loads = [Load(urls, table, 0), Load(urls, table, 1), AioLoad(urls, table, 2)]
    for each in loads:
        each.start()
    try:
        goes_on(rig, loads)
        yield loads
        goes_on(rig, loads)
    finally:
        for each in loads:
            each.stop()
        for each in loads:
            each.join(150)
    assert [each.errors for each in loads] == [[], [], []]
    written = sum(each.written for each in loads)
    found = rig.everywhere(f"SELECT count(*), count(DISTINCT id) FROM {table}")
    assert found == [(written, written)]
    print([(dict(each.answered), round(each.longest_s, 2)) for each in loads])


def goes_on(rig: Rig, loads: list[Load]) -> None:
    written_before = [each.written for each in loads]
    rig.wait(lambda: all(x.written > n for x, n in zip(loads, written_before, strict=True)), 120)


@pytest.mark.thorough
def test_rolling_restart_of_haprocs_and_a_spark_under_load_fails_no_request(
    rig: Rig,
) -> None:
    table = rig.table()
    with load(rig, table) as loads:
        for name, what in (("a", "haproc"), ("b", "both")):
            before = rig.ring.pids(name)
            written = rig.log_of(name)
            asyncio.run(roll_ring(rig.ring, [name], what, ROLL_S))
            now = rig.ring.pids(name)
            assert now["haproc"] != before["haproc"]
            assert (now["spark"] != before["spark"]) == (what == "both")
            assert rig.status(name)["state"] == "READY"
            assert f"{name}: READY -> DRAINING" in rig.log_of(name).removeprefix(written)
            goes_on(rig, loads)
    rig.check_equal(table)


@pytest.mark.thorough
def test_client_of_a_frozen_haproc_gets_its_next_answer_in_time(rig: Rig) -> None:
    table = rig.table()
    with rig.cursor("ab", failback_after_s=0.0) as cursor:
        rig.wait(lambda: cursor.execute("SELECT 1").ha["cluster"] == "a", 60)
        for sql in ("SELECT 1", f"INSERT INTO {table} VALUES (1, 'x')"):
            rig.wait(lambda: cursor.execute("SELECT 1").ha["cluster"] == "a", 60)
            rig.ring.signal("a", "haproc", signal.SIGSTOP)
            try:
                began = time.monotonic()
                cursor.execute(sql)
                took_s = time.monotonic() - began
            finally:
                rig.ring.signal("a", "haproc", signal.SIGCONT)
            print(f"{sql[:6]} answered by {cursor.ha['cluster']} after {took_s:.2f} s")
            assert took_s < FROZEN_S
    assert rig.everywhere(f"SELECT * FROM {table}") == [(1, "x")]
