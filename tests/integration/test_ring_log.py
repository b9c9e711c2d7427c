"""Tests of a real ring whose log is lost and founded again, and then moved to Kafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import haclient
from haproc.cli.main import main
from haproc.ring.broker import LocalKafka
from haproc.ring.holdings import contents, differences
from haproc.ring.local import LocalRing
from tests.rig import SETTINGS, SPARK_SETTINGS

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.thorough,
    pytest.mark.logs("sqlite"),
]

TABLE = "CREATE TABLE orders (id INT) USING delta"
ALL = "SELECT id FROM orders ORDER BY id"


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalRing]:
    """Two clusters; each test continues where the previous one ended."""
    made = LocalRing.open_or_create(
        tmp_path_factory.mktemp("ledger"),
        clusters=2,
        spark_settings=SPARK_SETTINGS,
        settings=SETTINGS,
    )
    try:
        asyncio.run(made.up())
        yield made
    finally:
        asyncio.run(made.down())


def insert(client: Any, number: int, **more: Any) -> None:
    client.execute(f"INSERT INTO orders VALUES ({number})", request_id=f"order-{number}", **more)


def stop(ring: LocalRing) -> None:
    async def all_of_them() -> None:
        await asyncio.gather(*map(ring.stop_haproc, ring.names))

    asyncio.run(all_of_them())


def start(ring: LocalRing) -> None:
    async def all_of_them() -> None:
        await asyncio.gather(*map(ring.start_haproc, ring.names))

    asyncio.run(all_of_them())


def check(ring: LocalRing, *numbers: int) -> None:
    """Check that all clusters hold exactly these rows."""
    with haclient.connect(ring.urls) as client:
        found = client.execute(ALL, consistency="linearizable").fetchall()
    assert [row[0] for row in found] == list(numbers)
    assert main(["verify", "--folder", str(ring.folder)]) == 0
    assert differences(asyncio.run(contents(ring.config))) == []


def test_ring_whose_log_is_lost_is_founded_on_the_most_advanced_cluster(
    ring: LocalRing, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--folder", str(ring.folder)]
    with haclient.connect(ring.urls) as client:
        client.execute(TABLE)
        insert(client, 1)
        client.execute("SELECT 1", consistency="linearizable")
    check(ring, 1)
    ring.kill("b", "haproc")
    began = time.monotonic()
    with haclient.connect(ring.config.url(ring.config.cluster("a").listen)) as client:
        insert(client, 2)
    assert main(["ring", "found", "--on", "a", *where]) == 1
    assert "a: a HAProc runs there" in capsys.readouterr().err
    stop(ring)
    for file in ring.folder.glob("log.db*"):
        file.unlink()

    assert main(["ring", "found", "--on", "b", "--dry-run", *where]) == 1
    captured = capsys.readouterr()
    assert "Most advanced: a" in captured.out
    assert "Lost, because b has not applied them:" in captured.out
    assert "a is more advanced than b" in captured.err
    assert not (ring.folder / "log.db").exists()
    assert main(["ring", "found", "--on", "a", "--yes", *where]) == 0
    captured = capsys.readouterr()
    assert "Lost, because" not in captured.out
    start(ring)
    with haclient.connect(ring.urls) as client:
        insert(client, 3)
        with pytest.raises(haclient.Error):
            insert(client, 2, age_s=time.monotonic() - began)
    check(ring, 1, 2, 3)


def test_ring_is_moved_from_sqlite_to_kafka(
    ring: LocalRing, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where, file = ["--folder", str(ring.folder)], str(tmp_path / "ring.dmq")
    assert main(["log", "export", file, *where]) == 1
    assert "a HAProc runs there" in capsys.readouterr().err
    ring.kill("b", "haproc")
    with haclient.connect(ring.config.url(ring.config.cluster("a").listen)) as client:
        insert(client, 4)  # b applies it from the new log
    stop(ring)
    assert main(["log", "export", file, *where]) == 0
    assert main(["log", "export", file, *where]) == 1
    assert "haproc log reopen" in capsys.readouterr().err

    kafka = LocalKafka.open_or_create(tmp_path / "kafka")
    asyncio.run(kafka.start())
    try:
        settings = yaml.safe_load(ring.file.read_text())
        settings["log"] = f"kafka://{kafka.bootstrap_servers}/{settings['ring']}"
        settings["kafka"] = {"replication_factor": 1, "min_insync_replicas": 1}
        ring.file.write_text(yaml.safe_dump(settings, sort_keys=False))
        assert main(["log", "import", file, *where]) == 0
        assert "goes on with what is in" in capsys.readouterr().out
        assert main(["log", "import", file, *where]) == 1
        assert "is not new" in capsys.readouterr().err
        moved = LocalRing.open(ring.folder)
        start(moved)
        with haclient.connect(moved.urls) as client:
            insert(client, 4, age_s=1.0)  # a client that repeats what it sent before
            insert(client, 5)
        check(moved, 1, 2, 3, 4, 5)
        stop(moved)
    finally:
        asyncio.run(kafka.stop())
