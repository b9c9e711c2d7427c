"""A store's topic in Kafka: what its messages hold, and the index that a process keeps of them."""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from dmq.log import LogCorruptError, UnknownVersionError

# What the messages of a key-value store in Kafka hold. Pure.
#
# The topic has two partitions. In the first, under each key, stands what is kept there: a small
# value itself, or the *head* of a large one. The pieces of large values stand in the second, so
# that a process that opens the store reads the keys, not the bytes of every blob. A large value is
# written as:
#
# 1. a *manifest* in the first partition, which names the value's id, its key, and how many pieces;
# 2. the pieces, each under a key of its own, made of the id and its number;
# 3. the head under the value's key, which makes it visible, as a whole.
#
# So whatever a writer leaves behind when it dies, or when its value is replaced, is named by a
# manifest; and a manifest that no head goes with may be cleared away with all of its pieces.
#
# The first byte of a message is its kind; an unknown one is refused, never guessed.


KEYS_PARTITION: Final = 0
PIECES_PARTITION: Final = 1
ID_BYTES: Final = 16
MANIFEST_MARK: Final = b"\0"
"""Begins the key of a manifest; no key of the store's users has it."""

_SMALL: Final = b"\x01"
_HEAD: Final = b"\x02"
_MANIFEST: Final = b"\x03"
_HEAD_FORM: Final = struct.Struct(f">{ID_BYTES}sQQIQI")
_COUNT: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Head:
    """A large value: its id, between which offsets its pieces are, and what they make up."""

    id: bytes
    first: int
    last: int
    pieces: int
    size_bytes: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A large value that is there, or was to be."""

    id: bytes
    key: str
    pieces: int


Stored: TypeAlias = bytes | Head
"""A key's value, or where it is."""


def small_message(value: bytes) -> bytes:
    """Return the message of a value that stands under its key."""
    return _SMALL + value


def head_message(head: Head) -> bytes:
    """Return the message that makes a large value visible."""
    return _HEAD + _HEAD_FORM.pack(
        head.id, head.first, head.last, head.pieces, head.size_bytes, head.crc32
    )


def manifest_message(manifest: Manifest) -> tuple[bytes, bytes]:
    """Return the key and the message of a manifest."""
    return (
        MANIFEST_MARK + manifest.id,
        _MANIFEST + _COUNT.pack(manifest.pieces) + manifest.key.encode(),
    )


def read_stored(message: bytes) -> Stored:
    """Return the content of a message under a user's key."""
    try:
        if message[:1] == _SMALL:
            return message[1:]
        if message[:1] == _HEAD:
            return Head(*_HEAD_FORM.unpack(message[1:]))
    except struct.error as error:
        raise LogCorruptError(
            f"what names the pieces of a value cannot be read: {error}"
        ) from error
    raise UnknownVersionError(
        f"a value of form {message[:1]!r} was written by a newer version of dmq: upgrade it"
    )


def read_manifest(key: bytes, message: bytes) -> Manifest | None:
    """Return the manifest that a message under such a key is; None for a newer version's."""
    if message[:1] != _MANIFEST or len(message) < 1 + _COUNT.size:
        return None
    (pieces,) = _COUNT.unpack_from(message, 1)
    return Manifest(key[len(MANIFEST_MARK) :], message[1 + _COUNT.size :].decode(), pieces)


def piece_key(value_id: bytes, number: int) -> bytes:
    """Return the key of a piece."""
    return value_id + _COUNT.pack(number)


def pieces_in(size_bytes: int, piece_max: int) -> int:
    """Return the number of pieces of a value of this size."""
    return -(-size_bytes // piece_max)


def joined(head: Head, pieces: Mapping[bytes, bytes]) -> bytes:
    """Return the value of these pieces, by their keys."""
    value = b"".join(pieces[piece_key(head.id, number)] for number in range(head.pieces))
    if len(value) != head.size_bytes or zlib.crc32(value) != head.crc32:
        raise LogCorruptError("the pieces of a value are not those that were written")
    return value


# What a process keeps in memory of a store in Kafka: the keys, and where their values are.
#
# Values are not kept here, but for the newest and those last used, up to a limit. Decisions only.


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
