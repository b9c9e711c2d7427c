"""Tests of a ring that lacks a HAProc, a Spark or the log: its states, clients, and recovery."""

from __future__ import annotations

import json
import re
import socket
import threading
import urllib.error
import urllib.request
import uuid
from typing import Any

import pytest

import haclient
from tests.rig import Rig

pytestmark = pytest.mark.spark

STATEMENTS = "/api/2.0/sql/statements"


def operator(rig: Rig, name: str, path: str) -> tuple[int, bytes]:
    """Send a request to an operator door."""
    url = rig.ring.config.peer_url(name) + path
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def refuses(rig: Rig, name: str) -> bool:
    """Return whether the client door refuses connections."""
    listen = rig.ring.config.cluster(name).listen
    try:
        socket.create_connection((listen.host, listen.port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


@pytest.mark.thorough
def test_queue_of_a_stopped_haproc_is_applied_in_batches_after_its_return(rig: Rig) -> None:
    first, second = rig.table(), rig.table()
    rig.ring.kill("c", "haproc")
    rig.wait(lambda: rig.ring.pids("c")["haproc"] is None, 10)
    writers = [
        threading.Thread(target=_insert, args=(rig, table, part), daemon=True)
        for table in (first, second)
        for part in range(3)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(200)
    rig.run(f"UPDATE {first} SET name = 'updated' WHERE id % 10 = 0")
    rig.run(f"INSERT INTO {first} VALUES (1000, 'after')")
    end = rig.status("a")["log_end"]
    assert rig.status("c") == {"state": "-"}
    assert rig.seen("a", "c")["alive"] is False
    seen: list[dict[str, Any]] = []
    written = rig.log_of("c")
    rig.start("c", ready=False)

    def recovered() -> bool:
        seen.append(rig.status("c"))
        return bool(seen[-1]["state"] == "READY")

    rig.wait(recovered, 120)
    assert "-> RECOVERING" in rig.log_of("c").removeprefix(written)
    recovering = [status for status in seen if status["state"] == "RECOVERING"]
    if len(recovering) > 5:  # a starved machine may let us look only at its end
        assert any(status["recovery"]["remaining"] > 0 for status in recovering)
    assert all(status["cursor"] <= status["log_end"] for status in recovering)
    assert seen[-1]["log_end"] >= end
    metrics = operator(rig, "c", "/metrics")[1].decode()
    statements = _metric(metrics, "haproc_batch_operations_count")
    operations = _metric(metrics, "haproc_batch_operations_sum")
    # 26 operations: a batch of INSERTs for each table, the UPDATE, the last INSERT.
    assert operations >= 26
    assert statements <= operations - 20, (statements, operations)
    assert rig.everywhere(
        f"SELECT count(*), count(DISTINCT id), count_if(name = 'updated') FROM {first}"
    ) == [(13, 13, 2)]
    rig.check_equal(first, second)


def _insert(rig: Rig, table: str, part: int) -> None:
    with rig.cursor("ab") as cursor:
        for number in range(4 * part, 4 * part + 4):
            cursor.execute(f"INSERT INTO {table} VALUES ({number}, 'x')")


def _metric(text: str, name: str) -> float:
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    assert found, name
    return float(found[1])


@pytest.mark.thorough
def test_spark_killed_during_a_statement_closes_the_client_door_and_recovers(
    rig: Rig,
) -> None:
    table, large = rig.table(), rig.table("id BIGINT")
    errors: list[haclient.Error] = []

    def write() -> None:
        insert = f"INSERT INTO {large} SELECT id FROM range(300000)"
        try:
            rig.run(insert, order="bca", timeout_s=200)
        except haclient.Error as error:
            errors.append(error)

    writer = threading.Thread(target=write, daemon=True)
    with rig.cursor("bca") as cursor:
        cursor.execute(f"INSERT INTO {table} VALUES (1, 'x')")
        assert cursor.ha["cluster"] == "b"
        end = rig.log_end()
        writer.start()
        rig.wait(lambda: rig.status("a")["log_end"] > end, 30)
        rig.ring.kill("b", "spark")
        rig.wait(lambda: refuses(rig, "b"), 20)
        status, body = operator(rig, "b", "/readyz")
        ready = json.loads(body)
        assert (status, ready["state"]) == (503, "DOWN")
        assert ready["reason"]
        assert operator(rig, "b", "/healthz")[0] == 200
        cursor.execute(f"INSERT INTO {table} VALUES (2, 'y')")
        assert cursor.ha["cluster"] == "c"
        # DDL doesn't wait for it; it finds it in its queue.
        cursor.execute(f"ALTER TABLE {table} ADD COLUMNS (z INT)")
        assert (cursor.ha["outcomes"]["a"], cursor.ha["outcomes"]["c"]) == ("applied", "applied")
        assert cursor.ha["outcomes"]["b"] != "applied"
    writer.join(240)
    assert errors == []
    rig.up()
    assert operator(rig, "b", "/readyz")[0] == 200
    assert rig.everywhere(f"SELECT * FROM {table} ORDER BY id") == [(1, "x", None), (2, "y", None)]
    count = f"SELECT count(*), count(DISTINCT id) FROM {large}"
    assert rig.everywhere(count) == [(300_000, 300_000)]


def test_log_that_cannot_be_reached_leaves_queries_and_fails_writes_as_unavailable(
    rig: Rig,
) -> None:
    table = rig.table()
    rig.settled()
    insert = {"statement": f"INSERT INTO {table} VALUES (1, 'x')", "request_id": uuid.uuid4().hex}
    errors: list[Exception] = []

    def write() -> None:
        try:
            rig.run(f"INSERT INTO {table} VALUES (2, 'y')", timeout_s=120)
        except haclient.Error as error:
            errors.append(error)

    with rig.log_held():
        code, answer = rig.post("a", STATEMENTS, insert | {"wait_timeout": "30s"})
        assert (code, answer["kind"]) == (503, "availability"), answer
        assert answer["error_class"] in ("HAPROC_LOG_UNAVAILABLE", "HAPROC_READ_ONLY")
        assert rig.run("SELECT 1") == [(1,)]
        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        # No door closes meanwhile, and the client goes from one to the next.
        assert [rig.run("SELECT 1", order=name) for name in "abc"] == [[(1,)]] * 3
        assert writer.is_alive()
    writer.join(120)
    assert errors == []
    # The same id again: applied once, whatever had become of the first attempt.
    code, answer = rig.post("a", STATEMENTS, insert | {"wait_timeout": "30s"})
    assert (code, answer["status"]["state"]) == (200, "SUCCEEDED")
    assert rig.everywhere(f"SELECT * FROM {table} ORDER BY id") == [(1, "x"), (2, "y")]
