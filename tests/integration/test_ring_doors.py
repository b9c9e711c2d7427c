"""Tests of a real ring's doors: rows, large results, polling, cancelling, malformed requests."""

from __future__ import annotations

import io
import json
import threading
import urllib.request
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import haclient
from haclient.files import Loaded
from tests.rig import Rig

pytestmark = pytest.mark.spark

STATEMENTS = "/api/2.0/sql/statements"
LARGE_ROWS = 100_000
LARGE = f"SELECT id, repeat('x', 90) AS filler FROM range({LARGE_ROWS})"
ENDLESS = "SELECT sum(id % 7 + id % 11) FROM range(0, 900000000000)"


@pytest.mark.thorough
def test_write_right_after_ddl_finds_the_table_and_its_repeat_needs_no_table(rig: Rig) -> None:
    """DDL is acknowledged before all clusters have it; none may report a missing table."""
    rows = pa.table({"id": pa.array([1, 2], pa.int32())})
    for round_ in range(2):
        table, request_id = f"l_{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
        with rig.connect("bca") as late, late.cursor() as cursor:
            create = f"CREATE TABLE {table} (id INT) USING delta"
            rig.run(create, fanout="parallel")
            first = late.append(table, rows, request_id=request_id)
            rig.run(f"ALTER TABLE {table} ADD COLUMNS (note STRING)", fanout="parallel")
            cursor.execute(f"INSERT INTO {table} SELECT id + 10, uuid() FROM {table}")
            assert cursor.rowcount == 2
        counted = f"SELECT count(*), count(note), sum(id) FROM {table}"
        assert rig.everywhere(counted) == [(4, 2, 26)]
        # Whatever became of the table, the repeat of what was applied is told that it was.
        change = f"CREATE OR REPLACE TABLE {table} (other STRING) USING delta"
        rig.run(change if round_ else f"DROP TABLE {table}")
        for name in rig.ring.names:
            with rig.connect(name) as connection:
                again = connection.append(table, rows, request_id=request_id)
                assert again["log_offset"] == first["log_offset"]
                with pytest.raises(haclient.Error):
                    connection.append(table, rows)


@pytest.mark.thorough
def test_rows_door_appends_by_name_once_and_refuses_misfits(rig: Rig) -> None:
    table = rig.table("id INT NOT NULL, name STRING, at TIMESTAMP, dec DECIMAL(10,2)")
    good = pa.table(
        {
            "NAME": pa.array(["it's", None]).dictionary_encode(),
            "id": pa.array([1, 2], pa.int8()),
            "dec": pa.array([None, None], pa.decimal128(5, 2)),
        }
    )
    request_id = uuid.uuid4().hex
    with rig.connect() as connection:
        report = connection.append(table, good, request_id=request_id)
        assert (report["class"], report["affected_rows"]) == ("asynchronous", 2)
        again = connection.append(f"default.{table}", good)
        assert again["log_offset"] > report["log_offset"]
        repeated = connection.append(table, good, request_id=request_id)
        assert repeated["log_offset"] == report["log_offset"]
        ids = pa.array([1], pa.int32())
        misfits = {
            "an unknown column": pa.table({"id": ids, "absent": ids}),
            "a missing column that may not be null": pa.table({"name": pa.array(["x"])}),
            "a type that loses": pa.table({"id": pa.array([1.5])}),
            "a time without a zone": pa.table({"id": ids, "at": pa.array([0], pa.timestamp("us"))}),
        }
        for reason, misfit in misfits.items():
            with pytest.raises(haclient.Error) as caught:
                connection.append(table, misfit)
            assert caught.value.error_class == "HAPROC_ROWS_MISFIT", reason
            assert caught.value.outcome is haclient.Outcome.NOT_SENT, reason
        with pytest.raises(haclient.ProgrammingError):
            connection.append(f"no_{table}", good)
    assert rig.everywhere(f"SELECT id, name, at FROM {table} ORDER BY id") == [
        (1, "it's", None),
        (1, "it's", None),
        (2, None, None),
        (2, None, None),
    ]


@pytest.mark.thorough
def test_files_are_loaded_once_when_a_load_is_resumed(rig: Rig, tmp_path: Path) -> None:
    columns = "id BIGINT NOT NULL, name STRING, price DECIMAL(10,2), at TIMESTAMP, day DATE"
    table = rig.table(columns)
    file = tmp_path / "rows.csv"
    lines = [f'{n},"a ""b""\n{n}",{n}.5,2026-01-31T12:00:00Z,2026-01-31\n' for n in range(3000)]
    file.write_text("ID,name,price,at,day\n" + "".join(lines))
    ids: list[str] = []

    def break_off(loaded: Loaded) -> None:
        ids.append(loaded.load_id)
        if loaded.pieces:
            raise LookupError

    with rig.connect() as connection, pytest.raises(LookupError):
        connection.load(file, table, piece_bytes=90_000, at_once=1, on_progress=break_off)
    rig.everywhere(f"SELECT count(*) FROM {table}")  # what b has not applied yet is sent again
    with rig.connect("bca") as connection:
        loaded = connection.load(file, table, piece_bytes=90_000, resume=ids[0])
        assert (loaded.skipped, loaded.pieces) == (1, 2)
        file.write_text("id,name\n")
        assert connection.load(file, table).rows == 0
        with pytest.raises(haclient.ProgrammingError):
            connection.load(file, f"no_{table}")
        with connection.cursor() as cursor:
            sets = [(n, f"set {n}") for n in range(3000, 4500)]
            cursor.executemany(f"INSERT INTO {table} (id, name) VALUES (?, ?)", sets)
            assert cursor.rowcount == 1500
    rows = f"/api/ha/tables/{table}/rows"
    kind = {"Content-Type": "application/x-ndjson"}
    assert rig.send("c", "POST", rows, b'{"id": 4501, "day": "2026-01-31"}\n', **kind)[0] == 200
    status, answer_misfit = rig.send("c", "POST", rows, b'{"id": 1}\n{"id": 4502.5}\n', **kind)
    assert (status, answer_misfit["error_class"]) == (400, "HAPROC_ROWS_MISFIT")
    assert answer_misfit["message"].startswith("line 2: column id")
    found = rig.everywhere(
        f"SELECT count(*), count(DISTINCT id), sum(price), count(at), count(day), "
        f"count_if(name = concat('a \"b\"\\n', id)) FROM {table}"
    )
    assert found == [(4501, 4501, Decimal("4500000.00"), 3000, 3001, 3000)]


@pytest.mark.thorough
def test_load_resumed_after_the_cause_of_its_rejection_is_removed_appends_each_row_once(
    rig: Rig, tmp_path: Path
) -> None:
    table = rig.table("id BIGINT")
    file = tmp_path / "rows.csv"
    file.write_text("id\n" + "".join(f"{n}\n" for n in range(3000)))
    with rig.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} ADD CONSTRAINT few CHECK (id < 1500)")
        with pytest.raises(haclient.Error) as caught:
            connection.load(file, table, piece_bytes=6_000, at_once=1)
        load_id = caught.value.request_id.rpartition(".")[0]
        with pytest.raises(haclient.Error):
            connection.load(file, table, piece_bytes=6_000, resume=load_id)
        cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT few")
        for _ in range(2):
            connection.load(file, table, piece_bytes=6_000, resume=load_id)
    found = rig.everywhere(f"SELECT count(*), count(DISTINCT id) FROM {table}")
    assert found == [(3000, 3000)]


@pytest.mark.thorough
def test_appends_of_many_threads_at_once_all_reach_all_clusters(rig: Rig) -> None:
    table = rig.table("id BIGINT, name STRING")
    reports: list[dict[str, Any]] = []

    def append(order: str, first: int) -> None:
        rows = pa.table({"id": range(first, first + 50), "name": ["x"] * 50})
        with rig.connect(order) as connection:
            for _ in range(2):
                reports.append(connection.append(table, rows))

    threads = [
        threading.Thread(target=append, args=(order, 1000 * n), daemon=True)
        for n, order in enumerate(("abc", "abc", "bca", "cab"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len({report["log_offset"] for report in reports}) == 8
    assert rig.everywhere(f"SELECT count(*), count(DISTINCT id) FROM {table}") == [(400, 200)]


@pytest.mark.thorough
def test_large_result_streams_to_the_client_and_may_be_abandoned(rig: Rig) -> None:
    with rig.cursor() as cursor:
        cursor.execute(LARGE, stream=True)
        assert cursor.fetchmany(2) == [(0, "x" * 90), (1, "x" * 90)]
        rest = sum(batch.num_rows for batch in cursor.fetch_arrow_batches())
        assert rest == LARGE_ROWS - 2
        # Left in the middle: the connection is of use for the next statement all the same.
        cursor.execute(LARGE, stream=True)
        assert cursor.fetchone() == (0, "x" * 90)
        cursor.execute("SELECT 1")
        assert cursor.fetchall() == [(1,)]
    with rig.cursor(buffer_bytes_max=1 << 20) as cursor:
        assert cursor.execute(LARGE).fetch_arrow_table().num_rows == LARGE_ROWS


@pytest.mark.parametrize("form", ["JSON_ARRAY", "ARROW_STREAM"])
def test_large_result_is_returned_as_links_with_all_rows_in_order(rig: Rig, form: str) -> None:
    body = {
        "statement": LARGE,
        "format": form,
        "disposition": "EXTERNAL_LINKS",
        "wait_timeout": "50s",
    }
    code, answer = rig.post("b", STATEMENTS, body)
    assert code == 200, answer
    assert answer["status"]["state"] == "SUCCEEDED", answer
    manifest, links = answer["manifest"], answer["result"]["external_links"]
    assert (manifest["total_row_count"], manifest["truncated"]) == (LARGE_ROWS, False)
    assert manifest["total_chunk_count"] == len(links) > 1
    at = 0
    for link in links:
        assert link["row_offset"] == at
        with urllib.request.urlopen(link["external_link"], timeout=60) as response:
            data = response.read()
        assert len(data) == link["byte_count"]
        ids = (
            [int(row[0]) for row in json.loads(data)]
            if form == "JSON_ARRAY"
            else pa.ipc.open_stream(io.BytesIO(data)).read_all()["id"].to_pylist()
        )
        assert ids == list(range(at, at + link["row_count"]))
        at += link["row_count"]
    assert at == LARGE_ROWS
    assert rig.get("a", f"{STATEMENTS}/{answer['statement_id']}")[0] == 404  # kept by b alone


@pytest.mark.thorough
def test_polling_from_a_pending_state_reaches_the_result_in_chunks(rig: Rig) -> None:
    body = {"statement": LARGE, "wait_timeout": "0s"}
    code, answer = rig.post("a", STATEMENTS, body)
    assert (code, sorted(answer)) == (200, ["statement_id", "status"])
    path = f"{STATEMENTS}/{answer['statement_id']}"

    def finished() -> bool:
        return rig.get("a", path)[1]["status"]["state"] not in ("PENDING", "RUNNING")

    rig.wait(finished, 120)
    result = rig.get("a", path)[1]["result"]
    ids: list[str] = []
    while True:
        ids += [row[0] for row in result["data_array"]]
        if "next_chunk_internal_link" not in result:
            break
        result = rig.get("a", result["next_chunk_internal_link"])[1]
    assert ids == [str(n) for n in range(LARGE_ROWS)]
    assert rig.get("a", f"{path}/result/chunks/999")[0] == 404
    limited = rig.post("a", STATEMENTS, {"statement": LARGE, "row_limit": 3})[1]
    assert (len(limited["result"]["data_array"]), limited["manifest"]["truncated"]) == (3, True)


@pytest.mark.thorough
def test_long_query_is_cancelled_by_a_call_a_timeout_and_the_client(rig: Rig) -> None:
    # Under way for a while each time: what is cancelled as it begins is not the point here.
    _, answer = rig.post("c", STATEMENTS, {"statement": ENDLESS, "wait_timeout": "5s"})
    assert answer["status"]["state"] == "RUNNING"
    path = f"{STATEMENTS}/{answer['statement_id']}"
    assert rig.post("c", f"{path}/cancel", {}) == (200, {"became": "canceled"})
    assert rig.get("c", path)[1]["status"]["state"] == "CANCELED"
    body = {"statement": ENDLESS, "wait_timeout": "5s", "on_wait_timeout": "CANCEL"}
    assert rig.post("c", STATEMENTS, body)[1]["status"]["state"] == "CANCELED"
    with rig.connect("c") as connection:
        cursor = connection.cursor()
        failed: list[Exception] = []

        def run() -> None:
            try:
                cursor.execute(ENDLESS)
            except haclient.Error as error:
                failed.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(5)
        assert cursor.cancel() == "canceled"
        thread.join(30)
        assert [type(error) for error in failed] == [haclient.OperationalError]
        # Neither of them holds the cluster's cores any more.
        assert connection.execute("SELECT 1", timeout_s=60).fetchall() == [(1,)]


def test_malformed_requests_are_refused_with_their_error_class(rig: Rig) -> None:
    sent: list[tuple[str, str, Any, int, str]] = [
        ("POST", STATEMENTS, b"{", 400, "HAPROC_BAD_REQUEST"),
        ("POST", STATEMENTS, [], 400, "HAPROC_BAD_REQUEST"),
        ("POST", STATEMENTS, {"statement": ""}, 400, ""),
        ("POST", STATEMENTS, {"statement": "SELECT 1; SELECT 2"}, 400, ""),
        ("POST", STATEMENTS, {"statement": "SELECT 1", "statment": 1}, 400, "HAPROC_BAD_REQUEST"),
        ("POST", STATEMENTS, {"statement": "SELECT 1", "wait_timeout": "3"}, 400, ""),
        ("POST", STATEMENTS, {"statement": "SELECT 1", "parameters": [{"value": "1"}]}, 400, ""),
        ("POST", STATEMENTS, {"statement": "SELECT 1", "consistency": "eventual"}, 400, ""),
        ("POST", STATEMENTS, {"statement": "SELECT 1", "request_id": "a b"}, 400, ""),
        ("GET", STATEMENTS, None, 405, "HAPROC_METHOD_NOT_ALLOWED"),
        ("GET", "/api/2.0/sql", None, 404, "HAPROC_NOT_FOUND"),
        ("GET", f"{STATEMENTS}/unknown", None, 404, "HAPROC_STATEMENT_UNKNOWN"),
        ("POST", "/api/ha/tables/t/rows", {}, 415, "HAPROC_CONTENT_TYPE"),
    ]
    for method, path, body, code, error_class in sent:
        status, answer_body = rig.send("a", method, path, body)
        assert status == code, (body, answer_body)
        assert answer_body["error_class"] == error_class or not error_class, (body, answer_body)
        assert (
            answer_body["kind"] == "refused"
            and answer_body["message"]
            and answer_body["cluster"] == "a"
        ), answer_body
    stream = {"Content-Type": "application/vnd.apache.arrow.stream"}
    table = rig.table()
    status, answer_body = rig.send(
        "a", "POST", f"/api/ha/tables/{table}/rows", b"no arrow", **stream
    )
    assert (status, answer_body["error_class"]) == (400, "HAPROC_ROWS_MISFIT")
    statement = {"statement": "SELECT absent", "wait_timeout": "50s"}
    status, answer_body = rig.post("a", STATEMENTS, statement)
    assert (status, answer_body["status"]["state"]) == (200, "FAILED")
    assert answer_body["status"]["error"]["kind"] == "application"
    accepting = {"Accept": "application/vnd.apache.arrow.stream"}
    assert rig.post("a", STATEMENTS, statement, **accepting)[0] == 422
    assert rig.get("a", "/openapi.json")[1]["openapi"].startswith("3.")
