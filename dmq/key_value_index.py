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
    """A large value: its id, the offsets of its first and last piece, their number, size, sum."""

    id: bytes
    first: int
    last: int
    pieces: int
    size_bytes: int
    crc32: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A large value that exists, or was being written."""

    id: bytes
    key: str
    pieces: int


Stored: TypeAlias = bytes | Head
"""A key's value, or the head of a large one."""


def small_message(value: bytes) -> bytes:
    """Return the message of a small value."""
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
    """Return the manifest in a message under a manifest's key; None for a newer version's."""
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


# A process's memory of a store in Kafka: the keys, and the offsets of their values.
#
# Values are not kept here, except the newest and those last used, up to a limit. Decisions only.


CACHE_BYTES_MAX: Final = 32 << 20
CACHED_VALUE_BYTES_MAX: Final = 8 << 20
"""A larger value is fetched whenever it is asked for."""
UNOWNED_KEPT_S: Final = 300.0
"""The time for which pieces without a head are kept: their head may come later, or a reader may
still read them. A put gives up long before."""


class Cache:
    """Values by the offsets of their messages; the least recently used are dropped."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._values: OrderedDict[int, bytes] = OrderedDict()
        self._size = 0

    def get(self, offset: int) -> bytes | None:
        """Return the value at an offset; None if it is not kept."""
        value = self._values.get(offset)
        if value is not None:
            self._values.move_to_end(offset)
        return value

    def keep_value(self, offset: int, value: bytes) -> None:
        """Keep a value, unless it is too large."""
        if len(value) > CACHED_VALUE_BYTES_MAX or offset in self._values:
            return
        self._values[offset] = value
        self._size += len(value)
        while self._size > self._bytes_max:
            self._size -= len(self._values.popitem(last=False)[1])

    def drop(self, offset: int) -> None:
        """Drop a value that does not exist any more."""
        self._size -= len(self._values.pop(offset, b""))


class Index:
    """The keys of the store up to an offset of its first partition."""

    def __init__(self) -> None:
        self.end = 0
        self.cache = Cache(CACHE_BYTES_MAX)
        self._offsets: dict[str, int] = {}
        self._keys: list[str] = []
        self._heads: dict[int, Head] = {}
        """Heads by their offsets."""
        self._manifests: dict[bytes, tuple[Manifest, float]] = {}
        """By the value's id, with the time at which it last had a head."""

    def take(self, offset: int, key: bytes, message: bytes | None, now_s: float) -> str | None:
        """Add the next message; return the user's key that it changes, if there is one.

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
        """Return the offset of a key's message, or None."""
        return self._offsets.get(key)

    def head(self, offset: int) -> Head | None:
        """Return the head at this offset; None for a small value."""
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
        """Yield the manifests of values that were without a head for UNOWNED_KEPT_S."""
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
