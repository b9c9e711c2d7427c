"""The backends that the contract suite runs over.

A new backend is one class here and one entry in BACKENDS. What a backend cannot do by its nature
(a log in memory is not seen by other processes) is said by a property, never by a skipped error.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Protocol

from dmq import Log, MemoryLog, MemoryStore, open_log

RECORD_BYTES_MAX = (8 << 20) + (64 << 10)


class Backend(Protocol):
    """One fresh log, and ways to reach it."""

    survives_processes: ClassVar[bool]
    """Other processes can reach the log by ``url``, and it outlives them."""

    @property
    def url(self) -> str: ...

    async def open(self) -> Log:
        """Return another handle to the log."""
        ...

    async def append_stored(self, data: bytes) -> int:
        """Append a record of any bytes, as a newer or a broken writer would; return its offset."""
        ...


class MemoryBackend:
    """Handles share one store."""

    survives_processes = False
    url = "memory:"

    def __init__(self, folder: Path) -> None:
        self._store = MemoryStore(record_bytes_max=RECORD_BYTES_MAX)

    async def open(self) -> Log:
        return MemoryLog(self._store)

    async def append_stored(self, data: bytes) -> int:
        return self._store.append_stored([data])[0]


class SqliteBackend:
    """A file in the test's folder."""

    survives_processes = True

    def __init__(self, folder: Path) -> None:
        self._path = folder / "log.db"

    @property
    def url(self) -> str:
        return f"sqlite://{self._path}"

    async def open(self) -> Log:
        return await open_log(self.url, record_bytes_max=RECORD_BYTES_MAX)

    async def append_stored(self, data: bytes) -> int:
        db = sqlite3.connect(self._path, isolation_level=None)
        try:
            db.execute("INSERT INTO records (data) VALUES (?)", (data,))
            return int(db.execute("SELECT max(offset) FROM records").fetchone()[0])
        finally:
            db.close()


BACKENDS: dict[str, Callable[[Path], Backend]] = {
    "memory": MemoryBackend,
    "sqlite": SqliteBackend,
}
