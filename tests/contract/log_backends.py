"""The backends for the contract suite.

A new backend is one class here and one entry in BACKENDS. The limits of a backend (a log in memory
is not visible to other processes) are declared by a property, never by a skipped error.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from kafka import KafkaProducer

from dmq import KafkaOptions, Log, LogUnavailableError, MemoryLog, MemoryStore, open_log

T = TypeVar("T")
RECORD_BYTES_MAX = (8 << 20) + (64 << 10)
KAFKA_OPTIONS = KafkaOptions(replication_factor=1, min_insync_replicas=1)
"""For a single broker."""


class Backend(Protocol):
    """One fresh log, and ways to reach it; a test closes the handles that it opens."""

    survives_processes: ClassVar[bool]
    """Other processes can reach the log by ``url``, and it outlives them."""
    appends_whole: ClassVar[bool]
    """One append's records are adjacent, and a writer that dies leaves all or none."""

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

    survives_processes: ClassVar = False
    appends_whole: ClassVar = True
    url = "memory:"

    def __init__(self, folder: Path) -> None:
        self._store = MemoryStore(record_bytes_max=RECORD_BYTES_MAX)

    async def open(self) -> Log:
        return MemoryLog(self._store)

    async def append_stored(self, data: bytes) -> int:
        return self._store.append_stored([data])[0]


class SqliteBackend:
    """A file in the test's folder."""

    survives_processes: ClassVar = True
    appends_whole: ClassVar = True

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


class KafkaBackend:
    """A topic of the broker that all tests share."""

    survives_processes: ClassVar = True
    appends_whole: ClassVar = False

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._topic = f"log-{uuid.uuid4().hex}"

    @property
    def url(self) -> str:
        return f"kafka://{self._servers}/{self._topic}"

    async def open(self) -> Log:
        return await open_log(self.url, record_bytes_max=RECORD_BYTES_MAX, kafka=KAFKA_OPTIONS)

    async def append_stored(self, data: bytes) -> int:
        return await asyncio.to_thread(append_message, self._servers, self._topic, data)


async def until_works(call: Callable[[], Awaitable[T]]) -> T:
    """Try until the backend is available."""
    async with asyncio.timeout(60.0):
        while True:
            with contextlib.suppress(LogUnavailableError):
                return await call()
            await asyncio.sleep(0.02)


def append_message(servers: str, topic: str, data: bytes) -> int:
    """Put a message into a topic with Kafka's own client; return its offset."""
    producer = KafkaProducer(bootstrap_servers=servers)
    try:
        return int(producer.send(topic, data, partition=0).get(10).offset)
    finally:
        producer.close()


BACKENDS: dict[str, Any] = {
    "memory": MemoryBackend,
    "sqlite": SqliteBackend,
    "kafka": KafkaBackend,
}
