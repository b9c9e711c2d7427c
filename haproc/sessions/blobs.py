"""Pieces of files in the ring's store, by their SHA-256, once for all sessions that need them.

A piece is stored in *copies*, each under a key with the time at which it was written:
``blob/SHA256/MILLISECONDS.NAME``. Whoever needs a piece first notes that (`Key.needs`), and then
relies on a copy only if that is younger than half the grace; else it writes one. A copy is deleted
once it is older than the grace and no session needs it, or a newer one is there. So whoever
deletes, however late and by whatever old look, deletes no copy that somebody came to rely on since.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from dmq.key_value import KeyValueStore
from haproc.failure import ErrorClass, RequestError, refused
from haproc.sessions.durable import reached
from haproc.sessions.ownership import Key

BLOBS: Final = "blob/"
PIECE_BYTES_MAX: Final = 1 << 20
"""Of a file; chosen: what a broker takes as one message by default."""
GRACE_MS: Final = 3_600_000
"""How long a copy stays that no session needs. Chosen: far above what clocks differ by."""
_LOOKS_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Copy:
    """One stored copy of a piece."""

    key: str
    sha256: str
    written_ms: int


def copy_of(key: str) -> Copy:
    """Return what a key says of its copy."""
    _, sha256, written = key.split("/")
    return Copy(key, sha256, int(written.partition(".")[0]))


@dataclass(frozen=True, slots=True)
class Blobs:
    """See the module. Methods raise RequestError."""

    store: KeyValueStore
    new_name: Callable[[], str]
    unix_ms: Callable[[], int]

    async def put(self, key: Key, data: bytes) -> str:
        """Make a piece durable that the session needs; return its SHA-256 (hex)."""
        sha256 = hashlib.sha256(data).hexdigest()
        await self.need(key, sha256)
        copies = await self._copies(sha256)
        fresh_from = self.unix_ms() - GRACE_MS // 2
        if not any(copy.written_ms >= fresh_from for copy in copies):
            name = f"{BLOBS}{sha256}/{self.unix_ms()}.{self.new_name()}"
            await reached(self.store.put(name, data))
        return sha256

    async def need(self, key: Key, sha256: str) -> None:
        """Note that the session needs a piece."""
        await reached(self.store.put(key.needs(sha256), b""))

    async def get(self, sha256: str) -> bytes:
        """Return a piece."""
        for _ in range(_LOOKS_MAX):
            copies = await self._copies(sha256)
            if not copies:
                break
            newest = max(copies, key=lambda copy: copy.written_ms)
            kept = await reached(self.store.get(newest.key))
            if kept is not None:
                return kept.value
        raise _gone(sha256)

    async def _copies(self, sha256: str) -> list[Copy]:
        return [copy_of(key) for key in await reached(self.store.keys(f"{BLOBS}{sha256}/"))]


def _gone(sha256: str) -> RequestError:
    return refused(
        ErrorClass.SESSION_NOT_REBUILT,
        f"a file of the session is gone from the ring's store (sha256 {sha256})",
        "go on in a new session, and add the file there",
    )
