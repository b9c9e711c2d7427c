"""The cost of heartbeats and reports in a ring of three: ``python -m bench.bench_heartbeat``.

Three processes with an operator door exchange heartbeats, as HAProcs do, and their processor time
is read from /proc. The yardstick is the same three processes with the doors open
and nobody sending. Rounds alternate, so that a busy machine slows all. Where there is a
redis-server, the same three exchange them through one, too, whose own time is not counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

from bench.measures import cpu_s
from bench.report import Row, report
from haproc.config.model import Address, ClusterConfig, Config, Membership, Redis, StateWay
from haproc.doors.apps import waiting_app
from haproc.doors.http.listener import Listener
from haproc.engine.interface import EngineAddress
from haproc.membership.state import Own, State
from haproc.metrics import Metrics
from haproc.node.doors import WaitingForLog
from haproc.node.presence import Presence
from haproc.ring.process import free_port, free_ports

NAMES = "abc"
ROUNDS = 3
ROUND_S = 10.0
SETTLE_S = 2.0
BAR_PERCENT = 3.0
OWN = Own(State.READY, "2026-01-01T00:00:00.000Z", 7, 123_456, 123_456, log_up=True)


class Caught:
    """A HAProc that has applied everything."""

    def own(self) -> Own:
        """Return the state of this member, which never changes."""
        return OWN

    def isolate(self, why: str) -> None:
        """Do nothing: there is no log."""


def _config(folder: Path, sending: bool, redis: str = "") -> Config:
    ports = free_ports(len(NAMES))
    nowhere, spark = Address("127.0.0.1", 1), EngineAddress("127.0.0.1", 1)
    clusters = tuple(
        ClusterConfig(name, nowhere, Address("127.0.0.1", port), spark)
        for name, port in zip(NAMES, ports, strict=True)
    )
    rules = Membership() if sending else Membership(heartbeat_interval_s=3600, window_s=7200)
    return Config(
        "bench",
        "memory:",
        clusters,
        "a-secret-of-usual-length",
        folder,
        membership=rules,
        state=StateWay.REDIS if redis else StateWay.MESH,
        redis=Redis(redis),
    )


async def _live(config: Config, name: str, line: Connection) -> None:
    metrics = Metrics("bench", name, ["READY"])
    presence = Presence(config, name, f"{name}23456789abc", metrics)
    app = waiting_app(
        config, name, WaitingForLog(config, name, presence, ""), metrics, presence.door
    )
    presence.members.attach(Caught())
    door = Listener(app, config.cluster(name).peer, shortcut=presence.door.shortcut)
    await door.open()
    await asyncio.to_thread(line.recv)
    line.send(sum(peer.alive for peer in presence.members.peers().values()))
    await door.aclose()
    await presence.aclose()


def _process(config: Config, name: str, line: Connection) -> None:
    sys.setswitchinterval(0.0005)
    uvloop.run(_live(config, name, line))


@contextlib.contextmanager
def _ring(config: Config, alive: int) -> Iterator[list[int]]:
    """Start three processes; yield their pids. At the end each must see ``alive`` others."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe() for _ in NAMES]
    processes = [
        context.Process(target=_process, args=(config, name, pipe[1]))
        for name, pipe in zip(NAMES, pipes, strict=True)
    ]
    for process in processes:
        process.start()
    try:
        deadline = time.monotonic() + 60
        for cluster in config.clusters:
            while not _answers(cluster.peer):
                assert time.monotonic() < deadline, f"{cluster.name} did not start"
                time.sleep(0.05)
        time.sleep(SETTLE_S)
        yield [process.pid or 0 for process in processes]
        for ours, _ in pipes:
            ours.send(None)
        assert [ours.recv() for ours, _ in pipes] == [alive] * len(NAMES)
    finally:
        for process in processes:
            process.join(10)
            process.kill()


def _answers(address: Address) -> bool:
    try:
        socket.create_connection((address.host, address.port), timeout=1).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _redis() -> Iterator[str]:
    """Start a Redis server; yield its URL, or "" if no program for it is installed."""
    program = shutil.which("redis-server") or shutil.which("redis-check-rdb")
    if program is None:
        yield ""
        return
    address = Address("127.0.0.1", free_port())
    process = subprocess.Popen(
        ["redis-server", "--bind", address.host, "--port", str(address.port), "--save", ""],
        executable=program,
        stdout=subprocess.DEVNULL,
    )
    try:
        while not _answers(address):
            time.sleep(0.05)
        yield f"redis://{address.host}:{address.port}"
    finally:
        process.kill()
        process.wait()


def _percent(folder: Path, sending: bool, redis: str = "") -> float:
    """Return percent of a core, of three processes together."""
    with _ring(_config(folder, sending, redis), len(NAMES) - 1 if sending else 0) as pids:
        before, began = sum(map(cpu_s, pids)), time.monotonic()
        time.sleep(ROUND_S)
        return 100 * (sum(map(cpu_s, pids)) - before) / (time.monotonic() - began)


def main() -> None:
    """Measure and report."""
    with tempfile.TemporaryDirectory() as name, _redis() as redis:
        folder = Path(name)
        kinds = [(True, ""), (False, ""), *([(True, redis)] if redis else [])]
        rounds = [[_percent(folder, *kind) for kind in kinds] for _ in range(ROUNDS)]
    beating, idle, *published = (statistics.median(side) for side in zip(*rounds, strict=True))
    rules = Membership()
    per_s = len(NAMES) * (len(NAMES) - 1)
    messages = per_s * (1 / rules.heartbeat_interval_s + 1 / rules.report_interval_s)
    report(
        "heartbeat",
        [
            Row("heartbeats and reports, ring of three", "% of a core", beating, "idle", idle),
            Row("the same, beyond idle", "% of a core", beating - idle, "the bar", BAR_PERCENT),
            Row("messages", "1/s", messages),
            Row("one message, both sides", "us", (beating - idle) / messages * 1e4),
            *(Row("through Redis", "% of a core", p, "the mesh", beating) for p in published),
        ],
    )
    print(f"\n  load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
