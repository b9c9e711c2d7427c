"""Read levels on a real ring: what a reader elsewhere sees right after an acknowledged write."""

from __future__ import annotations

import signal
from typing import Any

import pytest

import haclient
from tests.rig import Rig

pytestmark = [pytest.mark.spark, pytest.mark.logs("sqlite")]


def count(connection: haclient.Connection, table: str, **options: Any) -> tuple[int, str]:
    """Return how many rows there are, and who says so."""
    cursor = connection.execute(f"SELECT count(*) FROM {table}", **options)
    return cursor.fetchall()[0][0], str(cursor.ha["cluster"])


def test_reader_elsewhere_sees_every_acknowledged_write(rig: Rig) -> None:
    table = rig.table()
    with rig.connect("a") as writer, rig.connect("b", consistency="linearizable") as reader:
        for number in range(1, 4):
            writer.execute(f"INSERT INTO {table} VALUES ({number}, 'x')")
            assert count(reader, table)[0] == number
            token = writer.after_offset
            with rig.connect("c", consistency="session", after_offset=token) as another:
                assert count(another, table)[0] == number


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
            asked = {"consistency": "bounded", "acceptable_offset_lag": 0}
            assert count(reader, table, **asked)[0] == 1
            assert count(reader, table, **asked)[1] in "ab"
        finally:
            rig.ring.signal("c", "spark", signal.SIGCONT)
    rig.settled()
    with rig.connect("c", consistency="linearizable") as reader:
        assert count(reader, table) == (1, "c")
