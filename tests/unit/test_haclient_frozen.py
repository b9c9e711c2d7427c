"""A client whose server is frozen (SIGSTOP): a real process, with the default settings."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from haclient.failover import Policy
from tests.unit.haclient_rig import Open, connect, fails, run, serving
from tests.unit.haclient_server import WAIT_S, Server

__all__ = ["connect"]
pytestmark = pytest.mark.usefixtures("impatient_clients")

SOON_S = 8.0
"""A bound for a busy machine; the aim is one second, see bench.bench_membership."""
LONG_S = 2.5 * Policy().hung_after_s
PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
from tests.unit.haclient_server import Server, slow
server = Server("a")
for seconds in json.loads(sys.argv[2]):
    server.script.append(slow(seconds))
print(server.port, flush=True)
sys.stdin.read()
server.close()
"""


class Process:
    """A server in its own process; each statement takes the next duration of the script."""

    def __init__(self, *seconds: float) -> None:
        command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent), json.dumps(seconds)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=dict(os.environ)
        )
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def freeze(self) -> None:
        """Stop it, and wait until all of its threads are stopped."""
        self._process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self._process.pid}/task")
        end = time.monotonic() + WAIT_S
        while any(_state(task) != "T" for task in tasks.iterdir()):
            assert time.monotonic() < end, "it goes on"
            time.sleep(0.005)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.thaw()
        self._process.communicate(timeout=30)


def _state(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def other() -> Iterator[Server]:
    with serving("b") as (made,):
        yield made


@pytest.fixture(scope="module")
def started() -> Iterator[list[Process]]:
    """Two servers; the first statements of the first one are slow, one for each form of client."""
    made = [Process(LONG_S, LONG_S), Process()]
    yield made
    for process in made:
        process.close()


@pytest.fixture
def processes(started: list[Process]) -> Iterator[list[Process]]:
    yield started
    for process in started:
        process.thaw()


QUICK_BACK = {"failback_after_s": 0.0, "failback_probe_s": 0.02}


async def at_a(connection: Any) -> None:
    """Run statements until the first server answers: on a busy machine it may seem hung at
    first.
    """
    end = time.monotonic() + WAIT_S
    while (await run(connection)).ha["cluster"] != "a":
        assert time.monotonic() < end, "it did not come to pass"
        await asyncio.sleep(0.05)


async def test_statement_longer_than_the_detection_time_of_a_freeze_is_waited_for(
    connect: Open, processes: list[Process], other: Server
) -> None:
    patient = {"connect_timeout_s": 10.0, "probe_timeout_s": 10.0}
    connection: Any = connect([processes[0], other], **patient)
    assert (await run(connection)).ha["cluster"] == "a"
    assert not other.seen


async def test_client_of_a_frozen_process_is_answered_soon_by_another_server(
    connect: Open, processes: list[Process], other: Server
) -> None:
    connection: Any = connect([processes[0], other], **QUICK_BACK)
    await at_a(connection)
    processes[0].freeze()
    begun = time.monotonic()
    assert (await run(connection)).ha["cluster"] == "b"
    took_s = time.monotonic() - begun
    print(f"answered {took_s:.2f} s after the freeze")
    assert Policy().hung_after_s <= took_s < SOON_S
    begun = time.monotonic()
    assert (await run(connection)).ha["cluster"] == "b", "and stays away"
    assert time.monotonic() - begun < SOON_S


async def test_write_to_a_frozen_process_is_repeated_under_its_id(
    connect: Open, processes: list[Process], other: Server
) -> None:
    connection: Any = connect([processes[0], other], **QUICK_BACK)
    await at_a(connection)
    other.seen.clear()
    processes[0].freeze()
    cursor = await run(connection, "INSERT INTO t VALUES (1)", request_id="once")
    assert cursor.ha["cluster"] == "b"
    assert [body["request_id"] for body in other.seen] == ["once"]


async def test_client_continues_after_all_servers_were_frozen(
    connect: Open, processes: list[Process]
) -> None:
    connection: Any = connect(processes)
    await run(connection)
    for process in processes:
        process.freeze()
    assert "the deadline passed" in str(await fails(connection, timeout_s=2.0))
    for process in processes:
        process.thaw()
    assert (await run(connection)).ha["cluster"] == "a", "the name of both"
