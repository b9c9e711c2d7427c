"""The cost of a write for each HAProc of rings of several sizes, on clusters that cost nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import uvloop

import haclient.aio
from bench.draining import NullEngine, ring_config
from bench.measures import cpu_s
from bench.report import Row
from haproc.cli.nodes import prepare_process
from haproc.config.model import Config
from haproc.node.node import Node
from tests.simulation.clock import run
from tests.simulation.directed import ddl
from tests.simulation.ring import Ring
from tests.simulation.scenario import insert

SIZES: Final = (2, 3, 5)
SIMULATED: Final = (3, 10, 50)
CLIENTS: Final = 32
WRITES: Final = 5_000
SIMULATED_WRITES: Final = 300
SIMULATED_CLIENTS: Final = 30
WAIT_S: Final = 120.0


def ring_rows(folder: Path) -> list[Row]:
    """Return what a write costs who takes it and who follows, in rings of real processes."""
    found = {size: _ring(folder, size) for size in SIZES}
    rows: list[Row] = []
    for which, name in enumerate(("who takes it", "who follows")):
        for size, costs in found.items():
            rows.append(
                Row(
                    f"processor time of a write, {name}",
                    "us",
                    costs[which],
                    f"in a ring of {SIZES[0]}",
                    found[SIZES[0]][which],
                    over="HAProcs",
                    at=size,
                )
            )
    return rows


def _ring(folder: Path, size: int) -> tuple[float, float]:
    """Return microseconds of the HAProc that takes the writes, and of each other one."""
    with (
        tempfile.TemporaryDirectory(dir=folder) as name,
        _serving(ring_config(Path(name), size)) as (config, pids),
    ):
        servers = [config.url(config.clusters[0].listen)]
        asyncio.run(_write(servers, WRITES // 10))
        _settled(config)
        before = [cpu_s(pid) for pid in pids]
        asyncio.run(_write(servers, WRITES))
        _settled(config)
        took = [(cpu_s(pid) - was) / WRITES * 1e6 for pid, was in zip(pids, before, strict=True)]
    return took[0], sum(took[1:]) / (size - 1)


@contextlib.contextmanager
def _serving(config: Config) -> Iterator[tuple[Config, list[int]]]:
    """Start a ring's HAProcs, each in a process of its own, and wait until all serve."""
    config.state_dir.mkdir()
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_serve, args=(config, cluster.name)) for cluster in config.clusters
    ]
    for process in processes:
        process.start()
    try:
        _settled(config)
        yield config, [process.pid or 0 for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _serve(config: Config, name: str) -> None:
    prepare_process()
    uvloop.run(Node(config, name, lambda config, name: NullEngine()).run())


async def _write(servers: list[str], count: int) -> None:
    numbers = iter(range(count))
    async with haclient.aio.connect(servers, discover=False, timeout_s=WAIT_S) as connection:

        async def write() -> None:
            async with connection.cursor() as cursor:
                for number in numbers:
                    await cursor.execute(f"INSERT INTO t VALUES ({number}, 'n{number}', 1.5, 0)")

        await asyncio.gather(*(write() for _ in range(CLIENTS)))


def _settled(config: Config) -> None:
    """Wait until each HAProc is READY and has applied all."""
    end = time.monotonic() + WAIT_S
    for cluster in config.clusters:
        while not _is_settled(config.url(cluster.peer) + "/clusterStatus"):
            assert time.monotonic() < end, f"{cluster.name} does not settle"
            time.sleep(0.05)


def _is_settled(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            status: dict[str, Any] = json.load(response)
    except (OSError, urllib.error.HTTPError):
        return False
    return bool(status["state"] == "READY" and status["lag"] == 0)


# -- simulated ---------------------------------------------------------------------------------


def simulated_rows() -> list[Row]:
    """Return what a write costs each member of rings on a virtual clock, and what idling."""
    found = {size: run(_simulated(size)) for size in SIMULATED}
    first = SIMULATED[0]
    return [
        Row(name, "us", pick(costs), f"in a ring of {first}", pick(found[first]), over=over, at=n)
        for name, pick in _PICKS.items()
        for n, costs in found.items()
        for over in ("simulated HAProcs",)
    ]


_PICKS: Final[dict[str, Callable[[tuple[float, float]], float]]] = {
    "processor time of a write, each member": lambda costs: costs[0],
    "processor time of an idle second, each member": lambda costs: costs[1],
}


async def _simulated(size: int) -> tuple[float, float]:
    """Return microseconds of a write, and of a second in which nothing happens, for each member."""
    ring = Ring(14, size=size)
    for node in ring.nodes.values():
        node.start()
    await ring.settled()
    await ring.submit("a", ddl("a"), WAIT_S)
    await ring.settled()
    idle_s, idle_cpu_s = await _cost(asyncio.sleep(20))
    busy_s, busy_cpu_s = await _cost(_written(ring))
    of_writes_s = busy_cpu_s - idle_cpu_s * busy_s / idle_s
    return of_writes_s / SIMULATED_WRITES / size * 1e6, idle_cpu_s / idle_s / size * 1e6


async def _cost(work: Any) -> tuple[float, float]:
    """Return the virtual seconds and the seconds of processor time that something takes."""
    clock, began = asyncio.get_running_loop().time, time.process_time()
    at = clock()
    await work
    return clock() - at, time.process_time() - began


async def _written(ring: Ring) -> None:
    numbers = iter(range(SIMULATED_WRITES))

    async def write() -> None:
        for number in numbers:
            name = ring.names[number % len(ring.names)]
            await ring.submit(name, insert(f"r{number}", "t", name), WAIT_S)

    await asyncio.gather(*(write() for _ in range(SIMULATED_CLIENTS)))
    await ring.settled()
