"""Tests of read levels on a real ring: reads at other clusters after an acknowledged write."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest

import haclient
from tests.rig import Rig

pytestmark = [pytest.mark.spark, pytest.mark.logs("sqlite")]


def count(connection: haclient.Connection, table: str, **options: Any) -> tuple[int, str]:
    """Return the number of rows, and the cluster that answered."""
    cursor = connection.execute(f"SELECT count(*) FROM {table}", **options)
    return cursor.fetchall()[0][0], str(cursor.ha["cluster"])


@pytest.mark.thorough
def test_reader_at_another_cluster_sees_all_acknowledged_writes(rig: Rig) -> None:
    table = rig.table()
    with rig.connect("a") as writer, rig.connect("b", consistency="linearizable") as reader:
        for number in range(1, 4):
            writer.execute(f"INSERT INTO {table} VALUES ({number}, 'x')")
            assert count(reader, table)[0] == number
            token = writer.after_offset
            with rig.connect("c", consistency="session", after_offset=token) as another:
                assert count(another, table)[0] == number


@pytest.mark.thorough
def test_reader_on_a_lagging_cluster_is_sent_to_a_fresher_one(rig: Rig) -> None:
    table = rig.table()
    rig.settled()
    with rig.connect("a") as writer, rig.connect("c") as reader:
        count(reader, table)
        rig.ring.signal("c", "spark", signal.SIGSTOP)
        try:
            writer.execute(f"INSERT INTO {table} VALUES (1, 'x')")
            end = rig.status("a")["log_end"]
            rig.wait(lambda: rig.seen("c", "a")["cursor"] >= end, 20)
            level = {"consistency": "bounded", "acceptable_offset_lag": 0}
            assert count(reader, table, **level)[0] == 1
            assert count(reader, table, **level)[1] in "ab"
        finally:
            rig.ring.signal("c", "spark", signal.SIGCONT)
    rig.settled()
    with rig.connect("c", consistency="linearizable") as reader:
        assert count(reader, table) == (1, "c")


class Watcher:
    """A client that reads the number of rows, linearizable and cached, while others write."""

    def __init__(self, rig: Rig, cluster: str, table: str) -> None:
        self.acknowledged = self.sent = self.hits = 0
        self.wrong: list[str] = []
        self._rig, self._cluster, self._table = rig, cluster, table
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        with self._rig.connect(self._cluster, consistency="linearizable") as connection:
            while not self._stopped.is_set():
                least = self.acknowledged
                cursor = connection.execute(f"SELECT count(*) FROM {self._table}", cache=True)
                found = cursor.fetchall()[0][0]
                if not least <= found <= self.sent:
                    self.wrong.append(f"{found} rows, where {least} to {self.sent} were written")
                self.hits += cursor.ha["cache"]["hit"]


@pytest.mark.thorough
def test_cached_answer_is_never_older_than_acknowledged_writes(rig: Rig) -> None:
    table = rig.table()
    counted = f"SELECT count(*) FROM {table}"
    with rig.connect("a") as writer, Watcher(rig, "b", table) as watcher:
        for number in range(1, 3):
            watcher.sent = number
            writer.execute(f"INSERT INTO {table} VALUES ({number}, 'x')")
            watcher.acknowledged = number
            for again in (False, True):
                cursor = writer.execute(counted, cache=True)
                assert cursor.fetchall() == [(number,)]
                assert cursor.ha["cache"]["hit"] is again, cursor.ha
            watcher.hits = 0
            rig.wait(lambda: watcher.hits > 1, 20)
        assert watcher.wrong == []
