"""Records that are larger than a message: cut into parts, and put together again. Pure.

A large record is stored as *parts*, and then, once they are durable, as a *head* at its place,
which names the offsets of its parts. So a record becomes visible only when it is whole, and the
parts of a writer that died before its head mean nothing to anybody. Both have the form of a record
(see `dmq.log`) with a flag set, so that a version that does not know them refuses them.

Trimming must spare the parts of every record that stays, the ones whose head is not there yet
included: `Parts` is what a look through the log has found of them.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from dmq.log import FORMAT_VERSION, LogCorruptError

MESSAGE_OVERHEAD_BYTES: Final = 256
"""The part of a message's largest size that Kafka needs: 61 bytes for the batch, and some more."""

_PREFIX: Final = struct.Struct("<2sBBI")
_PART_FLAG: Final = 1
_HEAD_FLAG: Final = 2
_PART_PREFIX: Final = _PREFIX.pack(b"DQ", FORMAT_VERSION, _PART_FLAG, 0)
_HEAD_START: Final = b"DQ" + bytes((FORMAT_VERSION, _HEAD_FLAG))


@dataclass(frozen=True, slots=True)
class Head:
    """The places of a record's parts, and what they make up."""

    parts: tuple[int, ...]
    size_bytes: int
    crc32: int


def value_bytes_max(message_bytes_max: int) -> int:
    """Return the largest value that fits into a message of this size."""
    return message_bytes_max - MESSAGE_OVERHEAD_BYTES


def cut(encoded: bytes, value_max: int) -> list[bytes]:
    """Return the values that store this record's bytes, each at most so large."""
    step = value_max - len(_PART_PREFIX)
    return [_PART_PREFIX + encoded[start : start + step] for start in range(0, len(encoded), step)]


def head_of(encoded: bytes, parts: Sequence[int]) -> bytes:
    """Return the value that makes the record of these parts visible."""
    head = json.dumps(
        {"parts": list(parts), "bytes": len(encoded), "crc32": zlib.crc32(encoded)},
        separators=(",", ":"),
    ).encode()
    return _HEAD_START + struct.pack("<I", len(head)) + head


def is_part(stored: bytes) -> bool:
    """True if these stored bytes are a part."""
    return stored.startswith(_PART_PREFIX)


def read_head(stored: bytes) -> Head | None:
    """Return the head that these stored bytes are, or None if they are something else."""
    if not stored.startswith(_HEAD_START):
        return None
    try:
        found = json.loads(stored[_PREFIX.size :])
        head = Head(tuple(map(int, found["parts"])), int(found["bytes"]), int(found["crc32"]))
    except (ValueError, KeyError, TypeError) as error:
        raise LogCorruptError(f"what names its parts cannot be read: {error!r}") from error
    if not head.parts or list(head.parts) != sorted(set(head.parts)):
        raise LogCorruptError("its parts are not in order")
    return head


def join(head: Head, stored: Mapping[int, bytes]) -> bytes:
    """Return the record's bytes from the stored bytes of its parts, by their offsets."""
    pieces: list[bytes] = []
    for offset in head.parts:
        data = stored.get(offset)
        if data is None or not is_part(data):
            raise LogCorruptError(f"its part at offset {offset} is missing")
        pieces.append(data[len(_PART_PREFIX) :])
    encoded = b"".join(pieces)
    if len(encoded) != head.size_bytes or zlib.crc32(encoded) != head.crc32:
        raise LogCorruptError("its parts are not those that were written")
    return encoded


@dataclass(slots=True)
class Parts:
    """The known parts in a stretch of the log: offsets from ``first`` to ``end``."""

    first: int = 0
    end: int = 0
    _lone: list[int] = field(default_factory=list)
    """Parts without a head so far."""
    _heads: list[tuple[int, int]] = field(default_factory=list)
    """(offset of a head, offset of its first part)."""

    def look_from(self, offset: int) -> int:
        """Return the offset to read on from, so that all from this offset on is known."""
        if not self.first <= offset <= self.end:
            self.first = self.end = offset
            self._lone.clear()
            self._heads.clear()
        return self.end

    def see(self, offset: int, stored: bytes) -> None:
        """Take in the next stored bytes."""
        self.end = offset + 1
        if is_part(stored):
            self._lone.append(offset)
            return
        try:
            head = read_head(stored)
        except LogCorruptError:
            return  # Readers will stop there; what it named is unknown.
        if head is not None:
            self._heads.append((offset, head.parts[0]))
            named = set(head.parts)
            self._lone = [part for part in self._lone if part not in named]

    def trim_point(self, before: int, lone_from: int) -> int:
        """Return the highest offset up to which may be deleted when ``before`` is asked for.

        Spares the parts of records at or above it, and lone parts from ``lone_from`` on.
        """
        point = before
        for offset, first_part in self._heads:
            if offset >= before:
                point = min(point, first_part)
        return min([point, *(part for part in self._lone if part >= lone_from)])

    def forget(self, below: int) -> None:
        """Drop what is known below this offset."""
        self.first = max(self.first, min(below, self.end))
        self._heads = [pair for pair in self._heads if pair[0] >= below]
        self._lone = [part for part in self._lone if part >= below]
