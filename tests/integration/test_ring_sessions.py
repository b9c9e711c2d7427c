"""Tests of sessions on a real ring: USE, SET and temporary views, also after kills."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import haclient
from tests.rig import PATIENT, Rig

pytestmark = pytest.mark.spark


@pytest.mark.thorough
def test_session_survives_the_kill_of_its_haproc(rig: Rig) -> None:
    schema = f"s_{uuid.uuid4().hex[:8]}"
    failovers: list[haclient.Failover] = []
    with rig.cursor("abc", on_failover=failovers.append) as cursor:
        cursor.execute(f"CREATE SCHEMA {schema}")
        cursor.execute(f"USE {schema}")
        assert (cursor.ha["class"], cursor.ha["cluster"]) == ("session", "a")
        cursor.execute("SET spark.sql.shuffle.partitions = 3")
        cursor.execute("SET TIME ZONE 'Asia/Tokyo'")
        cursor.execute("CREATE TABLE t (id INT, at TIMESTAMP, day STRING) USING delta")
        cursor.execute("CREATE TEMPORARY VIEW ids AS SELECT id FROM VALUES (7), (8) AS v(id)")
        cursor.execute("INSERT INTO t SELECT id, now(), string(current_date()) FROM ids")
        rig.ring.kill("a", "haproc")
        cursor.execute("SELECT current_schema(), current_timezone(), (SELECT sum(id) FROM ids)")
        assert cursor.fetchone() == (schema, "Asia/Tokyo", 15)
        assert cursor.ha["cluster"] == "b"
        assert [failover.next for failover in failovers] == [rig.url("b")]
        cursor.execute("SET spark.sql.shuffle.partitions")
        assert cursor.fetchall() == [("spark.sql.shuffle.partitions", "3")]
        cursor.execute("INSERT INTO t SELECT id + 10, now(), string(current_date()) FROM ids")
        cursor.connection.append("t", pa.table({"id": pa.array([99], pa.int32())}))
    rig.start("a")
    rows = rig.everywhere(f"SELECT id, day, string(at) FROM {schema}.t ORDER BY id")
    assert [row[0] for row in rows] == [7, 8, 17, 18, 99]
    # Now, as a clock in Tokyo shows it, with a few minutes' grace around midnight.
    tokyo = datetime.now(UTC) + timedelta(hours=9)
    days = {str((tokyo - timedelta(minutes=m)).date()) for m in (0, 10)}
    assert {row[1] for row in rows[:4]} <= days


@pytest.mark.thorough
def test_own_setting_of_a_session_holds_at_all_clusters_and_after_a_failover(rig: Rig) -> None:
    own = "spark.sql.legacy.castComplexTypesToString.enabled"
    query, plain = "CAST(array(1, NULL) AS STRING)", "[1,]"  # as Spark has it by itself
    table = rig.table("id INT, s STRING")
    with rig.cursor("ab", **PATIENT) as cursor:
        cursor.execute(f"SET {own} = true")
        assert cursor.execute(f"SELECT {query}").fetchone() == (plain,)
        cursor.execute(f"INSERT INTO {table} SELECT 1, {query}")
        rig.ring.kill("a", "haproc")
        assert cursor.execute(f"SELECT {query}").fetchone() == (plain,)
        assert cursor.ha["cluster"] == "b"
        cursor.execute(f"INSERT INTO {table} SELECT 2, {query}")
        with pytest.raises(haclient.DatabaseError, match=own):
            cursor.execute(f"UPDATE {table} SET s = {query}")
        cursor.execute(f"RESET {own}")
        cursor.execute(f"UPDATE {table} SET s = s || {query} WHERE id = 2")
    rig.start("a")
    rows = rig.everywhere(f"SELECT id, s FROM {table} ORDER BY id")
    assert rows == [(1, plain), (2, f"{plain}[1, null]")]


@pytest.mark.thorough
def test_time_zone_of_the_session_is_used_for_literals_and_formatted_text(rig: Rig) -> None:
    table = rig.table("zone STRING, at TIMESTAMP, written STRING")
    with rig.cursor("bca") as cursor:
        for zone in ("UTC", "America/New_York"):
            cursor.execute(f"SET TIME ZONE '{zone}'")
            cursor.execute(
                f"INSERT INTO {table} VALUES ('{zone}', TIMESTAMP '2026-01-15 12:00:00', "
                "date_format(TIMESTAMP '2026-01-15 12:00:00Z', 'HH:mm'))"
            )
    rows = rig.everywhere(f"SELECT zone, string(at), written FROM {table} ORDER BY zone")
    # New York is five hours behind, in what is read and in what is written.
    assert rows == [
        ("America/New_York", "2026-01-15 17:00:00", "07:00"),
        ("UTC", "2026-01-15 12:00:00", "12:00"),
    ]


@pytest.mark.thorough
def test_temporary_view_belongs_to_its_session_and_its_drop_affects_no_other_view(rig: Rig) -> None:
    name = f"v_{uuid.uuid4().hex[:8]}"
    end = rig.log_end()
    with rig.cursor() as cursor, rig.cursor() as other:
        cursor.execute(f"CREATE TEMPORARY VIEW {name} AS SELECT 1 AS n")
        assert cursor.execute(f"SELECT n FROM {name}").fetchall() == [(1,)]
        with pytest.raises(haclient.ProgrammingError):
            other.execute(f"SELECT n FROM {name}")
        cursor.execute(f"DROP VIEW {name}")
        assert cursor.ha["class"] == "session"
        with pytest.raises(haclient.ProgrammingError):
            cursor.execute(f"SELECT n FROM {name}")
        assert rig.log_end() == end
        # One of all clusters' views is dropped on all of them.
        cursor.execute(f"CREATE VIEW {name} AS SELECT 2 AS n")
        cursor.execute(f"DROP VIEW {name}")
        assert cursor.ha["outcomes"] == dict.fromkeys("abc", "applied")
        # With its schema, the name means the permanent view although a temporary one hides it.
        cursor.execute(f"CREATE VIEW {name} AS SELECT 2 AS n")
        cursor.execute(f"CREATE TEMPORARY VIEW {name} AS SELECT 1 AS n")
        with pytest.raises(haclient.DatabaseError, match=f"it rests on the temporary view {name}"):
            cursor.execute(f"CREATE VIEW {name}_w AS SELECT * FROM {name}")
        cursor.execute(f"DROP VIEW default.{name}")
        assert cursor.ha["outcomes"] == dict.fromkeys("abc", "applied")
        assert cursor.execute(f"SELECT n FROM {name}").fetchall() == [(1,)]
        cursor.execute(f"ALTER VIEW {name} AS SELECT 3 AS n")
        cursor.execute(f"DROP TABLE {name}")
        assert cursor.ha["class"] == "session"
        # RESET goes back to the ring's settings.
        cursor.execute("SET TIME ZONE 'Asia/Tokyo'")
        cursor.execute("RESET")
        assert cursor.execute("SELECT current_timezone()").fetchall() == [("UTC",)]


def test_session_over_plain_http_must_be_opened_and_is_unknown_after_its_close(rig: Rig) -> None:
    session = uuid.uuid4().hex
    path = "/api/2.0/sql/statements"
    statement = {"statement": "USE default"}
    code, answer = rig.post("c", path, statement)
    assert (code, answer["error_class"]) == (400, "HAPROC_SESSION_REQUIRED")
    code, answer = rig.post("c", path, statement | {"session_id": session})
    assert (code, answer["error_class"]) == (404, "HAPROC_SESSION_UNKNOWN")
    opened = rig.send("c", "PUT", f"/api/ha/sessions/{session}", {"statements": ["SET x = z"]})
    assert opened == (
        200,
        {"catalog": "spark_catalog", "schema": "default", "time_zone": "UTC", "cluster": "c"},
    )
    code, answer = rig.post("c", path, {"statement": "SET x", "session_id": session})
    assert (code, answer["result"]["data_array"]) == (200, [["x", "z"]])
    # Another HAProc has it when it is asked, and a retry there does nothing again.
    view = {"statement": "CREATE TEMPORARY VIEW w AS SELECT 5 AS n", "request_id": f"{session}-w"}
    drop = {"statement": "DROP VIEW w", "request_id": f"{session}-d"}
    for name, sent in (("c", view), ("a", view), ("a", drop), ("b", drop)):
        code, answer = rig.post(name, path, sent | {"session_id": session})
        assert (code, answer["status"]["state"]) == (200, "SUCCEEDED")
    code, answer = rig.post("b", path, {"statement": "SET x", "session_id": session})
    assert answer["result"]["data_array"] == [["x", "z"]]
    code, answer = rig.send(
        "c", "PUT", f"/api/ha/sessions/{session}", {"statements": ["DELETE FROM t"]}
    )
    assert (code, answer["kind"]) == (400, "refused")
    for _ in range(2):
        assert rig.send("c", "DELETE", f"/api/ha/sessions/{session}") == (200, {})
    code, answer = rig.post("a", path, statement | {"session_id": session})
    assert (code, answer["error_class"]) == (404, "HAPROC_SESSION_CLOSED")


@pytest.mark.thorough
def test_write_in_a_schema_dropped_by_another_client_fails_on_all_lanes(rig: Rig) -> None:
    schema, tables = f"s_{uuid.uuid4().hex[:8]}", [rig.table("id INT") for _ in range(3)]
    with rig.cursor("abc") as cursor, rig.cursor("abc") as other:
        other.execute(f"CREATE SCHEMA {schema}")
        cursor.execute(f"USE {schema}")
        for table in tables:  # a lane goes on with a schema that it has once been in
            cursor.execute(f"INSERT INTO default.{table} VALUES (1)")
        other.execute(f"DROP SCHEMA {schema}")
        for table in tables:
            with pytest.raises(haclient.Error) as caught:
                cursor.execute(f"INSERT INTO default.{table} VALUES (2)")
            assert getattr(caught.value, "error_class", "") == "SCHEMA_NOT_FOUND"
    for table in tables:
        assert rig.everywhere(f"SELECT id FROM {table}") == [(1,)]
