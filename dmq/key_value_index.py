"""A store's topic in Kafka: the form of its messages, and each process's index of them."""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from dmq.log import LogCorruptError, UnknownVersionError

# The messages of a key-value store in Kafka. No side effects.
#
# The topic has two partitions. The first has a message for each key: a small value itself, or the
# *head* of a large one. The second has the pieces of large values, so that a process that opens the
# store reads the keys, not the bytes of every large value. A large value is written as:
#
# 1. a *manifest* in the first partition: the value's id, its key, and the number of pieces;
# 2. the pieces, each under a key of its own, made of the id and its number;
# 3. the head under the value's key, which makes it visible, as a whole.
#
# So all pieces that a dead writer or a replaced value left behind are named by a manifest. A
# manifest without a head may be deleted with all of its pieces.
#
# The first byte of a message is its kind; an unknown one is refused, never guessed.


KEYS_PARTITION: Final = 0
PIECES_PARTITION: Final = 1
ID_BYTES: Final = 16
MANIFEST_MARK: Final = b"\0"
"""The first byte of a manifest's key; no key of the store's users begins with it."""

_SMALL: Final = b"\x01"
_HEAD: Final = b"\x02"
_MANIFEST: Final = b"\x03"
_HEAD_FORM: Final = struct.Struct(f">{ID_BYTES}sQQIQI")
_COUNT: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Head:
    """What is stored under the key of a large value: where its pieces are.

    Its id, the offsets of the first and last piece, their number, and the value's size and
    checksum.
    """

    id: bytes
    first: int
    last: int
    pieces: int
    size_bytes: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """An entry for a large value that is stored or was begun: its id, key and number of pieces."""

    id: bytes
    key: str
    pieces: int


Stored: TypeAlias = bytes | Head
"""The content of a key's message: a small value itself, or the head of a large one."""


def small_message(value: bytes) -> bytes:
    """Return the message that stores a small value."""
    return _SMALL + value


def head_message(head: Head) -> bytes:
    """Return the message that stores a large value's head; with it the value is visible."""
    return _HEAD + _HEAD_FORM.pack(
        head.id, head.first, head.last, head.pieces, head.size_bytes, head.crc32
    )


def manifest_message(manifest: Manifest) -> tuple[bytes, bytes]:
    """Return the key and the message that store a manifest."""
    return (
        MANIFEST_MARK + manifest.id,
        _MANIFEST + _COUNT.pack(manifest.pieces) + manifest.key.encode(),
    )


def read_stored(message: bytes) -> Stored:
    """Return the small value or the head in a message under a user's key.

    Raises LogCorruptError for damaged bytes, and UnknownVersionError for a newer version's message.
    """
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
    """Return the manifest in a message; None if a newer version wrote it in another form."""
    if message[:1] != _MANIFEST or len(message) < 1 + _COUNT.size:
        return None
    (pieces,) = _COUNT.unpack_from(message, 1)
    return Manifest(key[len(MANIFEST_MARK) :], message[1 + _COUNT.size :].decode(), pieces)


def piece_key(value_id: bytes, number: int) -> bytes:
    """Return the key of a large value's piece with this number."""
    return value_id + _COUNT.pack(number)


def pieces_in(size_bytes: int, piece_max: int) -> int:
    """Return how many pieces of ``piece_max`` bytes a value of ``size_bytes`` bytes needs."""
    return -(-size_bytes // piece_max)


def joined(head: Head, pieces: Mapping[bytes, bytes]) -> bytes:
    """Join the pieces of a large value, given by their keys; return the value.

    Raises LogCorruptError if its size or checksum differs.
    """
    value = b"".join(pieces[piece_key(head.id, number)] for number in range(head.pieces))
    if len(value) != head.size_bytes or zlib.crc32(value) != head.crc32:
        raise LogCorruptError("the pieces of a value are not those that were written")
    return value


# A process's memory of a store in Kafka: the keys, and the offsets of their values.
#
# Values are not kept here, except the newest and those last used, up to a limit. Decisions only.


CACHE_BYTES_MAX: Final = 32 << 20
CACHED_VALUE_BYTES_MAX: Final = 8 << 20
"""A larger value is not kept in memory, but read again each time."""
UNOWNED_KEPT_S: Final = 300.0
"""Pieces without a head are kept for this time, then deleted.

Before that their head may still come, or a reader may still read them. A put gives up long before.
"""


class Cache:
    """Values in memory by the offsets of their messages; the least recently used leave first."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._values: OrderedDict[int, bytes] = OrderedDict()
        self._size = 0

    def get(self, offset: int) -> bytes | None:
        """Return the value at this offset; None if it is not in memory."""
        value = self._values.get(offset)
        if value is not None:
            self._values.move_to_end(offset)
        return value

    def keep_value(self, offset: int, value: bytes) -> None:
        """Put the value into memory, unless it is too large."""
        if len(value) > CACHED_VALUE_BYTES_MAX or offset in self._values:
            return
        self._values[offset] = value
        self._size += len(value)
        while self._size > self._bytes_max:
            self._size -= len(self._values.popitem(last=False)[1])

    def drop(self, offset: int) -> None:
        """Drop the value at this offset, because it was replaced or deleted."""
        self._size -= len(self._values.pop(offset, b""))


class Index:
    """The store's keys and the offsets of their messages, as far as the topic has been read."""

    def __init__(self) -> None:
        self.end = 0
        self.cache = Cache(CACHE_BYTES_MAX)
        self._offsets: dict[str, int] = {}
        self._keys: list[str] = []
        self._heads: dict[int, Head] = {}
        """The heads of large values, by the heads' offsets."""
        self._manifests: dict[bytes, tuple[Manifest, float]] = {}
        """By the large value's id: its manifest, and when the value last had a head."""

    def take(self, offset: int, key: bytes, message: bytes | None, now_s: float) -> str | None:
        """Note the next message; return the user's key that it changes, None if it changes none.

        Raises UnknownVersionError for a newer version's message.
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
        """Return the offset of the message with this key's value; None if it has no value."""
        return self._offsets.get(key)

    def head(self, offset: int) -> Head | None:
        """Return the head at this offset; None if a small value is there."""
        return self._heads.get(offset)

    def below(self, prefix: str) -> list[str]:
        """Return the keys that begin with ``prefix``, in order."""
        found: list[str] = []
        for index in range(bisect_left(self._keys, prefix), len(self._keys)):
            if not self._keys[index].startswith(prefix):
                break
            found.append(self._keys[index])
        return found

    def unowned(self, now_s: float) -> Iterator[Manifest]:
        """Yield the manifests of large values that had no head for UNOWNED_KEPT_S."""
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
            self.cache.keep_value(offset, stored)

    def _forget(self, key: str) -> None:
        offset = self._offsets.pop(key, None)
        if offset is not None:
            del self._keys[bisect_left(self._keys, key)]
            self._heads.pop(offset, None)
            self.cache.drop(offset)
