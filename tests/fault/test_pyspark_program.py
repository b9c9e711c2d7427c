"""Tests of PySpark programs whose HAProc and Spark are killed: they notice nothing of it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fault.pyspark_job import LARGE_ROWS, ROUNDS, expected
from tests.rig import Rig

pytestmark = pytest.mark.fault

STEP_S = 180.0
"""A bound for a busy machine; the time that it took is printed."""
UNDER_S = 0.3
"""The delay of a kill after a round's begin, so that it hits one of the round's statements."""


class Job:
    """A job in a process of its own, which prefers the clusters in this order."""

    def __init__(self, rig: Rig, name: str, folder: Path, table: str = "") -> None:
        doors = ",".join(rig.door(each) for each in rig.ring.names)
        command = [sys.executable, "-m", "tests.fault.pyspark_job", name, doors, table, str(folder)]
        self._errors = (folder / "errors").open("wb+")
        self._process = subprocess.Popen(
            command,
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._began = time.monotonic()

    def reaches(self, place: str) -> None:
        """Wait until the job reports this place."""
        watch = threading.Timer(STEP_S, self._process.kill)
        watch.start()
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        watch.cancel()
        print(f"{time.monotonic() - self._began:.1f} s: {line or self.errors()}")
        assert line == place, self.errors()

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def ends(self) -> None:
        assert self._process.wait(STEP_S) == 0, self.errors()

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-4000:]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()


@contextmanager
def started(rig: Rig, name: str, folder: Path, table: str = "") -> Iterator[Job]:
    job = Job(rig, name, folder, table)
    try:
        yield job
    finally:
        job.close()


@pytest.mark.thorough
def test_program_whose_haproc_and_spark_are_killed_one_after_another_succeeds(
    rig: Rig, tmp_path: Path
) -> None:
    table = rig.table("id BIGINT, name STRING")
    with started(rig, "program", tmp_path, table) as job:
        for number, (name, target) in enumerate([("", ""), ("a", "haproc"), ("b", "spark")]):
            job.reaches(f"round {number}")
            job.go_on()
            if target:
                time.sleep(UNDER_S)
                assert rig.ring.kill(name, target)
        job.reaches("done")
        job.ends()
    assert number + 1 == ROUNDS
    rig.up()
    assert rig.everywhere(f"SELECT id, name FROM {table} ORDER BY id, name") == expected()
    rig.check_equal(table)


@pytest.mark.thorough
def test_large_result_whose_haproc_is_killed_arrives_whole_and_in_order(
    rig: Rig, tmp_path: Path
) -> None:
    with started(rig, "large", tmp_path) as job:
        job.reaches("reading")
        assert rig.ring.kill("a", "haproc")
        job.go_on()
        job.reaches(f"read {LARGE_ROWS}")
        job.ends()
