"""What a process keeps in memory of a store in Kafka: the keys, and where their values are.

Values are not kept here, but for the newest and those last used, up to a limit. Decisions only.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from typing import Final

from dmq.key_value_parts import MANIFEST_MARK, Head, Manifest, Stored, read_manifest, read_stored

CACHE_BYTES_MAX: Final = 32 << 20
CACHED_VALUE_BYTES_MAX: Final = 8 << 20
"""A larger value is fetched whenever it is asked for."""
UNOWNED_KEPT_S: Final = 300.0
"""Pieces that no head goes with are spared for so long: their head may be to come, or somebody may
be reading them. A put gives up long before."""


class Cache:
    """Values by the offset of what put them there; those not used for longest are dropped."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._values: OrderedDict[int, bytes] = OrderedDict()
        self._size = 0

    def get(self, offset: int) -> bytes | None:
        """Return a value, if it is kept."""
        value = self._values.get(offset)
        if value is not None:
            self._values.move_to_end(offset)
        return value

    def add(self, offset: int, value: bytes) -> None:
        """Keep a value, if it is not too large."""
        if len(value) > CACHED_VALUE_BYTES_MAX or offset in self._values:
            return
        self._values[offset] = value
        self._size += len(value)
        while self._size > self._bytes_max:
            self._size -= len(self._values.popitem(last=False)[1])

    def drop(self, offset: int) -> None:
        """Forget a value that is no more."""
        self._size -= len(self._values.pop(offset, b""))


class Index:
    """The keys of the store up to an offset of its first partition."""

    def __init__(self) -> None:
        self.end = 0
        self.cache = Cache(CACHE_BYTES_MAX)
        self._offsets: dict[str, int] = {}
        self._keys: list[str] = []
        self._heads: dict[int, Head] = {}
        """By the offset that they are at, as are values."""
        self._manifests: dict[bytes, tuple[Manifest, float]] = {}
        """By the value's id, with the time at which it was last seen to be owned."""

    def take(self, offset: int, key: bytes, message: bytes | None, now_s: float) -> str | None:
        """Take in the next message; return the key that it changes, if it is one of the users'.

        Raises UnknownVersionError for what a newer version wrote.
        """
        name: str | None = None
        if key.startswith(MANIFEST_MARK):
            self._take_manifest(key, message, now_s)
        else:
            name = key.decode()
            stored: Stored | None = None if message is None else read_stored(message)
            self._forget(name)
            if stored is not None:
                self._remember(name, offset, stored)
        self.end = offset + 1
        return name

    def offset(self, key: str) -> int | None:
        """Return the offset of what a key keeps, or None."""
        return self._offsets.get(key)

    def head(self, offset: int) -> Head | None:
        """Return the head at this offset; None for a small value."""
        return self._heads.get(offset)

    def below(self, prefix: str) -> list[str]:
        """Return the keys that begin so, in order."""
        found: list[str] = []
        for index in range(bisect_left(self._keys, prefix), len(self._keys)):
            if not self._keys[index].startswith(prefix):
                break
            found.append(self._keys[index])
        return found

    def unowned(self, now_s: float) -> Iterator[Manifest]:
        """Yield the manifests whose values have been without a head for long enough."""
        owned = {head.id for head in self._heads.values()}
        for value_id, (manifest, since_s) in list(self._manifests.items()):
            if value_id in owned:
                self._manifests[value_id] = (manifest, now_s)
            elif now_s - since_s >= UNOWNED_KEPT_S:
                yield manifest

    def _take_manifest(self, key: bytes, message: bytes | None, now_s: float) -> None:
        manifest = None if message is None else read_manifest(key, message)
        if manifest is not None:
            self._manifests[manifest.id] = (manifest, now_s)
        else:
            self._manifests.pop(key[len(MANIFEST_MARK) :], None)

    def _remember(self, key: str, offset: int, stored: Stored) -> None:
        self._offsets[key] = offset
        insort(self._keys, key)
        if isinstance(stored, Head):
            self._heads[offset] = stored
        else:
            self.cache.add(offset, stored)

    def _forget(self, key: str) -> None:
        offset = self._offsets.pop(key, None)
        if offset is not None:
            del self._keys[bisect_left(self._keys, key)]
            self._heads.pop(offset, None)
            self.cache.drop(offset)
