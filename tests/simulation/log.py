"""The shared parts of a simulated ring: a log and a key-value store, and the paths to them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from dmq import Cursor, Entry, Kept, LogUnavailableError, MemoryKeyValueStore, Record, decode
from dmq.memory import MemoryLog, MemoryStore
from haproc.replicate.records.operation import Filler, Message, from_record

if TYPE_CHECKING:
    from tests.simulation.life import Life
    from tests.simulation.ring import Ring

T = TypeVar("T")


class KeepingStore(MemoryStore):
    """Keeps the trimmed records, too, for checkers."""

    def __init__(self) -> None:
        super().__init__()
        self.everything: list[bytes] = []
        """The records, by offset."""
        self._messages: list[Message | Filler] = []

    def append_stored(self, encoded: Sequence[bytes]) -> list[int]:
        self.everything.extend(encoded)
        return super().append_stored(encoded)

    def all_messages(self) -> list[Message | Filler]:
        """Return all records that there ever were, by offset.

        A story asks a thousand times, so each record is decoded once.
        """
        new = self.everything[len(self._messages) :]
        self._messages += [from_record(decode(data)) for data in new]
        return self._messages

    def messages(self) -> list[Message | Filler]:
        """Return all records that the log holds."""
        return self.all_messages()[len(self.everything) - (self.end - self.start) :]


class _Reaching:
    """A path that may be cut, is slow, loses calls and answers, and ends with its process."""

    def __init__(self, ring: Ring, life: Life) -> None:
        self._ring = ring
        self._life = life

    async def _reach(self, call: Callable[[], Awaitable[T]]) -> T:
        ring = self._ring
        await self._life.check()
        await asyncio.sleep(ring.delay_s(self._life.node.name))
        await self._life.check()
        cut = self._life.node.name in ring.cut | ring.cut_from_log
        if cut or ring.weather.log_away or ring.rng.random() < ring.weather.log_error_rate / 2:
            raise LogUnavailableError("away")
        result = await call()
        await self._life.check()
        if ring.rng.random() < ring.weather.log_error_rate / 2:
            raise LogUnavailableError("the answer was lost")
        return result


class SimLog(_Reaching):
    """The shared log as one incarnation reaches it."""

    def __init__(self, ring: Ring, life: Life) -> None:
        super().__init__(ring, life)
        self._log = MemoryLog(ring.store)
        self.of = life.node.name

    async def append(self, records: Sequence[Record]) -> list[int]:
        return await self._reach(lambda: self._log.append(records))

    async def read(
        self, start: int, *, records_max: int = 1024, bytes_max: int = 16 << 20
    ) -> list[Entry]:
        return await self._reach(lambda: self._log.read(start, records_max=records_max))

    async def wait(self, offset: int, timeout_s: float) -> bool:
        await self._life.check()
        return await self._log.wait(offset, timeout_s)

    async def start(self) -> int:
        return await self._reach(self._log.start)

    async def end(self) -> int:
        return await self._reach(self._log.end)

    async def load_cursor(self, reader: str) -> Cursor | None:
        return await self._reach(lambda: self._log.load_cursor(reader))

    async def commit_cursor(self, reader: str, cursor: Cursor) -> None:
        await self._reach(lambda: self._log.commit_cursor(reader, cursor))

    async def cursors(self) -> Mapping[str, Cursor]:
        return await self._reach(self._log.cursors)

    async def trim(self, before: int) -> None:
        await self._reach(lambda: self._log.trim(before))
        self._ring.trimmed(self._life.node.name, before)

    async def identity(self) -> str:
        return await self._reach(self._log.identity)

    async def close(self) -> None:
        await self._log.close()


class SimKeyedStore(_Reaching):
    """The shared key-value store as one incarnation reaches it."""

    def __init__(self, ring: Ring, life: Life) -> None:
        super().__init__(ring, life)
        self._store = MemoryKeyValueStore(ring.keyed)

    async def put(self, key: str, value: bytes) -> int:
        return await self._reach(lambda: self._store.put(key, value))

    async def get(self, key: str) -> Kept | None:
        return await self._reach(lambda: self._store.get(key))

    async def delete(self, key: str) -> None:
        await self._reach(lambda: self._store.delete(key))

    async def scan(self, prefix: str) -> dict[str, Kept]:
        return await self._reach(lambda: self._store.scan(prefix))

    async def keys(self, prefix: str) -> list[str]:
        return await self._reach(lambda: self._store.keys(prefix))

    async def revision(self) -> int:
        return await self._reach(self._store.revision)

    async def wait(self, prefix: str, after: int, timeout_s: float) -> bool:
        await self._life.check()
        return await self._store.wait(prefix, after, timeout_s)

    async def close(self) -> None:
        await self._store.close()
