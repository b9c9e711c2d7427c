"""Tests of each class of statement on a real ring: the client's answer, and the clusters' state."""

from __future__ import annotations

import math
import uuid
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import haclient
import haclient.aio
from tests.rig import COMMITS_OPTIMIZED, Rig

pytestmark = pytest.mark.spark

APPLIED = dict.fromkeys("abc", "applied")
QUEUED = {"a": "applied", "b": "queued", "c": "queued"}


@pytest.mark.thorough
def test_dml_of_each_kind_reports_affected_rows_and_reaches_all_clusters(rig: Rig) -> None:
    table = rig.table()
    steps: list[tuple[str, int]] = [
        (f"INSERT INTO {table} VALUES (1, 'a'), (2, 'b'), (3, 'c')", 3),
        (f"UPDATE {table} SET name = 'z' WHERE id > 1", 2),
        (f"DELETE FROM {table} WHERE id = 3", 1),
        (
            f"MERGE INTO {table} t "
            "USING (SELECT * FROM VALUES (2, 'm'), (9, 'n') AS v(id, name)) s "
            "ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
            2,
        ),
    ]
    offsets = []
    with rig.cursor() as cursor:
        for sql, affected in steps:
            cursor.execute(sql)
            assert (cursor.rowcount, cursor.ha["class"]) == (affected, "asynchronous"), sql
            assert cursor.ha["outcomes"] == QUEUED
            offsets.append(cursor.ha["log_offset"])
        assert offsets == sorted(set(offsets))
        cursor.execute(f"SELECT * FROM {table} ORDER BY id")
        assert cursor.ha == {
            "cluster": "a",
            "class": "query",
            "log_offset": None,
            "outcomes": {},
            "affected_rows": None,
            "after_offset": offsets[-1] + 1,
        }
        assert cursor.fetchall() == [(1, "a"), (2, "m"), (9, "n")]
    assert rig.everywhere(f"SELECT * FROM {table} ORDER BY id") == [(1, "a"), (2, "m"), (9, "n")]


@pytest.mark.thorough
def test_overwrite_truncate_and_optimize_leave_clusters_equal(rig: Rig) -> None:
    source, table = rig.table(), rig.table()
    with rig.cursor("bca") as cursor:
        cursor.execute(f"INSERT INTO {source} VALUES (1, 'a'), (2, 'b')")
        cursor.execute(f"INSERT INTO {table} SELECT id + 10, name FROM {source}")
        cursor.execute(f"INSERT OVERWRITE {table} SELECT * FROM {source} WHERE id = 2")
        assert (cursor.ha["cluster"], cursor.ha["class"]) == ("b", "asynchronous")
        cursor.execute(f"TRUNCATE TABLE {source}")
        assert cursor.ha["class"] == "asynchronous"
        cursor.execute(f"OPTIMIZE {table}")
        assert cursor.ha["class"] == "asynchronous"
        cursor.execute(f"SELECT (SELECT count(*) FROM {source}), id, name FROM {table}")
        assert cursor.fetchall() == [(0, 2, "b")]
    rig.check_equal(source, table)


@pytest.mark.thorough
def test_small_files_of_a_table_with_a_rule_are_compacted_on_all_clusters(rig: Rig) -> None:
    table = f"small_files_{uuid.uuid4().hex[:8]}"
    rig.run(f"CREATE TABLE {table} (id INT) USING delta")
    for number in range(COMMITS_OPTIMIZED):
        rig.run(f"INSERT INTO {table} VALUES ({number})")

    def optimized(cluster: str) -> bool:
        return any("OPTIMIZE" in row for row in rig.run(f"DESCRIBE HISTORY {table}", cluster))

    rig.wait(lambda: all(optimized(cluster) for cluster in "abc"), 60)
    assert rig.everywhere(f"SELECT count(DISTINCT _metadata.file_name) FROM {table}") == [(1,)]
    rig.check_equal(table)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fanout", "operation_class", "outcomes"),
    [("serial", "synchronous", APPLIED), ("parallel", "synchronous_parallel", QUEUED)],
)
def test_ddl_with_either_fanout_reaches_all_clusters(
    rig: Rig, fanout: str, operation_class: str, outcomes: dict[str, str]
) -> None:
    name = f"d_{uuid.uuid4().hex[:8]}"
    with rig.cursor() as cursor:
        for sql in (
            f"CREATE TABLE {name} (id INT) USING delta",
            f"ALTER TABLE {name} ADD COLUMNS (note STRING)",
            f"COMMENT ON TABLE {name} IS 'it''s one'",
        ):
            cursor.execute(sql, fanout=fanout)
            assert (cursor.ha["class"], cursor.ha["outcomes"]) == (operation_class, outcomes), sql
        if fanout == "parallel":
            rig.settled()
        # Taken there one after another, each cluster has it before the client hears of it.
        for cluster in "abc":
            columns = [row[0] for row in rig.run(f"DESCRIBE {name}", order=cluster)]
            assert columns == ["id", "note"]
        cursor.execute(f"DROP TABLE {name}", fanout=fanout)
        assert cursor.ha["outcomes"] == outcomes


@pytest.mark.thorough
def test_class_of_a_write_may_be_overridden_by_another_write_class_only(
    rig: Rig,
) -> None:
    table = rig.table()
    with rig.cursor() as cursor:
        insert = f"INSERT INTO {table} VALUES (1, 'a')"
        cursor.execute(insert, operation_class="synchronous")
        assert (cursor.ha["class"], cursor.ha["outcomes"]) == ("synchronous", APPLIED)
        cursor.execute(insert, operation_class="synchronous_parallel")
        assert (cursor.ha["class"], cursor.ha["outcomes"]) == ("synchronous_parallel", QUEUED)
        cursor.execute(f"ALTER TABLE {table} ADD COLUMNS (x INT)", operation_class="asynchronous")
        assert (cursor.ha["class"], cursor.ha["outcomes"]) == ("asynchronous", QUEUED)
        with pytest.raises(haclient.Error) as caught:
            cursor.execute(insert, operation_class="query")
        assert caught.value.kind is haclient.FailureKind.REFUSED
        assert caught.value.outcome is haclient.Outcome.NOT_SENT
        with pytest.raises(haclient.Error) as caught:
            cursor.execute("CALL spark_catalog.system.rewrite()")
        assert caught.value.kind is haclient.FailureKind.REFUSED
        assert "rule" in caught.value.hint
    assert rig.everywhere(f"SELECT id, name, x FROM {table}") == [(1, "a", None)] * 2


def test_application_errors_are_rejected_on_all_clusters_and_keep_their_error_class(
    rig: Rig,
) -> None:
    table = rig.table()
    rejected: list[tuple[str, str]] = [
        (f"INSERT INTO {table} VALUES ('no number', 'x')", "CAST_INVALID_INPUT"),
        (f"UPDATE {table} SET absent = 1", "UNRESOLVED_COLUMN.WITH_SUGGESTION"),
        (f"INSERT INTO no_{table} VALUES (1, 'x')", "TABLE_OR_VIEW_NOT_FOUND"),
        (f"DROP TABLE no_{table}", "TABLE_OR_VIEW_NOT_FOUND"),
    ]
    with rig.cursor() as cursor:
        for sql, error_class in rejected:
            with pytest.raises(haclient.Error) as caught:
                cursor.execute(sql)
            assert (caught.value.error_class, caught.value.outcome) == (
                error_class,
                haclient.Outcome.REJECTED,
            ), sql
            assert caught.value.sqlstate
        with pytest.raises(haclient.ProgrammingError) as caught:
            cursor.execute(f"SELECT * FROM no_{table}")
        assert caught.value.error_class == "TABLE_OR_VIEW_NOT_FOUND"
    rig.settled()
    assert {rig.status(name)["state"] for name in "abc"} == {"READY"}


VALUES: dict[str, tuple[str, Any]] = {
    "s": ("STRING", "it's a \"\\ \n ' OR 1=1; -- ${x} ?:n 😀"),
    "flag": ("BOOLEAN", True),
    "i": ("INT", -7),
    "l": ("BIGINT", 1 << 40),
    "d": ("DOUBLE", math.pi),
    "dec": ("DECIMAL(20,4)", Decimal("-1234567890123.4567")),
    "day": ("DATE", date(1999, 12, 31)),
    "ts": ("TIMESTAMP", datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC)),
    "ntz": ("TIMESTAMP_NTZ", datetime(2026, 3, 29, 2, 30, 0, 1)),
    "b": ("BINARY", b"\x00\xff'\\"),
    "arr": ("ARRAY<INT>", [1, 2, 3]),
    "map": ("MAP<STRING, DECIMAL(5,2)>", {"x": Decimal("1.50"), "it's": Decimal("2.25")}),
    "nothing": ("STRING", None),
}


@pytest.mark.thorough
def test_parameters_of_all_types_are_read_back_equal_from_all_clusters(rig: Rig) -> None:
    columns = ", ".join(f"{name} {kind}" for name, (kind, _) in VALUES.items())
    given = [value for _, value in VALUES.values()]
    table = rig.table(columns)
    marks = ", ".join("?" for _ in given)
    with rig.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} VALUES ({marks})", given)
        names = {name: value for name, (_, value) in VALUES.items()}
        named = ", ".join(f":{name}" for name in names)
        cursor.execute(f"INSERT INTO {table} VALUES ({named})", names)
        # An interval can't be stored by Delta; it is a value in expressions all the same.
        cursor.execute("SELECT ?, ? + INTERVAL 1 SECOND", [timedelta(days=2), timedelta(hours=-1)])
        assert cursor.fetchone() == (timedelta(days=2), timedelta(seconds=-3599))
    rows = rig.everywhere(f"SELECT * FROM {table}")
    assert [list(row) for row in rows] == [given, given]


@pytest.mark.thorough
def test_executemany_of_a_row_insert_is_one_operation_in_the_log(rig: Rig) -> None:
    table = rig.table()
    with rig.cursor() as cursor:
        end = rig.log_end()
        rows = [(n, f"row {n}'") for n in range(500)]
        cursor.executemany(f"INSERT INTO {table} VALUES (?, ?)", rows)
        assert (cursor.rowcount, cursor.ha["log_offset"]) == (500, end)
        assert rig.log_end() == end + 1
        cursor.executemany(f"UPDATE {table} SET name = ? WHERE id = ?", [("x", 1), ("y", 2)])
        assert cursor.rowcount == 2
        with pytest.raises(haclient.Error):
            cursor.executemany(f"INSERT INTO {table} VALUES (?, ?)", [(1, "x"), ("no", "x")])
    assert rig.everywhere(
        f"SELECT count(*), count(DISTINCT id), count_if(name IN ('x', 'y')) FROM {table}"
    ) == [(500, 500, 2)]


@pytest.mark.thorough
async def test_asyncio_client_runs_each_class(rig: Rig) -> None:
    table = f"aio_{uuid.uuid4().hex[:8]}"
    async with haclient.aio.connect([rig.url(name) for name in "cab"]) as connection:
        created = await connection.execute(f"CREATE TABLE {table} (id INT) USING delta")
        assert (created.ha["cluster"], created.ha["outcomes"]) == ("c", APPLIED)
        inserted = await connection.execute(f"INSERT INTO {table} VALUES (?)", [1])
        assert inserted.rowcount == 1
        await connection.append(table, pa.table({"id": pa.array([2, 3], pa.int32())}))
        await connection.execute("USE default")
        found = await connection.execute(f"SELECT id FROM {table} ORDER BY id", stream=True)
        assert [row async for row in found] == [(1,), (2,), (3,)]
        with pytest.raises(haclient.ProgrammingError):
            await connection.execute("SELECT absent")
