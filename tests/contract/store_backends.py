"""The backends for the contract suite of the key-value store; see `log_backends`."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any, ClassVar, Protocol

from dmq import KeyValueStore, MemoryKeys, MemoryKeyValueStore, open_store
from tests.contract.log_backends import KAFKA_OPTIONS


class StoreBackend(Protocol):
    """One fresh store, and ways to reach it; a test closes the handles that it opens."""

    survives_processes: ClassVar[bool]
    """Other processes can reach the store by ``url``, and it outlives them."""

    @property
    def url(self) -> str: ...

    async def open(self) -> KeyValueStore:
        """Return another handle to the store."""
        ...


class MemoryBackend:
    """Handles share one map."""

    survives_processes: ClassVar = False
    url = "memory:"

    def __init__(self, folder: Path) -> None:
        self._shared = MemoryKeys()

    async def open(self) -> KeyValueStore:
        return MemoryKeyValueStore(self._shared)


class SqliteBackend:
    """A file in the test's folder, in the place of its log."""

    survives_processes: ClassVar = True

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite://{folder / 'log.db'}"

    async def open(self) -> KeyValueStore:
        return await open_store(self.url)


class KafkaBackend:
    """A topic of the broker that all tests share, beside the topic of its log."""

    survives_processes: ClassVar = True

    def __init__(self, servers: str) -> None:
        self.url = f"kafka://{servers}/log-{uuid.uuid4().hex}"

    async def open(self) -> KeyValueStore:
        return await open_store(self.url, kafka=KAFKA_OPTIONS)


STORE_BACKENDS: dict[str, Any] = {
    "memory": MemoryBackend,
    "sqlite": SqliteBackend,
    "kafka": KafkaBackend,
}
