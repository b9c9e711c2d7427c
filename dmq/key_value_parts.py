"""What the messages of a key-value store in Kafka hold. Pure.

The topic has two partitions. In the first, under each key, stands what is kept there: a small value
itself, or the *head* of a large one. The pieces of large values stand in the second, so that
whoever opens the store reads the keys, not the bytes of every blob. A large value is written as:

1. a *manifest* in the first partition, which names the value's id, its key, and how many pieces;
2. the pieces, each under a key of its own, made of the id and its number;
3. the head under the value's key, which makes it visible, as a whole.

So whatever a writer leaves behind when it dies, or when its value is replaced, is named by a
manifest; and a manifest that no head goes with may be cleared away with all of its pieces.

The first byte of a message says what it is; one that is not known is refused, never guessed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from dmq.errors import LogCorruptError, UnknownVersionError

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
    """Return what a message under a user's key says."""
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
    """Return how many pieces a value of this size has."""
    return -(-size_bytes // piece_max)


def joined(head: Head, pieces: Mapping[bytes, bytes]) -> bytes:
    """Return the value of these pieces, by their keys."""
    value = b"".join(pieces[piece_key(head.id, number)] for number in range(head.pieces))
    if len(value) != head.size_bytes or zlib.crc32(value) != head.crc32:
        raise LogCorruptError("the pieces of a value are not those that were written")
    return value
