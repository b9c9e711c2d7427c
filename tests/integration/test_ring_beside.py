"""A real ring in which one table takes long to compute: what touches no table of it goes on."""

from __future__ import annotations

import threading
import uuid

import pytest

import haclient
from tests.rig import PATIENT, Rig

pytestmark = pytest.mark.spark
SIDE = 12_000
"""Pairs of so many numbers are looked at one by one, in one task: that takes Spark long, and leaves
its other core to others."""
ROWS = SIDE * (SIDE + 1) // 2


class Computed(threading.Thread):
    """Has a table of one row computed, which takes long, through one client."""

    def __init__(self, rig: Rig, **options: float) -> None:
        super().__init__(daemon=True)
        self.table = f"slow_{uuid.uuid4().hex[:8]}"
        self._rig = rig
        self._options = options
        self.error: haclient.Error | None = None

    def run(self) -> None:
        with self._rig.cursor("abc", timeout_s=240, **self._options) as cursor:
            try:
                cursor.execute(
                    f"CREATE TABLE {self.table} USING delta AS SELECT count(*) AS n "
                    f"FROM range(0, {SIDE}, 1, 1) AS a JOIN range(0, {SIDE}, 1, 1) AS b "
                    "ON a.id <= b.id"
                )
            except haclient.Error as error:
                self.error = error

    def begin(self) -> None:
        """Start it, and return once `a` runs it."""
        log_end = self._rig.log_end()
        self.start()
        Rig.wait(lambda: int(self._rig.status("a")["log_end"]) > log_end, 60)

    def end(self) -> None:
        """Wait for it; it was made, with what it should hold, alike on all clusters."""
        self.join(240)
        assert not self.is_alive()
        assert self.error is None
        assert self._rig.everywhere(f"SELECT n FROM {self.table}") == [(ROWS,)]


@pytest.mark.thorough
def test_writes_and_fresh_reads_of_others_go_on_while_a_table_is_computed(rig: Rig) -> None:
    table = rig.table()
    computed = Computed(rig)
    computed.begin()
    for number, name in enumerate("ab"):
        rig.run(f"INSERT INTO {table} VALUES ({number}, 'x')", name)
    read = f"SELECT count(*) FROM {table}"
    assert rig.run(read, "b", consistency="linearizable") == [(2,)]
    assert rig.run(read, "a", consistency="linearizable") == [(2,)]
    assert computed.is_alive(), "the others waited for the table, or it was computed too fast"
    computed.end()
    rig.check_equal(table, computed.table)


@pytest.mark.thorough
def test_origin_killed_while_it_computes_a_table_leaves_all_equal(rig: Rig) -> None:
    table = rig.table()
    computed = Computed(rig, **PATIENT)
    computed.begin()
    rig.run(f"INSERT INTO {table} VALUES (1, 'x')", "a")
    assert computed.is_alive()
    rig.ring.kill("a", "haproc")
    for number, name in enumerate("bc"):
        rig.run(f"INSERT INTO {table} VALUES ({number + 2}, 'y')", name)
    rig.start("a")
    computed.end()
    assert rig.everywhere(f"SELECT count(*) FROM {table}") == [(3,)]
    rig.check_equal(table, computed.table)
