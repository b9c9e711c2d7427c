"""Tests of tables whose storage is away, of fingerprints around DDL, and of the storage marker."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import ABSENT, PRESENT, UNREADABLE, Named, Settings, Sort
from haproc.failure import ErrorClass
from haproc.ring.spark import LocalSpark
from tests.integration.engine_calls import apply, rows
from tests.unit.door_rig import until

pytestmark = pytest.mark.spark


@pytest.fixture
async def place(engine: SparkConnectEngine, schema: str) -> Path:
    """The folder of the tables of the test's schema."""
    found = await engine.default_place(f"spark_catalog.{schema}.t")
    return Path(found.removeprefix("file:")).parent


@pytest.fixture
def moved(place: Path) -> Iterator[Callable[[str], None]]:
    """A function that moves a table's files away; all are back at the end."""
    gone: list[Path] = []

    def move(table: str) -> None:
        (place / table).rename(place / f"{table}.away")
        gone.append(place / table)

    yield move
    for path in gone:
        path.with_name(f"{path.name}.away").rename(path)


async def _environment(call: Awaitable[object]) -> EngineError:
    with pytest.raises(EngineError) as caught:
        await call
    assert caught.value.kind is ErrorKind.ENVIRONMENT
    return caught.value


def _table(schema: str, name: str = "t") -> Named:
    return Named(Sort.TABLE, f"spark_catalog.{schema}.{name}")


@pytest.mark.thorough
async def test_table_whose_files_are_away_is_an_environment_error_and_not_absent(
    engine: SparkConnectEngine, schema: str, moved: Callable[[str], None]
) -> None:
    inside, name = Settings(schema=schema), f"spark_catalog.{schema}.t"
    others = [f"spark_catalog.{schema}.{each}" for each in ("p", "v", "no")]
    others += ["spark_catalog.no_schema.t", "no_catalog.a.b"]
    await apply(engine, "CREATE TABLE t (a INT) USING delta", settings=inside)
    await apply(engine, "CREATE TABLE p (a INT) USING parquet", settings=inside)
    await apply(engine, "CREATE VIEW v AS SELECT * FROM t", settings=inside)
    await apply(engine, "INSERT INTO t VALUES (1)", 7, settings=inside)
    assert await engine.offsets_applied([name, *others], "ring") == {name: 7}
    await engine.check_tables([name, *others])
    moved("t")
    await _environment(engine.offsets_applied([name], "ring"))
    await _environment(engine.check_tables([name]))
    assert await engine.object_fingerprint([_table(schema)]) == UNREADABLE
    await engine.check_tables(others)
    assert await engine.offsets_applied(others, "ring") == {}


async def test_object_fingerprint_changes_with_each_ddl_statement_only(
    engine: SparkConnectEngine, schema: str
) -> None:
    inside = Settings(schema=schema)
    named = [
        _table(schema),
        Named(Sort.FUNCTION, f"spark_catalog.{schema}.f"),
        Named(Sort.NAMESPACE, f"spark_catalog.{schema}_2"),
    ]
    assert await engine.object_fingerprint(named) == "/".join([ABSENT] * 3)
    before = await engine.object_fingerprint(named)
    for sql in (
        "CREATE TABLE t (a INT) USING delta",
        "ALTER TABLE t ADD COLUMN b INT",
        "DROP TABLE t",
        "CREATE VIEW t AS SELECT 1 AS a",
        "ALTER VIEW t AS SELECT 2 AS a",
        "CREATE FUNCTION f(x INT) RETURNS INT RETURN x",
        "CREATE OR REPLACE FUNCTION f(x INT) RETURNS INT RETURN 2 * x",
        f"CREATE SCHEMA {schema}_2",
        f"ALTER SCHEMA {schema}_2 SET DBPROPERTIES ('k' = 'v')",
    ):
        await apply(engine, sql, settings=inside)
        now = await engine.object_fingerprint(named)
        assert now != before, sql
        assert await engine.object_fingerprint(named) == now
        spelled = [replace(each, name=each.name.upper()) for each in named]
        assert await engine.object_fingerprint(spelled) == now
        before = now
    await apply(engine, f"DROP SCHEMA {schema}_2")
    assert await engine.object_fingerprint([Named(Sort.TABLE, "no_catalog.a.b")]) == ABSENT
    there = [replace(named[0], content=False)]
    assert await engine.object_fingerprint(there) == PRESENT
    await apply(engine, "DROP VIEW t", settings=inside)
    assert await engine.object_fingerprint(there) == ABSENT


async def test_storage_marker_that_is_missing_or_different_fails_each_probe(
    engine: SparkConnectEngine, spark: LocalSpark, schema: str, place: Path
) -> None:
    marker = await engine.storage("")
    assert await engine.storage("") == await engine.storage(marker) == marker
    await engine.probe(timeout_s=60)
    assert await engine.object_fingerprint([]) == await engine.object_fingerprint([]) == ""
    other = SparkConnectEngine(engine._address, ring="ring", cluster="a")
    try:
        assert (await _environment(other.storage("5e7"))).error_class == ErrorClass.STORAGE_AWAY
        assert (
            await _environment(other.probe(timeout_s=60))
        ).error_class == ErrorClass.STORAGE_AWAY
    finally:
        await other.aclose()
    folder = place.parent / "_haproc"
    folder.rename(folder.with_name("away"))
    try:
        absent = engine.offsets_applied([f"spark_catalog.{schema}.no"], "ring")
        for call in (
            engine.probe(timeout_s=60),
            absent,
            engine.object_fingerprint([]),
            engine.check_tables([]),
        ):
            assert (await _environment(call)).error_class == ErrorClass.STORAGE_AWAY
        folder.mkdir()
        (folder / "another.txt").write_text("5e7")
        error = await _environment(engine.object_fingerprint([]))
        assert error.error_class == ErrorClass.STORAGE_AWAY
        (folder / "moved.txt").write_text(marker)
        (folder / "another.txt").unlink()
        assert await engine.object_fingerprint([]) == ""
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_name("away").rename(folder)
    await engine.probe(timeout_s=60)
    assert await rows(engine.session("r"), "SELECT 1") == [(1,)]


@pytest.mark.thorough
async def test_probe_waits_for_a_core_while_an_own_statement_uses_all_cores(
    engine: SparkConnectEngine, schema: str, place: Path
) -> None:
    await engine.storage("")
    heavy = "SELECT count(*) FROM range(0, 1000000000, 1, 8) WHERE length(uuid()) < 7"
    query = asyncio.create_task(rows(engine.session("heavy"), heavy))
    try:
        await until(lambda: any(each.inflight for each in engine._channel.tasks._reports))
        probe = asyncio.create_task(engine.probe(timeout_s=4))
        await asyncio.wait({probe}, timeout=10)
        assert not probe.done(), probe.result()
        query.cancel()
        await asyncio.wait({query})
        async with asyncio.timeout(60):
            await probe
    finally:
        query.cancel()
