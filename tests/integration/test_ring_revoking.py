"""Tests of revoking endless writes of a real ring, by clients, operators and time budgets."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator

import pytest
from pyspark.sql.connect.session import SparkSession

import haclient
from haproc.cli.main import main
from tests.rig import Rig

pytestmark = [pytest.mark.spark, pytest.mark.logs("sqlite")]

SLOW = (
    "SELECT CAST(id AS INT) AS id, CAST(id AS STRING) AS name "
    "FROM range(1000000000000) WHERE hash(id) = 7"
)
"""Hours of work on all cores, with the same result on all clusters."""
WITHIN_S = 60.0
"""Chosen; it takes a few seconds on an idle machine."""


class Sent:
    """A statement that a client of its own waits for."""

    def __init__(self, rig: Rig, sql: str, order: str = "abc", budget_s: int | None = None) -> None:
        self.id = uuid.uuid4().hex
        self.error: haclient.Error | None = None
        self._connection = rig.connect(order)
        self.cursor = self._connection.cursor()
        self._thread = threading.Thread(target=self._run, args=(sql, budget_s), daemon=True)
        self._thread.start()

    def _run(self, sql: str, budget_s: int | None) -> None:
        try:
            self.cursor.execute(sql, request_id=self.id, timeout_s=900, apply_budget_s=budget_s)
        except haclient.Error as error:
            self.error = error

    def ended(self) -> haclient.Error:
        """Return the error with which the statement ended."""
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive(), "it still runs"
        assert self.error is not None, "it was applied"
        self._connection.close()
        return self.error


def running(rig: Rig, clusters: str = "abc") -> int:
    """Wait until these clusters run one operation, the same; return its offset."""
    found: list[list[int]] = []

    def all_do() -> bool:
        found[:] = [rig.running(name) for name in clusters]
        return len(found[0]) == 1 and all(each == found[0] for each in found)

    rig.wait(all_do, WITHIN_S)
    time.sleep(1)  # its tasks take the cores
    return found[0][0]


def revoked(error: haclient.Error) -> None:
    assert (error.error_class, error.sqlstate) == ("HAPROC_REVOKED", "57014")
    assert error.outcome is not None and error.outcome.value == "REJECTED"


@pytest.fixture
def table(rig: Rig) -> Iterator[str]:
    name = rig.table()
    rig.run(f"INSERT INTO {name} VALUES (1, 'a')")
    rig.settled()
    yield name
    for offset in rig.running("a"):  # of a test that failed: others share the ring
        main(["queue", "revoke", str(offset), "--yes", "--config", str(rig.ring.file)])
    rig.settled()
    rig.check_equal(name)
    assert [rig.status(each)["state"] for each in "abc"] == ["READY"] * 3


@pytest.mark.thorough
def test_write_running_on_all_clusters_is_revoked_by_its_sender_and_the_ring_continues(
    rig: Rig, table: str
) -> None:
    sent = Sent(rig, f"INSERT INTO {table} {SLOW}")
    first = running(rig)
    waiting = Sent(rig, f"INSERT INTO {table} VALUES (7, 'w')")  # behind the first one
    rig.wait(lambda: all(rig.status(n)["log_end"] > first + 1 for n in "abc"), WITHIN_S)
    begun = time.monotonic()
    assert waiting.cursor.cancel() == "revoked"
    revoked(waiting.ended())
    assert sent.cursor.cancel() == "revoked"
    took_s = time.monotonic() - begun
    revoked(sent.ended())
    print(f"both were taken back within {took_s:.1f} s")
    rig.run(f"INSERT INTO {table} VALUES (2, 'b')")
    assert rig.everywhere(f"SELECT * FROM {table} ORDER BY id") == [(1, "a"), (2, "b")]
    # Its id stands for what became of it, at every HAProc.
    status, answer = rig.get("c", f"/api/2.0/sql/statements/{sent.id}")
    assert (status, answer["status"]["state"], answer["ha"]["final"]) == (200, "FAILED", True)
    status, answer = rig.post("b", f"/api/2.0/sql/statements/{sent.id}/cancel", {})
    assert (status, answer["became"]) == (200, "ended")


@pytest.mark.thorough
def test_create_table_as_is_revoked_by_an_operator_and_through_another_haproc(
    rig: Rig, table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = f"made_{uuid.uuid4().hex[:8]}"
    sent = Sent(rig, f"CREATE TABLE {made} USING delta AS {SLOW}")
    offset = running(rig, "a")
    command = ("queue", "revoke", str(offset), "--reason", "slow", "--yes")
    assert main([*command, "--config", str(rig.ring.file)]) == 0
    assert f"offset {offset} is taken back" in capsys.readouterr().out
    error = sent.ended()
    revoked(error)
    assert "an operator: slow" in error.message
    assert rig.everywhere(f"SHOW TABLES LIKE '{made}'") == []

    sent = Sent(rig, f"CREATE TABLE {made} USING delta AS {SLOW}")
    running(rig, "a")
    status, answer = rig.post("b", f"/api/2.0/sql/statements/{sent.id}/cancel", {})
    assert (status, answer["became"]) == (200, "revoked"), answer
    revoked(sent.ended())
    rig.run(f"CREATE TABLE {made} USING delta AS SELECT 1 AS id")
    assert rig.everywhere(f"SELECT * FROM {made}") == [(1,)]


@pytest.mark.thorough
def test_write_is_revoked_on_wait_timeout_and_by_its_time_budget(rig: Rig, table: str) -> None:
    body = {"statement": f"INSERT INTO {table} {SLOW}", "wait_timeout": "10s"}
    status, answer = rig.post("a", "/api/2.0/sql/statements", {**body, "on_wait_timeout": "CANCEL"})
    assert (status, answer["status"]["state"]) == (200, "FAILED"), answer
    assert answer["status"]["error"]["error_class"] == "HAPROC_REVOKED", answer

    error = Sent(rig, f"INSERT INTO {table} {SLOW}", budget_s=5).ended()
    revoked(error)
    assert "its time budget (5 s)" in error.message
    assert rig.everywhere(f"SELECT * FROM {table}") == [(1, "a")]


@pytest.mark.thorough
def test_write_whose_rows_are_computed_is_revoked_by_its_sender(rig: Rig, table: str) -> None:
    sent = Sent(rig, f"INSERT INTO {table} {SLOW} AND rand() >= 0")
    time.sleep(10)
    assert sent.cursor.cancel() == "revoked"
    revoked(sent.ended())
    rig.run(f"INSERT INTO {table} VALUES (2, 'b')")  # nothing holds the cores
    assert rig.everywhere(f"SELECT * FROM {table} ORDER BY id") == [(1, "a"), (2, "b")]


@pytest.mark.thorough
def test_write_of_a_pyspark_program_is_revoked_by_an_interrupt(rig: Rig, table: str) -> None:
    session = SparkSession.builder.remote(f"sc://{rig.door('a')}").create()
    errors: list[Exception] = []

    def run() -> None:
        try:
            session.sql(f"INSERT INTO {table} {SLOW}")
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    running(rig)
    assert len(session.interruptAll()) == 1
    thread.join(WITHIN_S)
    assert len(errors) == 1 and "HAPROC_REVOKED" in str(errors[0])
    session.stop()
    assert rig.everywhere(f"SELECT * FROM {table}") == [(1, "a")]


@pytest.mark.fault
@pytest.mark.thorough
def test_haproc_killed_while_a_write_is_revoked_recovers_to_the_same_rows(
    rig: Rig, table: str
) -> None:
    rig.restart("c", "unable.after:1:kill")
    sent = Sent(rig, f"INSERT INTO {table} {SLOW}", "a")
    running(rig)
    # Its word is in the log before it dies: that is enough.
    assert sent.cursor.cancel() == "revoked"
    revoked(sent.ended())
    rig.gone("c")
    rig.start("c")
    rig.settled()
    assert rig.everywhere(f"SELECT * FROM {table}") == [(1, "a")]
