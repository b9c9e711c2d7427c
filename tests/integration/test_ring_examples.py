"""Tests of the programs in examples/, as jobs on a real ring."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.test_ring_jobs import ENDED_S, ended, log, submit
from tests.rig import Rig

pytestmark = [pytest.mark.spark, pytest.mark.logs("sqlite"), pytest.mark.thorough]

EXAMPLES = Path(__file__).parents[2] / "examples"
BATCHES = 8


def program(name: str) -> str:
    return (EXAMPLES / name).read_text()


def test_flight_statistics_job_leaves_equal_tables_on_all_clusters(rig: Rig) -> None:
    job = submit(rig, "b", program("flight_statistics.py"), "1", "flights")["id"]
    assert ended(rig, "b", job)["state"] == "success", log(rig, "b", job)
    january = "count(*), count(DISTINCT day), count(DISTINCT origin), bit_xor(xxhash64(*))"
    assert rig.everywhere(f"SELECT {january} FROM flights")[0][:3] == (27_004, 31, 3)
    days = "count(*), sum(flights), sum(cancelled), max(carriers), bit_xor(xxhash64(*))"
    assert rig.everywhere(f"SELECT {days} FROM flights_by_day")[0][:4] == (93, 27_004, 521, 13)
    assert any("EWR" in line for line in log(rig, "c", job))


@pytest.mark.fault
def test_micro_batches_job_whose_haproc_is_killed_continues_and_loads_each_row_once(
    rig: Rig,
) -> None:
    arguments = (str(BATCHES), "loaded")
    restarts = {"haproc.restart": 3}
    job = submit(rig, "c", program("micro_batches.py"), *arguments, conf=restarts)["id"]
    rig.wait(lambda: any("batch 1:" in line for line in log(rig, "a", job)), ENDED_S)
    rig.ring.kill("c", "haproc")
    found = ended(rig, "b", job)
    assert (found["state"], found["haproc"]["attempts"]) == ("success", 2), log(rig, "a", job)
    assert any(f"batch {BATCHES}:" in line for line in log(rig, "b", job))
    rig.up()
    rows = "count(*), count(DISTINCT number), max(number), bit_xor(xxhash64(*))"
    loaded = BATCHES * 1000
    assert rig.everywhere(f"SELECT {rows} FROM loaded")[0][:3] == (loaded, loaded, loaded - 1)
