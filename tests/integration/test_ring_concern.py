"""Tests of write concerns on a real ring: an answered write is on the clusters of its concern."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.rig import Rig

pytestmark = [pytest.mark.spark, pytest.mark.logs("sqlite")]

NOTICED_S = 20.0
"""A bound for a busy machine: a peer's death and its return are noticed within this time."""


def rows_on(rig: Rig, name: str, table: str) -> list[int]:
    """Return the rows of one cluster at this moment, without any wait."""
    return [row[0] for row in rig.run(f"SELECT id FROM {table} ORDER BY id", order=name)]


def wait_in_sync(rig: Rig, by: str, names: str) -> None:
    rig.wait(lambda: "".join(rig.status(by).get("in_sync", [])) == names, NOTICED_S)


@pytest.mark.thorough
def test_write_of_concern_all_is_on_all_clusters_when_it_returns(rig: Rig) -> None:
    table = rig.table("id INT")
    rig.settled()
    wait_in_sync(rig, "a", "abc")
    with rig.connect("abc") as connection, connection.cursor() as cursor:
        for number in range(3):
            cursor.execute(f"INSERT INTO {table} VALUES ({number})", write_concern="all")
            assert cursor.ha["outcomes"] == dict.fromkeys("abc", "applied")
            for name in "bc":
                assert rows_on(rig, name, table) == list(range(number + 1))
        answer = connection.append(
            table, pa.table({"id": pa.array([3], pa.int32())}), write_concern="all"
        )
        assert answer["outcomes"] == dict.fromkeys("abc", "applied")
        assert [rows_on(rig, name, table) for name in "bc"] == [[0, 1, 2, 3]] * 2


@pytest.mark.thorough
def test_write_of_concern_all_leaves_out_a_dead_cluster_until_it_is_in_sync_again(
    rig: Rig,
) -> None:
    table = rig.table("id INT")
    rig.settled()
    wait_in_sync(rig, "a", "abc")
    with rig.cursor("ab") as cursor:
        rig.ring.kill("c", "haproc")
        for concern in ("all", "majority"):
            cursor.execute(f"INSERT INTO {table} VALUES (1)", write_concern=concern)
            assert cursor.ha["outcomes"]["a"] == cursor.ha["outcomes"]["b"] == "applied"
            assert cursor.ha["outcomes"]["c"] == "queued"
        rig.start("c")
        # its door is open: what it missed is there
        assert rows_on(rig, "c", table) == [1, 1]
        wait_in_sync(rig, "a", "abc")
        cursor.execute(f"INSERT INTO {table} VALUES (2)", write_concern="all")
        assert cursor.ha["outcomes"] == dict.fromkeys("abc", "applied")
        assert rows_on(rig, "c", table) == [1, 1, 2]
