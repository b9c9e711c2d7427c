"""Tests of jobs on a real ring: any HAProc shows and ends them, and they survive their HAProc."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest

from tests.rig import Rig

pytestmark = [pytest.mark.spark, pytest.mark.logs("sqlite")]

BEGIN = """
import os, sys, time
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
print("attempt", os.environ["HAPROC_JOB_ATTEMPT"], flush=True)
"""
LOADER = (
    BEGIN
    + """
table = sys.argv[1]
done = spark.sql(f"SELECT coalesce(max(id), -1) FROM {table}").head()[0]
print("from", done + 1, flush=True)
for batch in range(done + 1, 6):
    spark.sql(f"INSERT INTO {table} VALUES ({batch}, 'row {batch}')")
    print("wrote", batch, flush=True)
    time.sleep(0.3)
"""
)
ENDED_S = 240.0
"""A bound for a busy machine and for Sparks that are not warm."""


def submit(rig: Rig, door: str, code: str, *args: str, **more: Any) -> dict[str, Any]:
    """Submit a program at one HAProc."""
    body = {"code": code, "args": list(args), **more}
    status, answer = rig.post(door, "/batches", body)
    assert status == 201, answer
    return dict(answer)


def shown(rig: Rig, name: str, job: int) -> dict[str, Any]:
    status, answer = rig.get(name, f"/batches/{job}")
    assert status == 200, answer
    return dict(answer)


def log(rig: Rig, name: str, job: int) -> list[str]:
    status, answer = rig.get(name, f"/batches/{job}/log?from=0&size=1000")
    assert status == 200, answer
    return list(answer["log"])


def ended(rig: Rig, name: str, job: int) -> dict[str, Any]:
    """Wait for the job's end, with requests to this HAProc."""
    states = ("success", "dead", "killed", "error")
    rig.wait(lambda: shown(rig, name, job)["state"] in states, ENDED_S)
    return shown(rig, name, job)


def test_job_succeeds_and_all_haprocs_show_it(rig: Rig) -> None:
    table = rig.table()
    request_id = str(uuid.uuid4())
    began = time.monotonic()
    job = submit(rig, "a", LOADER, table, name="load", requestId=request_id)["id"]
    again = submit(rig, "b", LOADER, table, name="load", requestId=request_id)["id"]
    assert again == job
    rig.wait(lambda: any("from 0" in line for line in log(rig, "c", job)), ENDED_S)
    print(f"first statement after {time.monotonic() - began:.2f} s")
    found = ended(rig, "c", job)
    assert (found["state"], found["haproc"]["exit_code"]) == ("success", 0), log(rig, "a", job)
    assert log(rig, "b", job)[:3] == ["attempt 1", "from 0", "wrote 0"]
    assert rig.get("b", f"/batches/{job}/state") == (200, {"id": job, "state": "success"})
    listed = rig.get("c", "/batches?from=0&size=100")[1]
    assert job in [each["id"] for each in listed["sessions"]]
    rig.settled()
    rig.check_equal(table)
    assert rig.everywhere(f"SELECT count(*), count(DISTINCT id) FROM {table}") == [(6, 6)]


@pytest.mark.thorough
def test_job_that_fails_is_dead_with_its_exit_code_and_its_traceback(rig: Rig) -> None:
    job = submit(rig, "b", BEGIN + "spark.sql('SELECT * FROM there_is_none').show()")["id"]
    found = ended(rig, "a", job)
    assert (found["state"], found["haproc"]["exit_code"]) == ("dead", 1)
    assert any("TABLE_OR_VIEW_NOT_FOUND" in line for line in log(rig, "c", job))


@pytest.mark.thorough
def test_job_killed_at_another_haproc_ends_and_writes_nothing_more(rig: Rig) -> None:
    table = rig.table()
    job = submit(rig, "a", LOADER.replace("range(done + 1, 6)", "range(10**6)"), table)["id"]
    rig.wait(lambda: any("wrote 1" in line for line in log(rig, "b", job)), ENDED_S)
    assert rig.send("b", "DELETE", f"/batches/{job}") == (200, {"msg": "deleted"})
    assert shown(rig, "c", job)["state"] == "killed"
    rig.settled()
    rows = rig.everywhere(f"SELECT count(*) FROM {table}")
    assert rig.everywhere(f"SELECT count(*) FROM {table}") == rows
    rig.check_equal(table)


@pytest.mark.thorough
@pytest.mark.fault
def test_job_whose_haproc_is_killed_continues_at_another_and_writes_each_row_once(
    rig: Rig,
) -> None:
    table = rig.table()
    job = submit(rig, "c", LOADER, table, conf={"haproc.restart": 2})["id"]
    rig.wait(lambda: any("wrote 1" in line for line in log(rig, "a", job)), ENDED_S)
    rig.ring.kill("c", "haproc")
    began = time.monotonic()
    rig.wait(lambda: shown(rig, "a", job)["haproc"]["attempts"] == 2, 10)
    print(f"taken over after {time.monotonic() - began:.2f} s")
    found = ended(rig, "b", job)
    assert (found["state"], found["haproc"]["attempts"]) == ("success", 2), log(rig, "a", job)
    assert found["haproc"]["cluster"] in ("a", "b")
    assert "attempt 2" in log(rig, "a", job)
    rig.up()
    rig.settled()
    rig.check_equal(table)
    assert rig.everywhere(f"SELECT count(*), count(DISTINCT id) FROM {table}") == [(6, 6)]


@pytest.mark.thorough
@pytest.mark.fault
def test_job_without_restarts_whose_haproc_is_killed_is_dead_within_seconds(rig: Rig) -> None:
    job = submit(rig, "b", BEGIN + "time.sleep(600)")["id"]
    rig.wait(lambda: "attempt 1" in log(rig, "a", job), ENDED_S)
    rig.ring.kill("b", "haproc")
    rig.wait(lambda: shown(rig, "a", job)["state"] == "dead", 10)
    assert shown(rig, "c", job)["haproc"]["outcome"] == "lost"
