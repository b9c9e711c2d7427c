"""Tests of transaction markers on a real Delta table: a write of any kind is applied once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from haproc.engine import placeholder
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Settings
from haproc.engine.statement import ArrowRows
from tests.integration.engine_calls import apply, arrow_stream, rows

pytestmark = pytest.mark.spark

_WRITES = {
    "insert": "INSERT INTO t VALUES (10, 'new')",
    "insert_overwrite": "INSERT OVERWRITE t SELECT id + 1, name FROM t",
    "insert_select_from_itself": "INSERT INTO t SELECT id + 100, name FROM t",
    "update": "UPDATE t SET id = id + 1",
    "merge": "MERGE INTO t USING (SELECT 1L AS id) s ON t.id = s.id "
    "WHEN MATCHED THEN UPDATE SET id = t.id + 1000 WHEN NOT MATCHED THEN INSERT (id) VALUES (0)",
    "create_or_replace_as": "CREATE OR REPLACE TABLE t USING delta AS "
    "SELECT id * 2 AS id, name FROM t",
}
_SPECIAL = {"insert", "merge"}
"""Two writes that Delta executes in special ways."""


async def _make_table(engine: SparkConnectEngine, schema: str) -> Settings:
    settings = Settings(schema=schema)
    await apply(engine, "CREATE TABLE t (id BIGINT, name STRING) USING delta", settings=settings)
    await apply(engine, "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')", 1, settings=settings)
    return settings


async def _content(engine: SparkConnectEngine, schema: str) -> tuple[list[object], int]:
    session = engine.session("content")
    history = await rows(session, f"DESCRIBE HISTORY {schema}.t")
    return await rows(session, f"SELECT * FROM {schema}.t ORDER BY ALL"), len(history)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in _SPECIAL else pytest.mark.thorough)
        for kind in _WRITES
    ],
)
async def test_write_repeated_with_its_marker_is_applied_once(
    engine: SparkConnectEngine, schema: str, kind: str
) -> None:
    settings = await _make_table(engine, schema)
    before, _ = await _content(engine, schema)
    await apply(engine, _WRITES[kind], 2, settings=settings)
    after = await _content(engine, schema)
    assert after[0] != before
    await apply(engine, _WRITES[kind], 2, settings=settings)
    assert await _content(engine, schema) == after
    assert await engine.offsets_applied([f"{schema}.t"], "ring") == {f"{schema}.t": 2}


@pytest.mark.thorough
async def test_delete_repeated_with_its_marker_leaves_later_rows(
    engine: SparkConnectEngine, schema: str
) -> None:
    settings = await _make_table(engine, schema)
    delete = "DELETE FROM t WHERE id = 1"
    await apply(engine, delete, 2, settings=settings)
    await apply(engine, "INSERT INTO t VALUES (1, 'later')", 3, settings=settings)
    await apply(engine, delete, 2, settings=settings)
    content, _ = await _content(engine, schema)
    assert content == [(1, "later"), (2, "b"), (3, "c")]


async def test_create_table_as_repeated_fails_and_changes_nothing(
    engine: SparkConnectEngine, schema: str
) -> None:
    settings = Settings(schema=schema)
    sql = "CREATE TABLE t USING delta AS SELECT 1L AS id, 'a' AS name"
    await apply(engine, sql, 1, settings=settings)
    with pytest.raises(EngineError) as caught:
        await apply(engine, sql, 1, settings=settings)
    assert caught.value.kind is ErrorKind.APPLICATION
    assert caught.value.error_class in (
        "TABLE_OR_VIEW_ALREADY_EXISTS",
        "DELTA_TABLE_ALREADY_EXISTS",
    )
    assert await _content(engine, schema) == ([(1, "a")], 1)
    assert await engine.offsets_applied([f"{schema}.t"], "ring") == {f"{schema}.t": 1}


@pytest.mark.thorough
async def test_rows_repeated_with_their_marker_are_applied_once_by_column_name(
    engine: SparkConnectEngine, schema: str
) -> None:
    await _make_table(engine, schema)
    data = pa.table({"name": ["x", None], "id": pa.array([8, 9], pa.int64())})
    write = ArrowRows(f"{schema}.t", arrow_stream(data))
    for _ in range(2):
        await apply(engine, write, 2)
    content, _ = await _content(engine, schema)
    assert content == [(1, "a"), (2, "b"), (3, "c"), (8, "x"), (9, None)]
    assert await engine.offsets_applied([f"{schema}.t"], "ring") == {f"{schema}.t": 2}


@pytest.mark.thorough
@pytest.mark.parametrize("columns", ["id BIGINT NOT NULL, name STRING", "name STRING, id INT"])
async def test_many_rows_are_stored_the_same_as_few_rows(
    engine: SparkConnectEngine, schema: str, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 3 * placeholder.TOGETHER + 7
    names = pa.array([None if n % 3 else f"n{n}" for n in range(count)])
    data = pa.table({"id": pa.array(range(count), pa.int64()), "name": names})
    stream = arrow_stream(data, rows_per_batch=placeholder.TOGETHER + 100)
    for table, few in (("packed", placeholder.FEW), ("plain", count)):
        monkeypatch.setattr(placeholder, "FEW", few)
        await apply(engine, f"CREATE TABLE {schema}.{table} ({columns}) USING delta")
        await apply(engine, ArrowRows(f"{schema}.{table}", stream), 1)
    session = engine.session("content")
    found = await rows(session, f"SELECT count(*), count(name), sum(id) FROM {schema}.packed")
    assert found == [(count, (count + 2) // 3, count * (count - 1) // 2)]
    for one, other in (("packed", "plain"), ("plain", "packed")):
        sql = f"SELECT * FROM {schema}.{one} EXCEPT ALL SELECT * FROM {schema}.{other}"
        assert await rows(session, sql) == []


@pytest.mark.thorough
@pytest.mark.parametrize("few", [placeholder.FEW, 0])
async def test_rows_that_do_not_fit_the_table_are_an_application_error(
    engine: SparkConnectEngine, schema: str, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placeholder, "FEW", few)
    await _make_table(engine, schema)
    write = ArrowRows(f"{schema}.t", arrow_stream(pa.table({"other": [1]})))
    with pytest.raises(EngineError) as caught:
        await apply(engine, write, 2)
    assert caught.value.kind is ErrorKind.APPLICATION
    assert caught.value.error_class
    assert (await _content(engine, schema))[1] == 2


@pytest.mark.thorough
async def test_rows_of_64_mib_are_applied(engine: SparkConnectEngine, schema: str) -> None:
    await apply(engine, f"CREATE TABLE {schema}.t (id BIGINT, name STRING) USING delta")
    count = 64 * 1024
    text = pa.array(["x" * 1000 + f"{number:024d}" for number in range(count)])
    data = pa.table({"id": pa.array(range(count), pa.int64()), "name": text})
    stream = arrow_stream(data, rows_per_batch=4096)
    assert len(stream) > 64 * 1024 * 1024
    await apply(engine, ArrowRows(f"{schema}.t", stream), 1, timeout_s=240)
    sql = f"SELECT count(*), sum(id), sum(length(name)) FROM {schema}.t"
    assert await rows(engine.session("check"), sql) == [
        (count, count * (count - 1) // 2, count * 1024)
    ]


async def test_rows_above_the_message_limit_are_refused_before_they_are_sent(
    engine: SparkConnectEngine,
) -> None:
    with pytest.raises(EngineError) as caught:
        await apply(engine, ArrowRows("t", bytes(129 * 1024 * 1024)), 1)
    assert (caught.value.kind, caught.value.sqlstate) == (ErrorKind.APPLICATION, "54000")


@pytest.mark.thorough
async def test_write_with_a_lower_marker_is_skipped_and_with_a_higher_one_applied(
    engine: SparkConnectEngine, schema: str
) -> None:
    settings = await _make_table(engine, schema)
    for version in (5, 4, 6):
        await apply(engine, f"INSERT INTO t VALUES ({version}, '')", version, settings=settings)
    content, _ = await _content(engine, schema)
    assert content == [(1, "a"), (2, "b"), (3, "c"), (5, ""), (6, "")]


@pytest.mark.thorough
async def test_write_without_a_marker_is_applied_each_time(
    engine: SparkConnectEngine, schema: str
) -> None:
    settings = await _make_table(engine, schema)
    for _ in range(2):
        await apply(engine, "INSERT INTO t VALUES (4, '')", settings=settings)
    content, commits = await _content(engine, schema)
    assert content[3:] == [(4, ""), (4, "")]
    assert commits == 4
    assert await engine.offsets_applied([f"{schema}.t"], "ring") == {f"{schema}.t": 1}


@pytest.mark.thorough
async def test_update_returns_the_number_of_changed_rows(
    engine: SparkConnectEngine, schema: str
) -> None:
    settings = await _make_table(engine, schema)
    applied = await apply(engine, "UPDATE t SET name = '' WHERE id > 1", 2, settings=settings)
    assert applied.affected_rows == 2


@pytest.mark.thorough
async def test_offsets_applied_leave_out_tables_without_a_marker(
    engine: SparkConnectEngine, schema: str
) -> None:
    settings = await _make_table(engine, schema)
    for sql in (
        "CREATE TABLE parquet_one (id BIGINT) USING parquet",
        "CREATE TABLE unmarked (id BIGINT) USING delta",
        "CREATE VIEW view_one AS SELECT 1 AS id",
    ):
        await apply(engine, sql, settings=settings)
    names = ("t", "parquet_one", "unmarked", "view_one", "missing")
    tables = [f"{schema}.{name}" for name in names]
    assert await engine.offsets_applied(tables, "ring") == {f"{schema}.t": 1}
    assert await engine.offsets_applied(tables, "another_ring") == {}


@pytest.mark.thorough
async def test_tables_created_without_a_format_keep_markers(
    engine: SparkConnectEngine, schema: str
) -> None:
    settings = Settings(schema=schema)
    await apply(engine, "CREATE TABLE made (id BIGINT)", 1, settings=settings)
    for offset in (2, 2):
        await apply(engine, "INSERT INTO made VALUES (1)", offset, settings=settings)
    await apply(engine, "CREATE TABLE selected AS SELECT * FROM made", 3, settings=settings)
    assert await engine.offsets_applied([f"{schema}.made", f"{schema}.selected"], "ring") == {
        f"{schema}.made": 2,
        f"{schema}.selected": 3,
    }
    assert await rows(engine.session("made"), f"SELECT * FROM {schema}.made") == [(1,)]


@pytest.mark.thorough
async def test_offset_is_found_behind_many_commits_without_a_marker(
    engine: SparkConnectEngine, schema: str
) -> None:
    settings = await _make_table(engine, schema)
    for number in range(3):
        await apply(
            engine, f"ALTER TABLE t SET TBLPROPERTIES ('a' = '{number}')", settings=settings
        )
    engine._limits = engine._limits.__class__(history_rows=2)
    assert await engine.offsets_applied([f"{schema}.t"], "ring") == {f"{schema}.t": 1}
