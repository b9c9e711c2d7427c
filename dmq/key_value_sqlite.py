"""A key-value store in a SQLite file, shared by the processes of one host; see `sqlite_handle`.

The file is all there is, and every look sees all that was put. Who asks for the same keys time and
again, while nobody puts anything, is answered from memory: every writer rings the bell before its
change counts as made (see `dmq.writer_lock`), and to hear it is a thousandth of a look.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dmq.changes import Changes
from dmq.key_value import Kept, check_key, check_value
from dmq.key_value_file import Change, Delete, Put, StoreReader, StoreWriter
from dmq.sqlite_handle import CHECK_S, FileHandle

LOOKS_MAX: Final = 4096
"""Answers kept in memory; chosen."""


@dataclass(frozen=True, slots=True)
class _Look:
    """Keys found when the bell said so much, and until when that is believed, in seconds."""

    heard: int
    until: float
    keys: tuple[str, ...]


class SqliteKeyValueStore:
    """One process's handle to the store; see `dmq.key_value.KeyValueStore`. Made by ``open``."""

    def __init__(self, file: FileHandle[Change, StoreReader]) -> None:
        self._file = file
        self._changes = Changes()
        self._waiting = 0
        self._looks: dict[str, _Look] = {}
        self._clock = asyncio.get_running_loop().time
        file.listener = self

    @classmethod
    async def open(cls, path: str | Path) -> SqliteKeyValueStore:
        """Open the store in this file, creating it if need be; raises as FileHandle.open does."""
        return cls(await FileHandle.open(path, StoreWriter, StoreReader))

    async def put(self, key: str, value: bytes) -> int:
        """See KeyValueStore.put. If the caller is cancelled the value may or may not be there."""
        check_key(key)
        check_value(key, value)
        outcome = await self._file.submit(Put(key.encode(), value))
        assert isinstance(outcome, list)
        return outcome[0]

    async def get(self, key: str) -> Kept | None:
        """See KeyValueStore.get."""
        check_key(key)
        return await self._file.ask(lambda: self._file.reader.get(key.encode()))

    async def delete(self, key: str) -> None:
        """See KeyValueStore.delete."""
        check_key(key)
        await self._file.submit(Delete(key.encode()))

    async def scan(self, prefix: str) -> dict[str, Kept]:
        """See KeyValueStore.scan."""
        return await self._file.ask(lambda: self._file.reader.scan(prefix.encode()))

    async def keys(self, prefix: str) -> list[str]:
        """See KeyValueStore.keys."""
        self._file.check_open()
        heard, now = self._file.heard(), self._clock()
        known = self._looks.get(prefix)
        if known is None or known.heard != heard or now >= known.until:
            found = await self._file.ask(lambda: self._file.reader.keys(prefix.encode()))
            if len(self._looks) >= LOOKS_MAX:
                self._looks.clear()
            known = self._looks[prefix] = _Look(heard, now + CHECK_S, tuple(found))
        return list(known.keys)

    async def revision(self) -> int:
        """See KeyValueStore.revision."""
        return await self._file.ask(self._file.reader.revision)

    async def wait(self, prefix: str, after: int, timeout_s: float) -> bool:
        """See KeyValueStore.wait."""
        self._waiting += 1
        try:
            await self.look()
            self._file.check_open()
            self._file.listen()
            return await self._changes.wait(prefix, after, timeout_s)
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """See KeyValueStore.close."""
        await self._file.close()

    # -- what its file tells it ------------------------------------------------------------

    def wanted(self) -> bool:
        """See Listener.wanted."""
        return self._waiting > 0

    def written(self, end: int) -> bool:
        """See Listener.written: changes of others may stand between its own, so it looks."""
        return False

    async def look(self) -> None:
        """See Listener.look."""
        known = self._changes.revision
        oldest, found = await self._file.ask(lambda: self._file.reader.changes(known))
        if oldest > self._changes.revision + 1:
            self._changes.begin(oldest - 1)
        for revision, key in found:
            self._changes.note(revision, key)

    def fail(self, error: Exception) -> None:
        """See Listener.fail."""
        self._changes.fail(error)
