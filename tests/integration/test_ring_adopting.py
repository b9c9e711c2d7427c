"""Test of ``haproc ring adopt``: two clusters with tables of their own become a ring."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import haclient
from haproc.cli.main import main
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.statement import SqlText
from haproc.ring.holdings import contents, differences
from haproc.ring.local import LocalRing
from tests.rig import SETTINGS, SPARK_SETTINGS

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.logs("sqlite")]

SOURCE = (
    "CREATE TABLE orders (id INT, paid BOOLEAN) USING delta",
    "INSERT INTO orders VALUES (1, true), (2, false)",
    "CREATE VIEW unpaid AS SELECT id FROM orders WHERE NOT paid",
    "CREATE FUNCTION next(x INT) RETURNS INT RETURN x + 1",
)
OTHER = (
    "CREATE TABLE orders (id INT, paid BOOLEAN) USING delta",
    "INSERT INTO orders VALUES (1, true)",
    "CREATE TABLE notes (text STRING) USING parquet",
)


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRing]:
    """Two Sparks with tables; no HAProc has run beside them."""
    made = LocalRing.open_or_create(
        tmp_path_factory.mktemp("adopted"),
        clusters=2,
        spark_settings=SPARK_SETTINGS,
        settings=SETTINGS,
    )
    try:
        asyncio.run(fill(made))
        yield made
    finally:
        asyncio.run(made.down())


async def fill(ring: LocalRing) -> None:
    for name, statements in (("a", SOURCE), ("b", OTHER)):
        await ring.start_spark(name, warm=False)
        await plain(ring, name, *statements)


async def plain(ring: LocalRing, name: str, *statements: str) -> None:
    """Run statements directly on Spark, past HAProc."""
    engine = SparkConnectEngine(ring.config.cluster(name).spark, ring="none", cluster=name)
    try:
        for sql in statements:
            async for _ in await engine.session("plain").query(SqlText(sql), timeout_s=120):
                pass
    finally:
        await engine.aclose()


def adopt(folder: Path, *words: str) -> int:
    return main(["ring", "adopt", "--from", "a", "--folder", str(folder), *words])


def test_adopt_copies_the_tables_of_one_cluster_to_the_other_and_starts_the_ring(
    ring: LocalRing, capsys: pytest.CaptureFixture[str]
) -> None:
    asyncio.run(plain(ring, "a", "CREATE TABLE cloned SHALLOW CLONE orders"))
    assert adopt(ring.folder, "--yes") == 1
    assert "a holds default.cloned, which cannot be copied" in capsys.readouterr().err
    asyncio.run(plain(ring, "a", "DROP TABLE cloned"))

    assert adopt(ring.folder, "--dry-run", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert report["refusals"] == report["clusters"]["a"]["differing"] == []
    assert {(e["name"], e["difference"]) for e in report["clusters"]["b"]["differing"]} == {
        ("default.next", "missing"),
        ("default.notes", "only there"),
        ("default.orders", "other rows"),
        ("default.unpaid", "missing"),
    }
    assert report["clusters"]["b"]["not_copied"][0]["name"] == "default.notes"
    assert ring.pids("a")["haproc"] is None
    assert not (ring.folder / "log.db").exists()

    assert adopt(ring.folder, "--yes") == 0, capsys.readouterr().out
    output = capsys.readouterr().out
    assert "What only b has is lost: default.notes." in output
    assert "b serves" in output
    assert adopt(ring.folder, "--dry-run", "--json") == 0
    again = json.loads(capsys.readouterr().out)["clusters"]
    assert [again[name]["becomes_copy"] for name in "ab"] == [False, False]

    with haclient.connect(ring.urls) as client:
        client.execute("INSERT INTO orders SELECT next(2), false")
        client.execute("SELECT count(*) FROM unpaid", consistency="linearizable")
    assert main(["verify", "--folder", str(ring.folder)]) == 0
    found = asyncio.run(contents(ring.config))
    assert differences(found) == []
    assert set(found["b"]) == {"default.orders"}

    capsys.readouterr()
    assert adopt(ring.folder, "--yes") == 1
    assert "holds writes already" in capsys.readouterr().err
