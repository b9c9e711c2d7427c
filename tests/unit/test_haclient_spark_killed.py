"""haclient.spark with servers that are killed or frozen: real processes, default settings."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.connect.session import SparkSession

import haclient
from haclient.failover import Policy
from tests.unit.spark_connect_server import ROWS, Server
from tests.unit.test_haclient_spark import WAIT_S, names, numbers, read, until

pytestmark = pytest.mark.usefixtures("impatient_clients")

SOON_S = 8.0
"""A bound for a busy machine; the measured time is printed."""
ROOT = Path(__file__).parents[2]


class Process:
    """A server in its own process; slow statements never end there."""

    def __init__(self, name: str) -> None:
        command = [sys.executable, "-m", "tests.unit.spark_connect_server", name, "3600"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.address = f"127.0.0.1:{int(self._process.stdout.readline())}"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(WAIT_S)

    def freeze(self) -> None:
        """Stop it, and wait until all of its threads are stopped."""
        self._process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self._process.pid}/task")
        until(lambda: all(" T " in (each / "stat").read_text() for each in tasks.iterdir()))

    def close(self) -> None:
        self.kill()
        self._process.communicate()


@pytest.fixture
def process() -> Iterator[Process]:
    made = Process("a")
    yield made
    made.close()


@pytest.fixture
def other() -> Iterator[Server]:
    made = Server("b")
    made.go_on.set()
    yield made
    made.stop()


@pytest.fixture
def session(process: Process, other: Server) -> Iterator[Any]:
    opened: Any = haclient.spark(
        f"sc://{process.address},{other.address}", connect_timeout_s=WAIT_S
    )
    assert names(read(opened)) == "a"
    yield opened
    opened.stop()
    SparkSession._default_session = None
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)


def test_session_whose_server_is_killed_between_statements_is_answered_soon(
    session: Any, process: Process
) -> None:
    process.kill()
    begun = time.monotonic()
    assert names(read(session)) == "b"
    print(f"answered {time.monotonic() - begun:.3f} s after the kill")
    assert time.monotonic() - begun < SOON_S


@pytest.mark.parametrize("table", ["slow", "halting"])
@pytest.mark.parametrize("how", ["kill", "freeze"])
def test_statement_whose_server_is_killed_or_frozen_is_answered_soon(
    session: Any, process: Process, how: str, table: str
) -> None:
    busy = session.client._channel.links
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(read, session, table)
        until(lambda: busy.busy)
        time.sleep(0.3)  # by now it is there; what is asked later is answered as well
        begun = time.monotonic()
        getattr(process, how)()
        result = running.result(WAIT_S)
    took_s = time.monotonic() - begun
    print(f"answered {took_s:.3f} s after the {how}")
    assert numbers(result) == list(range(ROWS))
    assert names(result) == ("b" if table == "slow" else "ab")
    assert took_s < SOON_S


def test_session_whose_server_freezes_between_statements_is_answered_soon_by_another(
    session: Any, process: Process
) -> None:
    process.freeze()
    begun = time.monotonic()
    assert names(read(session)) == "b"
    took_s = time.monotonic() - begun
    print(f"answered {took_s:.3f} s after the freeze")
    assert Policy().hung_after_s <= took_s < SOON_S
    assert names(read(session)) == "b"
