"""A member over a log in memory and a cluster that does nothing, to see its own memory use."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from dmq.memory import MemoryKeyValueStore, MemoryLog, MemoryStore
from haproc.config.model import OnForeignWrite, Timeouts
from haproc.config.sections import Limits
from haproc.engine.interface import Applied, Column, Settings, TransactionMarker
from haproc.engine.statement import Statement
from haproc.replicate.agree.foreign_watch import ForeignWatch
from haproc.replicate.member.condition import Identity
from haproc.replicate.member.core import Core, Reached
from haproc.replicate.records.operation import Operation, to_record
from haproc.replicate.replica import Replica


class PackedStore(MemoryStore):
    """Keeps records compressed: each reader gets its own copy."""

    def append_stored(self, encoded: Sequence[bytes]) -> list[int]:
        return super().append_stored([zlib.compress(data, 1) for data in encoded])

    def stored_from(self, offset: int, records_max: int, bytes_max: int) -> list[tuple[int, bytes]]:
        taken: list[tuple[int, bytes]] = []
        size = 0
        while offset < self.end and len(taken) < max(1, records_max):
            ((_, packed),) = super().stored_from(offset, 1, bytes_max)
            data = zlib.decompress(packed)
            size += len(data)
            if taken and size > bytes_max:
                break
            taken.append((offset, data))
            offset += 1
        return taken


class NullLane:
    """Accepts statements, and reports that each was applied."""

    def __init__(self, engine: NullEngine) -> None:
        self._engine = engine

    async def apply(
        self,
        write: Statement,
        settings: Settings,
        marker: TransactionMarker | None,
        *,
        timeout_s: float,
    ) -> Applied:
        return await self._engine.apply(write)

    async def fence(self) -> None:
        pass

    def renew(self) -> None:
        pass

    async def prepare(self) -> None:
        pass


class NullEngine:
    """A cluster with unknown tables. ``apply`` returns the result of a statement."""

    async def apply(self, write: Statement) -> Applied:
        await asyncio.sleep(0.01)
        return Applied()

    async def probe(self, *, timeout_s: float) -> None:
        pass

    async def storage(self, known: str) -> str:
        return "storage"

    def lane(self, index: int, authorise: Callable[[], Awaitable[None]]) -> NullLane:
        return NullLane(self)

    async def check_tables(self, tables: Sequence[str]) -> None:
        pass

    async def keeps_marks(self, table: str) -> bool:
        return True

    async def plain_columns(self, table: str) -> Sequence[Column] | None:
        return None

    async def offsets_applied(self, tables: Sequence[str], application: str) -> Mapping[str, int]:
        return {}

    async def staged(self) -> Collection[str]:
        return ()


@asynccontextmanager
async def member(
    operations: Iterable[Operation], engine: NullEngine, limits: Limits | None = None
) -> AsyncIterator[Replica]:
    """Yield the only member of a ring, whose log begins with these operations."""
    log: Any = MemoryLog(PackedStore())
    limits = limits or Limits()
    for op in operations:
        sent = replace(op, since=0, window=limits.window_records)
        await log.append([to_record(sent)])
    identity = Identity("demo", "a", "a1", ("a",))
    nobody: Any = None
    core = Core.of(identity, Reached(log, engine, nobody), limits, Timeouts())  # type: ignore[arg-type]
    replica = Replica(core, ForeignWatch(core, MemoryKeyValueStore(), OnForeignWrite.IGNORE))
    running = asyncio.ensure_future(replica.run())
    try:
        yield replica
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
