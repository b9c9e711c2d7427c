"""Tests that nondeterministic values are equal on all clusters: literals, rows, or a refusal."""

from __future__ import annotations

import signal
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

import haclient
from tests.rig import Rig

pytestmark = pytest.mark.spark

COLUMNS = "id INT, x DOUBLE, u STRING, at TIMESTAMP, day DATE"
MOMENT = "current_timestamp(), current_date()"


@pytest.mark.thorough
def test_random_values_and_the_time_are_equal_on_all_clusters(rig: Rig) -> None:
    table = rig.table(COLUMNS)
    before = datetime.now(UTC)
    with rig.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} SELECT id + 1, rand(), uuid(), {MOMENT} FROM range(2)")
        assert cursor.rowcount == 2
        cursor.execute(f"INSERT INTO {table} SELECT 3, rand(), uuid(), {MOMENT} FROM range(3)")
        cursor.execute(f"UPDATE {table} SET at = now() WHERE id = 1")
    after = datetime.now(UTC)
    rows = rig.everywhere(f"SELECT * FROM {table} ORDER BY id, x")
    # Each occurrence has a value of its own; the time is the statement's.
    assert len({row[1] for row in rows}) == len({row[2] for row in rows}) == 5
    assert all(before - timedelta(seconds=1) <= row[3] <= after for row in rows)
    assert rows[0][3] > rows[1][3] < rows[2][3]


@pytest.mark.thorough
def test_random_rows_of_ctas_and_views_are_equal_on_all_clusters(rig: Rig) -> None:
    name = f"det_{uuid.uuid4().hex[:8]}"
    with rig.cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE {name} USING delta AS SELECT id, rand() AS x, uuid() AS u FROM range(20)"
        )
        assert cursor.ha["outcomes"] == dict.fromkeys("abc", "applied")
        cursor.execute(f"CREATE VIEW {name}_v AS SELECT id + 100 AS id, rand() AS x FROM {name}")
        cursor.execute(f"INSERT INTO {name} SELECT id, x, 'view' FROM {name}_v")
        cursor.execute(
            f"CREATE TEMPORARY VIEW {name}_t AS SELECT id + 1000 AS id, x FROM {name} LIMIT 5"
        )
        assert cursor.ha["class"] == "session"
        cursor.execute(f"INSERT INTO {name} SELECT id, x, 'temporary' FROM {name}_t")
        cursor.execute(f"INSERT INTO {name} SELECT id, x, 'limit' FROM {name} LIMIT 3")
        cursor.execute(f"INSERT INTO {name} SELECT 0, sum(x), 'sum' FROM {name}")
    rows = rig.everywhere(
        f"SELECT u, count(*) FROM {name} WHERE length(u) < 36 GROUP BY u ORDER BY u"
    )
    assert rows == [("limit", 3), ("sum", 1), ("temporary", 5), ("view", 20)]
    rig.check_equal(name)


@pytest.mark.thorough
def test_computed_rows_show_all_writes_acknowledged_before_their_statement(rig: Rig) -> None:
    source, target = rig.table("id INT"), rig.table("id INT, u STRING")
    copy = f"INSERT INTO {target} SELECT id, uuid() FROM {source}"
    rig.run(f"INSERT INTO {source} VALUES (0)")
    rig.settled()
    with ThreadPoolExecutor() as pool:
        rig.ring.signal("a", "spark", signal.SIGSTOP)
        try:
            for n in range(1, 4):
                rig.run(f"INSERT INTO {source} VALUES ({n})", order="b")
            write = pool.submit(rig.run, copy, order="a")
            time.sleep(1)
        finally:
            rig.ring.signal("a", "spark", signal.SIGCONT)
        write.result()
    rig.run(f"INSERT INTO {target} SELECT id + 10, uuid() FROM {target} WHERE id < 2", order="c")
    rows = rig.everywhere(f"SELECT id FROM {target} ORDER BY id")
    assert rows == [(0,), (1,), (2,), (3,), (10,), (11,)]
    rig.check_equal(target)


@pytest.mark.thorough
def test_computed_rows_of_more_than_one_record_are_equal_on_all_clusters(rig: Rig) -> None:
    table = rig.table("id INT, text STRING")
    with rig.cursor() as cursor:
        # 20 MB of rows.
        text = "repeat(uuid(), 30)"
        cursor.execute(f"INSERT INTO {table} SELECT id, {text} FROM range(20000)")
        assert cursor.rowcount == 20_000
    # Equal on all clusters, the checksum, too.
    found = rig.everywhere(f"SELECT count(DISTINCT text), bit_xor(hash(id, text)) FROM {table}")
    assert found[0][0] == 20_000


@pytest.mark.thorough
def test_write_whose_rows_cannot_be_computed_is_rejected_on_all_clusters(rig: Rig) -> None:
    table = rig.table("id INT, x DOUBLE")
    with rig.cursor() as cursor:
        with pytest.raises(haclient.Error) as caught:
            cursor.execute(f"INSERT INTO {table} SELECT assert_true(false), rand()")
        assert caught.value.error_class == "USER_RAISED_EXCEPTION"
        assert caught.value.outcome is haclient.Outcome.REJECTED
        cursor.execute(f"INSERT INTO {table} SELECT id, rand() FROM range(3)")
        assert cursor.rowcount == 3
    assert rig.everywhere(f"SELECT count(*) FROM {table}") == [(3,)]
    rig.check_equal(table)


def test_nondeterministic_statement_that_cannot_be_made_the_same_is_refused(rig: Rig) -> None:
    table = rig.table("id INT, x DOUBLE")
    end = rig.log_end()
    refused = [
        f"UPDATE {table} SET x = length(version())",
        f"DELETE FROM {table} WHERE x = length(version())",
        f"MERGE INTO {table} t USING (SELECT 1 AS id, 2.0D AS x) s ON t.id = length(version()) "
        "WHEN NOT MATCHED THEN INSERT *",
        f"CREATE TABLE {table}_d (id INT, x INT GENERATED ALWAYS AS (hash(current_user()))) "
        "USING delta",
    ]
    with rig.cursor() as cursor:
        for sql in refused:
            with pytest.raises(haclient.Error) as caught:
                cursor.execute(sql)
            assert caught.value.kind is haclient.FailureKind.REFUSED, sql
            assert caught.value.outcome is haclient.Outcome.NOT_SENT, sql
            assert caught.value.hint, sql
    assert rig.log_end() == end


@pytest.mark.thorough
def test_columns_named_like_functions_and_temporary_sources_have_sparks_meaning(
    rig: Rig,
) -> None:
    days = rig.table("current_date DATE, user STRING, n INT")
    with rig.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {days} VALUES (DATE'2020-01-01', 'x', 1), (DATE'2026-05-05', 'y', 2)"
        )
        cursor.execute(f"DELETE FROM {days} WHERE current_date > DATE'2026-01-01'")
        cursor.execute(
            f"INSERT INTO {days} REPLACE WHERE current_date >= DATE'2026-01-01' "
            "SELECT DATE'2026-02-02', current_user, 3"
        )
    assert rig.everywhere(f"SELECT n FROM {days} ORDER BY n") == [(1,), (3,)]
    with rig.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY VIEW fresh AS SELECT 3 AS n, uuid() AS u")
        cursor.execute("DECLARE least INT DEFAULT 1")
        cursor.execute(
            f"MERGE INTO {days} d USING fresh f ON d.n = f.n "
            "WHEN MATCHED THEN UPDATE SET user = f.u, current_date = current_date() "
            "WHEN NOT MATCHED THEN INSERT (n) VALUES (f.n)"
        )
        cursor.execute(f"DELETE FROM {days} WHERE n = least")
    assert rig.everywhere(f"SELECT count(DISTINCT user), min(n), max(n) FROM {days}") == [(1, 3, 3)]
    rig.check_equal(days)


@pytest.mark.thorough
def test_writes_through_all_three_haprocs_leave_equal_tables(rig: Rig) -> None:
    """Every HAProc accepts writes; the log's order is the order on all clusters."""
    table = rig.table("id INT, name STRING")
    connections = [rig.connect(order) for order in ("abc", "bca", "cab")]
    try:
        for number, connection in enumerate(connections):
            connection.execute(f"INSERT INTO {table} SELECT ?, uuid()", [number])
        for number, connection in enumerate(connections):
            connection.execute(f"UPDATE {table} SET name = concat(name, '{number}')")
            assert connection.server == rig.url("abc"[number])
    finally:
        for connection in connections:
            connection.close()
    rows = rig.everywhere(f"SELECT id, right(name, 3) FROM {table} ORDER BY id")
    assert rows == [(n, "012") for n in range(3)]
    rig.check_equal(table)
