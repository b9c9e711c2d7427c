"""How far the archive is, as the ring knows it: all below is in a table of the ring.

Kept in the key-value store, so that it outlives the archive's program and every HAProc. Of two that
store it at a time the lower one may stay: then the log keeps more than it had to.
"""

from __future__ import annotations

from typing import Final

from dmq import KeyValueStore

_KEY: Final = "archive/position"


class ArchivePosition:
    """See the module. Its methods raise LogError."""

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store

    async def read(self) -> int:
        """Return the offset below which all is archived; 0 if nothing is."""
        kept = await self._store.get(_KEY)
        return 0 if kept is None else int(kept.value)

    async def move(self, below: int) -> None:
        """Note that all below an offset is archived; it never goes back."""
        if below > await self.read():
            await self._store.put(_KEY, str(below).encode())
