"""Tests of fences: a HAProc that is frozen, replaced and woken ends, and applies nothing more.

The second HAProc of a cluster has doors of its own, as on another machine.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import haclient
from haproc.config.load import load
from haproc.config.model import Config
from haproc.node.node import ExitCode
from haproc.ring import process
from haproc.ring.process import free_port, launch, process_of, wait_answering
from tests.rig import PATIENT, SETTLED_S, Rig

pytestmark = [pytest.mark.fault, pytest.mark.logs("kafka")]


class Second:
    """Another HAProc for one of the ring's clusters."""

    def __init__(self, rig: Rig, folder: Path, name: str) -> None:
        self.name = name
        text = yaml.safe_load(rig.ring.file.read_text())
        (cluster,) = (each for each in text["clusters"] if each["name"] == name)
        for door in ("listen", "peer", "connect"):
            cluster[door] = f"127.0.0.1:{free_port()}"
        text["state_dir"] = str(folder / "state")
        self._file = rig.ring.file.with_name(f"second-{uuid.uuid4().hex}.yaml")
        self._file.write_text(yaml.safe_dump(text))
        self.config: Config = load(self._file, os.environ)
        self.url = self.config.url(self.config.cluster(name).listen)
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        launch(self.config, self._file, self.name)
        self._child = child_of(self.config, self.name)

    def wait_ready(self) -> None:
        asyncio.run(wait_answering(self.config, self.name, SETTLED_S, ready=True))

    @property
    def code(self) -> int | None:
        """The exit code, or None while it runs."""
        assert self._child is not None
        return self._child.poll()

    def stop(self) -> None:
        asyncio.run(process_of(self.config, self.name).stop(20))
        self._file.unlink()


@pytest.fixture
def seconds(tmp_path: Path) -> Iterator[list[Second]]:
    """Second HAProcs that a test started; they are stopped after it."""
    started: list[Second] = []
    yield started
    for second in started:
        second.stop()


def child_of(config: Config, name: str) -> subprocess.Popen[bytes]:
    """Return the process of a HAProc that this process started."""
    identity = process_of(config, name).identity()
    assert identity is not None
    return process._children[identity.pid]


def is_stopped(child: subprocess.Popen[bytes]) -> bool:
    stat = Path(f"/proc/{child.pid}/stat").read_text()
    return stat.rpartition(")")[2].split()[0] == "T"


def frozen_at(rig: Rig, name: str, step: str) -> subprocess.Popen[bytes]:
    """Restart a cluster's HAProc so that it will freeze at a step of the next write."""
    rig.restart(name, fault=f"{step}:1:stop")
    return child_of(rig.ring.config, name)


def replace(rig: Rig, seconds: list[Second], folder: Path, name: str) -> Second:
    second = Second(rig, folder, name)
    seconds.append(second)
    second.start()
    second.wait_ready()
    return second


def write(second: Second, sql: str) -> None:
    """Write through this HAProc only."""
    with haclient.connect(second.url, timeout_s=120) as connection:
        assert connection.execute(sql).ha["cluster"] == second.name


def woken(rig: Rig, first: subprocess.Popen[bytes]) -> None:
    """Wake the first process; it reads that it was replaced, and ends."""
    first.send_signal(signal.SIGCONT)
    rig.wait(lambda: first.poll() is not None, 60)
    assert first.returncode == ExitCode.FENCED


@pytest.mark.thorough
@pytest.mark.parametrize("step", ["apply.before", "apply.after"])
def test_haproc_replaced_while_it_applies_an_insert_writes_no_row_twice(
    rig: Rig, seconds: list[Second], tmp_path: Path, step: str
) -> None:
    table = rig.table()
    first = frozen_at(rig, "b", step)
    rig.run(f"INSERT INTO {table} VALUES (1, 'x')", order="ac")
    rig.wait(lambda: is_stopped(first), 60)
    second = replace(rig, seconds, tmp_path, "b")
    rig.run(f"INSERT INTO {table} VALUES (2, 'y')", order="a")
    write(second, f"INSERT INTO {table} VALUES (3, 'z')")
    woken(rig, first)
    rig.up()  # a third one, which ends the second
    rig.wait(lambda: second.code is not None, 60)
    assert second.code == ExitCode.FENCED
    assert rig.everywhere(f"SELECT * FROM {table} ORDER BY id") == [(1, "x"), (2, "y"), (3, "z")]


@pytest.mark.thorough
def test_haproc_replaced_while_it_creates_a_table_does_not_recreate_the_dropped_table(
    rig: Rig, seconds: list[Second], tmp_path: Path
) -> None:
    """The table is dropped before the first process wakes up in its CREATE."""
    table = f"d{uuid.uuid4().hex[:8]}"
    before = rig.everywhere("SHOW TABLES")
    first = frozen_at(rig, "a", "fanout.after")
    with rig.cursor("abc", **PATIENT) as cursor:
        cursor.execute(f"CREATE TABLE {table} (id INT) USING delta")
    rig.wait(lambda: is_stopped(first), 60)
    second = replace(rig, seconds, tmp_path, "a")
    write(second, f"DROP TABLE {table}")
    woken(rig, first)
    rig.up()
    assert rig.everywhere("SHOW TABLES") == before


@pytest.mark.thorough
def test_two_haprocs_started_at_once_for_one_cluster_leave_one_running(
    rig: Rig, seconds: list[Second], tmp_path: Path
) -> None:
    rig.settled()
    asyncio.run(rig.ring.stop_haproc("b"))
    for number in range(2):
        seconds.append(Second(rig, tmp_path / str(number), "b"))
    for second in seconds:
        second.start()
    rig.wait(lambda: any(second.code is not None for second in seconds), 120)
    left = [second for second in seconds if second.code is None]
    ended = [second for second in seconds if second.code is not None]
    assert [second.code for second in ended] == [ExitCode.FENCED] and len(left) == 1
    left[0].wait_ready()
    table = rig.table()
    write(left[0], f"INSERT INTO {table} VALUES (1, 'x')")
    assert left[0].code is None
    rig.up()
    assert rig.everywhere(f"SELECT * FROM {table}") == [(1, "x")]
