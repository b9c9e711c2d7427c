"""A ring's jobs over a key-value store in memory: several HAProcs, real processes, no Spark."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dmq import LogUnavailableError
from dmq.memory import MemoryKeys, MemoryKeyValueStore
from haproc.config.jobs import Jobs
from haproc.config.model import Config
from haproc.failure import log_unavailable
from haproc.jobs.book import Book, JobTokens
from haproc.jobs.relay import Relay, Relays
from haproc.jobs.request import Upload, check_program
from haproc.jobs.runner import Around, Runner
from haproc.jobs.service import JobService
from tests.unit.door_rig import make_config

PATIENCE_S = 30.0
NAMES = itertools.count()


async def _checked(user: str, upload: Upload) -> None:
    check_program(upload)


async def _at_once(name: str, offset: int) -> None:
    """Return at once: every cluster has applied everything."""


@dataclass
class Ring:
    """The parts that the HAProcs share, and each one's knowledge of the others."""

    folder: Path
    settings: Jobs = field(default_factory=lambda: Jobs(enabled=True))
    keys: MemoryKeys = field(default_factory=MemoryKeys)
    alive: dict[str, str] = field(default_factory=dict)
    closed: list[tuple[str, str]] = field(default_factory=list)
    fenced: list[int] = field(default_factory=list)
    """The jobs that were fenced, in the log's order."""
    fence_fails: set[str] = field(default_factory=set)
    """The HAProcs that cannot reach the log."""
    applies: Callable[[str, int], Awaitable[None]] = _at_once

    def config(self) -> Config:
        return replace(make_config(self.folder), jobs=self.settings)

    async def haproc(self, name: str) -> Haproc:
        """Start a HAProc."""
        return await Haproc.start(self, name)


class Haproc:
    """One HAProc's part in the jobs."""

    def __init__(self, ring: Ring, name: str) -> None:
        self.ring = ring
        self.name = name
        self.incarnation = uuid.uuid4().hex[:12]
        self.store = MemoryKeyValueStore(ring.keys)
        self.book = Book(self.store, lambda: f"{next(NAMES):032}")
        self.tokens = JobTokens(self.book)
        unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000  # noqa: E731
        config = ring.config()

        async def fence(job_id: int) -> int:
            if name in ring.fence_fails:
                raise log_unavailable("the log is away", LogUnavailableError("away"), "")
            ring.fenced.append(job_id)
            return len(ring.fenced)

        me = (name, self.incarnation)
        self.service = JobService(config, me, self.book, self.store, fence, unix_ms, _checked)

        def peers() -> tuple[dict[str, str | None], frozenset[str]]:
            return {n: i for n, i in ring.alive.items() if n != name}, frozenset()

        async def close(user: str, session_id: str) -> None:
            ring.closed.append((user, session_id))

        async def applied(offset: int) -> None:
            await ring.applies(name, offset)

        folder = ring.folder / "jobs" / name
        around = Around(
            name,
            self.incarnation,
            [],
            folder,
            ring.folder,
            peers,
            lambda: True,
            close,
            fence,
            applied,
            unix_ms,
        )
        self.runner = Runner(ring.settings, around, self.book, self.store, Relays(Relay(list)))

    @classmethod
    async def start(cls, ring: Ring, name: str) -> Haproc:
        made = cls(ring, name)
        ring.alive[name] = made.incarnation
        made.task = asyncio.ensure_future(made.runner.run_forever())
        return made

    task: asyncio.Task[Any]

    async def stop(self) -> None:
        """Stop it regularly."""
        await self.runner.aclose()
        await self.die()

    async def die(self) -> None:
        """Stop all its messages, as a crash does; its programs may live on."""
        self.ring.alive.pop(self.name, None)
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def submit(self, code: str, user: str = "ann", **more: Any) -> int:
        found = await self.service.submit(user, {"code": code, **more})
        number = found["id"]
        assert isinstance(number, int)
        return number

    async def shown(self, job_id: int) -> dict[str, Any]:
        return dict(await self.service.shown(None, job_id))

    async def log(self, job_id: int) -> list[str]:
        found = await self.service.log(None, job_id, 0, 1000)
        lines = found["log"]
        assert isinstance(lines, list)
        return [str(line) for line in lines]

    async def until(self, job_id: int, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the job, as shown here, is as wanted; with a deadline."""
        end = time.monotonic() + PATIENCE_S
        while not holds(found := await self.shown(job_id)):
            assert time.monotonic() < end, (found, await self.log(job_id))
            await asyncio.sleep(0.02)
        return found

    async def ended(self, job_id: int) -> dict[str, Any]:
        return await self.until(job_id, lambda found: found["haproc"]["outcome"] is not None)
