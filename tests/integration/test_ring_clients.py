"""Clients of a real ring that learn it from one URL and move away from a HAProc that drains."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import pytest

import haclient
from tests.rig import Rig

pytestmark = pytest.mark.spark


class Load(threading.Thread):
    """Queries and writes, one after another, until stopped; notes who answered."""

    def __init__(self, rig: Rig, table: str, number: int) -> None:
        super().__init__(daemon=True)
        self._rig = rig
        self._table = table
        self._number = number
        self.stopped = threading.Event()
        self.answered: Counter[str] = Counter()
        self.errors: list[haclient.Error] = []
        self.events: list[haclient.Failover] = []
        self.written = 0
        self.longest_s = 0.0

    def run(self) -> None:
        with haclient.connect(
            [self._rig.url(name) for name in "abc"],
            order="spread",
            client_number=self._number,
            on_failover=self.events.append,
        ) as connection:
            while not self.stopped.is_set():
                began = time.monotonic()
                try:
                    cursor = connection.execute("SELECT 1")
                    number = self._number * 1_000_000 + self.written
                    connection.execute(f"INSERT INTO {self._table} VALUES (?, 'x')", [number])
                except haclient.Error as error:
                    self.errors.append(error)
                else:
                    self.written += 1
                    self.answered[cursor.ha["cluster"]] += 1
                self.longest_s = max(self.longest_s, time.monotonic() - began)


def test_ring_is_learned_from_one_url(rig: Rig) -> None:
    urls = {name: rig.url(name) for name in "abc"}
    with rig.connect("b", discover=True, refresh_s=0.1) as connection:
        rig.wait(lambda: bool(connection.execute("SELECT 1")) and len(connection.servers) == 3, 60)
        assert connection.servers == (urls["b"], urls["a"], urls["c"])
        asyncio.run(rig.ring.stop_haproc("b"))
        assert connection.execute("SELECT 1").ha["cluster"] in "ac"
    rig.start("b")


def test_draining_one_haproc_under_load_fails_no_request(rig: Rig) -> None:
    table = rig.table()
    loads = [Load(rig, table, number) for number in range(3)]
    for load in loads:
        load.start()
    try:
        rig.wait(lambda: all(load.written >= 3 for load in loads), 120)
        asyncio.run(rig.ring.stop_haproc("b"))
        told = [load.written for load in loads]
        rig.wait(lambda: all(x.written >= w + 3 for x, w in zip(loads, told, strict=True)), 120)
    finally:
        for load in loads:
            load.stopped.set()
        for load in loads:
            load.join(150)
        rig.start("b")
    assert [load.errors for load in loads] == [[], [], []]
    assert loads[1].answered["b"] and sum(loads[1].answered.values()) > loads[1].answered["b"]
    written = sum(load.written for load in loads)
    assert rig.everywhere(f"SELECT count(*), count(DISTINCT id) FROM {table}") == [(written,) * 2]
    print([(dict(x.answered), len(x.events), round(x.longest_s, 2)) for x in loads])
