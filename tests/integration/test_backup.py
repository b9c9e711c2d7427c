"""Tests of backups of a real Spark: read without HAProc, and restored into empty rings."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dmq import Log
from dmq.memory import MemoryLog, MemoryStore
from haproc.engine.backups import manifest_name
from haproc.engine.connect import SparkConnectEngine
from haproc.failure import RequestError
from haproc.replicate.backing_up import BackupState
from haproc.replicate.restoring import RestoreState
from haproc.ring.spark import LocalSpark
from tests.integration.conftest import address_of
from tests.integration.engine_calls import apply, rows
from tests.integration.one_cluster import one_cluster

pytestmark = pytest.mark.spark

DELETIONS = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
MAPPED = "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
MADE = (
    "CREATE SCHEMA one COMMENT 'of the test'",
    f"""CREATE TABLE one.parts (n INT, p STRING, d DATE) USING delta PARTITIONED BY (p, d)
    {DELETIONS}""",
    """INSERT INTO one.parts VALUES (1, 'a b/c%', DATE'2026-01-01'), (2, 'ü', NULL),
    (3, NULL, NULL), (4, 'ü', NULL), (5, 'ü', NULL)""",
    "DELETE FROM one.parts WHERE n = 4",
    f"CREATE TABLE one.mapped (`odd name` INT, gone INT, kept STRING) USING delta {MAPPED}",
    "INSERT INTO one.mapped VALUES (1, 2, 'x'), (3, 4, 'y')",
    "ALTER TABLE one.mapped RENAME COLUMN `odd name` TO `other, name`",
    "ALTER TABLE one.mapped DROP COLUMN gone",
    "CREATE TABLE one.clustered (n INT, s STRING) USING delta CLUSTER BY (n)",
    "INSERT INTO one.clustered SELECT id, 'x' FROM range(100)",
    "CREATE TABLE one.empty (n INT NOT NULL COMMENT 'nothing') USING delta",
    "CREATE TABLE one.same (n INT) USING delta",
    "INSERT INTO one.same VALUES (7)",
    "CREATE VIEW one.seen AS SELECT kept FROM one.mapped",
    "CREATE FUNCTION one.twice(n INT) RETURNS INT RETURN 2 * n",
)
CHANGED = (
    "DELETE FROM one.parts WHERE n = 5",
    "INSERT INTO one.mapped VALUES (5, 'z')",
    "DROP TABLE one.clustered",
    "CREATE TABLE one.clustered (m BIGINT) USING delta",
    "INSERT INTO one.clustered VALUES (1), (2)",
)
TABLES = ("parts", "mapped", "clustered", "empty", "same")


async def contents(engine: SparkConnectEngine, names: Mapping[str, str]) -> dict[str, list[Any]]:
    session = engine.session("reading")
    try:
        return {
            table: sorted(await rows(session, f"SELECT * FROM {name}"), key=repr)
            for table, name in names.items()
        }
    finally:
        await session.aclose()


def tables() -> dict[str, str]:
    return {name: f"one.{name}" for name in TABLES}


def copies(place: Path) -> dict[str, str]:
    """Return the tables of a backup as plain Delta reads them."""
    return {name: f"delta.`{place}/tables/one/{name}`" for name in TABLES}


async def backup(
    mortal_spark: LocalSpark, place: Path, log: Log, ring: str = "kept"
) -> tuple[Any, Any]:
    """Return the status of a finished backup, and its manifest."""
    async with one_cluster(address_of(mortal_spark), log, ring=ring, wait_s=300) as (_, member):
        operators = member.replica.operators
        found = operators.backup("a", str(place))
        with pytest.raises(RequestError, match="makes a backup"):
            operators.backup("a", str(place))
        async with asyncio.timeout(300):
            while found["state"] == BackupState.RUNNING:
                await asyncio.sleep(0.2)
                found = operators.backup_status()
    if found["state"] == BackupState.FAILED:
        return found, None
    assert found["state"] == BackupState.DONE
    offset = found["offset"]
    assert isinstance(offset, int)
    return found, json.loads((place / manifest_name(offset)).read_text())


async def restore(mortal_spark: LocalSpark, place: Path, offset: int) -> None:
    """Restore a ring of this one cluster, as a HAProc does that restarts in between."""
    log = MemoryLog(MemoryStore())
    async with one_cluster(address_of(mortal_spark), log, wait_s=300) as (_, member):
        operators = member.replica.operators
        status = await operators.restore("a", str(place), offset, verify=True)
        assert status["state"] == RestoreState.UNDRAINED
        member.core.condition.drain(drained=True)
        with pytest.raises(RequestError, match="holds no backup"):
            await operators.restore("a", str(place / "elsewhere"), -1, verify=True)
        status = await operators.restore("a", str(place), offset, verify=True)
        assert status == {"cluster": "a", "state": RestoreState.ASKED, "offset": offset}
    async with one_cluster(address_of(mortal_spark), log, wait_s=600) as (_, member):
        member.core.condition.drain(drained=True)
        status = await member.replica.operators.restore("a", str(place), offset, verify=True)
        assert status["state"] == RestoreState.RESTORED


async def checksums(engine: SparkConnectEngine) -> dict[str, str]:
    return {
        state.name.replace("`", "").removeprefix("spark_catalog.one."): await engine.checksum(
            state, timeout_s=60
        )
        for state in await engine.table_states()
    }


@pytest.mark.thorough
async def test_backup_is_plain_delta_has_only_changes_and_is_restored(
    mortal_spark: LocalSpark, tmp_path: Path
) -> None:
    place, log = tmp_path / "backup", MemoryLog(MemoryStore())
    engine = SparkConnectEngine(address_of(mortal_spark), ring="tables", cluster="a")
    try:
        for sql in MADE:
            await apply(engine, sql, timeout_s=300)
        first = await contents(engine, tables())
        found, manifest = await backup(mortal_spark, place, log)
        assert found["tables_done"] == len(TABLES)
        assert await contents(engine, copies(place)) == first
        counts = {each["name"]: each["rows"] for each in manifest["tables"]}
        assert counts == {"parts": 4, "mapped": 2, "clustered": 100, "empty": 0, "same": 1}

        for sql in CHANGED:
            await apply(engine, sql, timeout_s=300)
        second, sums = await contents(engine, tables()), await checksums(engine)
        newer, newest = await backup(mortal_spark, place, log)
        assert await contents(engine, copies(place)) == second
        versions = {each["name"]: each["version"] for each in newest["tables"]}
        assert versions == {"parts": 1, "mapped": 1, "clustered": 1, "empty": 0, "same": 0}
        assert newer["files"] < found["files"]
        old = {name: f"{text} VERSION AS OF 0" for name, text in copies(place).items()}
        assert await contents(engine, old) == first
        again, _ = await backup(mortal_spark, place, log)
        assert (again["files"], again["bytes"], again["message"]) == (0, 0, "")
        other, _ = await backup(mortal_spark, place, log, ring="other")
        assert "holds backups of another ring" in other["message"]

        await apply(engine, "DROP SCHEMA one CASCADE")
        await restore(mortal_spark, place, newer["offset"])
        assert await contents(engine, tables()) == second
        assert await checksums(engine) == sums
        viewed = await contents(engine, {"v": "one.seen", "f": "(SELECT one.twice(4))"})
        assert viewed == {"v": [("x",), ("y",), ("z",)], "f": [(8,)]}
        # It is a table like any other, also for what follows.
        await apply(engine, "UPDATE one.parts SET n = 9 WHERE n = 1")
        await apply(engine, "INSERT INTO one.clustered VALUES (3)")
        assert (9, "a b/c%") in [row[:2] for row in (await contents(engine, tables()))["parts"]]

        await apply(engine, "DROP SCHEMA one CASCADE")
        await restore(mortal_spark, place, found["offset"])
        assert await contents(engine, tables()) == first
    finally:
        await engine.aclose()
