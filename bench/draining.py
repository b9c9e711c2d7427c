"""One HAProc in this process that drains a backlog, on a cluster that has everything done at once.

The HAProc is the real one, with its doors and its log in SQLite. What is taken is the time from its
first look at its cluster, just before it begins to read, until its cursor is stored behind the last
operation; and what its process holds in memory meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.null_engine import NullEngine, NullLane
from dmq import Log, open_log
from haproc.config.model import Address, ClusterConfig, Config
from haproc.engine.interface import EngineAddress, TransactionMarker
from haproc.node.node import Node
from haproc.ring.ports import free_ports

POLL_S: Final = 0.001
WAIT_S: Final = 900.0
NAMES: Final = "abcde"
OTHER, DRAINING = NAMES[0], NAMES[1]


@dataclass(frozen=True, slots=True)
class Drained:
    """What one backlog took; ``units``: statements for the cluster."""

    seconds: float
    cpu_seconds: float
    units: int


def ring_config(folder: Path, size: int) -> Config:
    """Return the configuration of a ring whose log is in this folder."""
    ports = iter(free_ports(2 * size))
    here = "127.0.0.1"
    clusters = tuple(
        ClusterConfig(
            name,
            Address(here, next(ports)),
            Address(here, next(ports)),
            EngineAddress(here, 1),
        )
        for name in NAMES[:size]
    )
    return Config(
        "bench",
        f"sqlite://{folder}/log.db",
        clusters,
        "a-secret-of-usual-length",
        folder / "state",
        allow_anonymous=True,
    )


class _Watched(NullEngine):
    """Knows when it was first asked, and when the last operation was done."""

    def __init__(self, count: int) -> None:
        super().__init__(self._applied)
        self._left = count
        self.last = asyncio.Event()
        self.began: tuple[float, float] | None = None
        self.units = 0

    def lane(self, index: int, authorise: object) -> NullLane:
        """Return one; from the first on the time counts."""
        if self.began is None:
            self.began = time.perf_counter(), time.process_time()
        return NullLane(self._applied)

    def _applied(self, marker: TransactionMarker | None) -> None:
        self.units += 1
        if marker is not None and marker.version >= self._left - 1:
            self.last.set()


async def drain(config: Config, count: int) -> Drained:
    """Run a HAProc until it has drained a log of so many operations."""
    engine: _Watched | None = None

    def null(config: Config, name: str) -> _Watched:
        nonlocal engine
        engine = _Watched(count)
        return engine

    node = Node(config, DRAINING, null)
    running = asyncio.ensure_future(node.run())
    log = await open_log(config.log)
    try:
        async with asyncio.timeout(WAIT_S):
            while engine is None:  # noqa: ASYNC110
                await asyncio.sleep(POLL_S)
            await engine.last.wait()
            await _stored(log, count)
            seconds, cpu = time.perf_counter(), time.process_time()
    finally:
        await log.close()
        node.stop()
        await running
    assert engine.began is not None
    began_s, began_cpu_s = engine.began
    return Drained(seconds - began_s, cpu - began_cpu_s, engine.units)


async def _stored(log: Log, offset: int) -> None:
    while (cursor := await log.load_cursor(DRAINING)) is None or cursor.offset < offset:  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
