"""A key-value store in memory, for tests, simulations and a ring of one cluster.

`MemoryKeys` is what would be on disk; `MemoryKeyValueStore` is one process's handle to it, so that
a simulated process can die and come back to the same store. Like the log in memory it starts no
thread, reads no clock, and yields to the loop in ``wait`` alone.
"""

from __future__ import annotations

from dmq.changes import Changes
from dmq.errors import LogError
from dmq.key_value import Kept, check_key, check_value


class MemoryKeys:
    """What all handles share; outlives each of them."""

    def __init__(self) -> None:
        self.revision = 0
        self.kept: dict[str, Kept] = {}
        self._listeners: list[Changes] = []

    def change(self, key: str, value: bytes | None) -> int:
        """Put a value, or with None nothing, in the key's place; return the revision."""
        self.revision += 1
        if value is None:
            self.kept.pop(key, None)
        else:
            self.kept[key] = Kept(value, self.revision)
        for changes in tuple(self._listeners):
            changes.note(self.revision, key)
        return self.revision

    def listen(self, changes: Changes) -> None:
        """Tell of every change from now on."""
        self._listeners.append(changes)
        changes.begin(self.revision)

    def leave(self, changes: Changes) -> None:
        """Stop telling."""
        self._listeners.remove(changes)


class MemoryKeyValueStore:
    """One handle to a MemoryKeys; see `dmq.key_value.KeyValueStore`."""

    def __init__(self, shared: MemoryKeys | None = None) -> None:
        self._shared = MemoryKeys() if shared is None else shared
        self._changes = Changes()
        self._closed = False
        self._shared.listen(self._changes)

    async def put(self, key: str, value: bytes) -> int:
        """See KeyValueStore.put."""
        self._check_open()
        check_key(key)
        check_value(key, value)
        return self._shared.change(key, bytes(value))

    async def get(self, key: str) -> Kept | None:
        """See KeyValueStore.get."""
        self._check_open()
        check_key(key)
        return self._shared.kept.get(key)

    async def delete(self, key: str) -> None:
        """See KeyValueStore.delete."""
        self._check_open()
        check_key(key)
        if key in self._shared.kept:
            self._shared.change(key, None)

    async def scan(self, prefix: str) -> dict[str, Kept]:
        """See KeyValueStore.scan."""
        return {key: self._shared.kept[key] for key in await self.keys(prefix)}

    async def keys(self, prefix: str) -> list[str]:
        """See KeyValueStore.keys."""
        self._check_open()
        return sorted(key for key in self._shared.kept if key.startswith(prefix))

    async def revision(self) -> int:
        """See KeyValueStore.revision."""
        self._check_open()
        return self._shared.revision

    async def wait(self, prefix: str, after: int, timeout_s: float) -> bool:
        """See KeyValueStore.wait."""
        self._check_open()
        return await self._changes.wait(prefix, after, timeout_s)

    async def close(self) -> None:
        """See KeyValueStore.close."""
        if not self._closed:
            self._closed = True
            self._shared.leave(self._changes)
            self._changes.fail(LogError("the store was closed"))

    def _check_open(self) -> None:
        if self._closed:
            raise LogError("the store was closed")
