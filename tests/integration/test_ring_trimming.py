"""Test of trimming a real ring's log: a dead cluster holds it back until it is removed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from dmq.opening import open_log
from haproc.cli.main import main
from haproc.config.services import kafka_options
from haproc.replicate.log_state.definitions import records_needed
from haproc.replicate.records.operation import FailureReport, to_record
from haproc.replicate.records.rows import ApplicationFailure
from tests.rig import Rig

pytestmark = [pytest.mark.spark, pytest.mark.logs("kafka")]

WINDOW = 60
KEPT = records_needed(WINDOW)
WITHIN_S = 60.0
SOON = {
    "limits": {
        "window_records": WINDOW,
        "look_ahead_records_max": WINDOW,
        "batch_operations_max": WINDOW,
    },
    "trim": {"interval_s": 0.3, "keep_records": 1, "keep_s": 0.001},
}
"""Keep no records beyond a window that is short enough for a test to fill."""


async def fill(rig: Rig) -> None:
    """Append more records than the window holds: those of a replaced process, which are ignored."""
    config = rig.ring.config
    log = await open_log(config.log, kafka=kafka_options(config))
    try:
        void = FailureReport(0, "a", -1, ApplicationFailure("", "", ""))
        await log.append([to_record(void)] * (2 * WINDOW))
    finally:
        await log.close()


def restart_all(rig: Rig, text: str) -> None:
    """Restart all HAProcs with another configuration."""

    async def restart() -> None:
        await asyncio.gather(*(rig.ring.stop_haproc(name) for name in "abc"))
        rig.ring.file.write_text(text)
        await asyncio.gather(*(rig.ring.start_haproc(name) for name in "abc"))

    asyncio.run(restart())


@pytest.fixture
def trimmed(rig: Rig) -> Iterator[Rig]:
    """The ring, with its log trimmed as soon as possible."""
    before = rig.ring.file.read_text()
    asyncio.run(fill(rig))
    rig.settled()
    restart_all(rig, yaml.safe_dump({**yaml.safe_load(before), **SOON}, sort_keys=False))
    try:
        yield rig
    finally:
        restart_all(rig, before)


def trim(rig: Rig, name: str = "a") -> dict[str, Any]:
    return dict(rig.status(name)["trim"])


@pytest.mark.thorough
def test_log_is_trimmed_and_a_dead_cluster_holds_it_back_until_it_is_removed(trimmed: Rig) -> None:
    rig, config = trimmed, ("--config", str(trimmed.ring.file))
    table = rig.table()
    rig.run(f"INSERT INTO {table} VALUES (1, 'x')")
    end = rig.log_end()
    rig.wait(lambda: trim(rig)["log_start"] == end - KEPT, WITHIN_S)

    cursor = rig.status("c")["cursor"]
    rig.ring.kill("c", "haproc")
    for n in range(4):
        rig.run(f"INSERT INTO {table} VALUES ({n}, 'y')", "ab")
    rig.wait(lambda: all(trim(rig, name)["held_by"] == "c" for name in "ab"), WITHIN_S)
    assert trim(rig)["log_start"] <= cursor - KEPT

    assert main(["cluster", "remove", "c", *config, "--yes"]) == 0
    rig.wait(lambda: trim(rig)["log_start"] > cursor - KEPT, WITHIN_S)
    for name in "ab":
        assert [each["name"] for each in rig.status(name)["clusters"]] == ["a", "b"]

    # It is taken back while the log still has what it missed, and goes on where it was.
    c = rig.ring.config.cluster("c")
    addresses = []
    for name in ("listen", "peer", "connect"):
        door = getattr(c, name)
        addresses += [f"--{name}", f"{door.host}:{door.port}"]
    token = str(rig.sparks.folder / "secrets" / "c")
    spark = ["--spark", f"sc://127.0.0.1:{c.spark.port}", "--spark-token-file", token]
    assert main(["cluster", "add", "c", *config, *addresses, *spark]) == 0
    rig.start("c")
    rig.settled()
    assert [each["name"] for each in rig.status("a")["clusters"]] == ["a", "b", "c"]
    rig.check_equal(table)
