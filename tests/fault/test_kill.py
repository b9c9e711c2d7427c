"""Real processes are killed and frozen at the worst moments: no write is lost or doubled."""

from __future__ import annotations

import signal
import time
import uuid

import pytest

import haclient
from tests.rig import PATIENT, Rig, Writer

pytestmark = pytest.mark.fault


@pytest.mark.thorough
@pytest.mark.parametrize("step", ["append.after", "apply.after"])
def test_insert_whose_haproc_is_killed_around_it_is_applied_once(rig: Rig, step: str) -> None:
    table = rig.table()
    rig.restart("a", fault=f"{step}:1:kill")
    with rig.cursor("abc", **PATIENT) as cursor:
        cursor.execute(f"INSERT INTO {table} VALUES (1, 'x')")
        answered_by = cursor.ha["cluster"]
        cursor.execute(f"INSERT INTO {table} VALUES (2, 'y')")
    rig.gone("a")
    # After cursor.after the answer may have left before the process died.
    assert answered_by == "b" or step == "cursor.after"
    rig.start("a")
    assert rig.everywhere(f"SELECT * FROM {table} ORDER BY id") == [(1, "x"), (2, "y")]


@pytest.mark.parametrize(
    "step", ["intent.after", pytest.param("fanout.after", marks=pytest.mark.thorough)]
)
def test_ddl_whose_haproc_is_killed_during_it_leaves_all_clusters_equal(
    rig: Rig, step: str
) -> None:
    name = f"d{uuid.uuid4().hex[:8]}"
    rig.restart("a", fault=f"{step}:1:kill")
    with rig.cursor("abc", **PATIENT) as cursor:
        cursor.execute(f"CREATE TABLE {name} (id INT) USING delta")
        cursor.execute(f"INSERT INTO {name} VALUES (1)")
    rig.gone("a")
    rig.start("a")
    assert rig.everywhere(f"SELECT * FROM {name}") == [(1,)]


@pytest.mark.thorough
def test_write_over_a_temporary_view_of_a_killed_haproc_is_computed_by_another_haproc(
    rig: Rig,
) -> None:
    """The client, and its session with it, never goes to another HAProc."""
    table, path, session = rig.table(), "/api/2.0/sql/statements", uuid.uuid4().hex
    rig.restart("a", fault="rows.before:1:kill")
    view = f"CREATE TEMPORARY VIEW {table}_v AS SELECT id FROM VALUES (7), (8) AS v(id)"
    assert rig.send("a", "PUT", f"/api/ha/sessions/{session}", {"statements": [view]})[0] == 200
    write = f"INSERT INTO {table} SELECT id, uuid() FROM {table}_v"
    with pytest.raises(OSError):
        rig.post("a", path, {"statement": write, "session_id": session})
    rig.gone("a")
    rig.start("a")
    assert rig.everywhere(f"SELECT id FROM {table} ORDER BY id") == [(7,), (8,)]
    rig.check_equal(table)


@pytest.mark.thorough
def test_haproc_killed_between_a_batch_and_its_cursor_applies_the_batch_once(rig: Rig) -> None:
    table = rig.table()
    rig.ring.kill("b", "haproc")
    with rig.cursor("ac") as cursor:
        for number in range(6):
            cursor.execute(f"INSERT INTO {table} VALUES ({number}, 'x')")
        # Dies once its first statement on the table, once a batch is committed, and once a batch's
        # intent is stored.
        for fault in ("apply.after:1:kill", "apply.after:2:kill", "intent.after:1:kill"):
            rig.start_to_die("b", fault)
            for _ in range(3):
                cursor.execute(f"INSERT INTO {table} VALUES (100, 'late')")
    rig.start("b")
    assert rig.everywhere(f"SELECT count(*), count(DISTINCT id) FROM {table}") == [(15, 7)]
    rig.check_equal(table)


def test_client_of_a_frozen_haproc_fails_over(rig: Rig) -> None:
    table = rig.table()
    with rig.cursor("abc") as cursor:
        cursor.execute("SELECT 1")
        assert cursor.ha["cluster"] == "a"
        rig.ring.signal("a", "haproc", signal.SIGSTOP)
        try:
            began = time.monotonic()
            cursor.execute("SELECT 1")
            assert cursor.ha["cluster"] == "b"
            assert time.monotonic() - began < 20
            cursor.execute(f"INSERT INTO {table} VALUES (1, 'x')")
        finally:
            rig.ring.signal("a", "haproc", signal.SIGCONT)
    assert rig.everywhere(f"SELECT * FROM {table}") == [(1, "x")]


def test_request_id_sent_to_all_haprocs_is_applied_once(rig: Rig) -> None:
    table = rig.table()
    body = {"statement": f"INSERT INTO {table} VALUES (1, 'x')", "request_id": uuid.uuid4().hex}
    answers = [rig.post(name, "/api/2.0/sql/statements", body)[1] for name in "abc"]
    assert [answer["status"]["state"] for answer in answers] == ["SUCCEEDED"] * 3
    assert len({answer["ha"]["log_offset"] for answer in answers}) == 1
    rig.restart("b")
    again = rig.post("b", "/api/2.0/sql/statements", body)[1]
    assert again["ha"]["log_offset"] == answers[0]["ha"]["log_offset"]
    other = body | {"statement": f"INSERT INTO {table} VALUES (2, 'y')"}
    assert rig.post("c", "/api/2.0/sql/statements", other)[0] == 409
    assert rig.everywhere(f"SELECT * FROM {table}") == [(1, "x")]


def test_ddl_that_fails_changes_no_cluster(rig: Rig) -> None:
    table = rig.table()
    before = rig.everywhere("SHOW TABLES")
    with rig.cursor("abc") as cursor, pytest.raises(haclient.ProgrammingError) as caught:
        cursor.execute(f"CREATE TABLE {table} (other INT) USING delta")
    assert caught.value.outcome is haclient.Outcome.REJECTED
    assert rig.everywhere("SHOW TABLES") == before
    assert rig.everywhere(f"DESCRIBE {table}")[0][0] == "id"
    assert {rig.status(name)["state"] for name in "abc"} == {"READY"}


@pytest.mark.logs("sqlite")  # on Kafka the short torture does as much
def test_writers_under_kills_of_haproc_and_spark_lose_and_double_no_row(rig: Rig) -> None:
    table = rig.table()
    writers = [Writer(rig, table, order, first) for order, first in (("abc", 0), ("bca", 10_000))]
    for writer in writers:
        writer.start()
    writers[0].wait_for(2)
    rig.ring.kill("a", "haproc")
    writers[0].wait_for(2)
    rig.ring.kill("b", "spark")
    writers[1].wait_for(2)
    for writer in writers:
        writer.stop()
    rig.up()
    acknowledged = sorted(number for writer in writers for number in writer.acknowledged)
    found = [row[0] for row in rig.everywhere(f"SELECT id FROM {table} ORDER BY id")]
    assert found == acknowledged
    rig.check_equal(table)
