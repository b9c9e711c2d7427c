"""The bytes that rows take: of an Arrow stream before it is unpacked, and of plain values."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from haproc.route.rows.forms import Readable, RowsError

# The size of an Arrow stream, by its messages before any of it is unpacked.
#
# A short stream can hold very much: compressed, a batch may be a thousand times as long, and rows
# of nothing but NULL take no bytes at all. A stream is a sequence of messages: a length, metadata
# (a flatbuffer, which holds the body's length), a body. In the body of a compressed batch each
# buffer begins with its length unpacked.


_CONTINUES: Final = 0xFFFFFFFF
_DICTIONARY, _RECORDS = 2, 3
_RAW: Final = -1
"""In front of a buffer of a compressed batch that is not compressed itself."""
AS_STREAM: Final = 2
"""Chosen: padding, and views of short texts, take more in a stream than in Spark's plain form."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Of a stream: ``size_bytes`` by its messages, unpacked; dictionaries count once."""

    rows: int = 0
    size_bytes: int = 0


def extent(source: Readable, batch_bytes_max: int) -> Extent:
    """Return the size of a stream; raises RowsError if a batch is surely larger unpacked.

    Together with the dictionaries that stand when it comes, and by so much that its form alone
    cannot be why. ``source`` is left at its beginning.
    """
    try:
        found = _extent(source, batch_bytes_max)
    except struct.error as error:
        raise RowsError(["not an Arrow IPC stream: it is cut off, or nonsense"]) from error
    source.seek(0)
    return found


def _extent(source: Readable, batch_bytes_max: int) -> Extent:
    position = rows = size = 0
    standing: dict[int, int] = {}
    while True:
        source.seek(position)
        length, metadata_at = _length(source.read(8), position)
        if not length:
            return Extent(rows, size + sum(standing.values()))
        source.seek(metadata_at)
        message = _Table.root(source.read(length))
        kind, body, position = message.byte(1), metadata_at + length, metadata_at + length
        position += message.long(3)
        if position < body:
            raise struct.error
        header = message.table(2)
        if kind == _DICTIONARY and header is not None and (batch := header.table(1)) is not None:
            number = header.long(0)
            before = standing.get(number, 0) if header.byte(2) else 0  # else it is replaced
            standing[number] = before + _unpacked(source, batch, body, position)
        elif kind == _RECORDS and header is not None:
            rows += header.long(0)
            here = _unpacked(source, header, body, position)
            size += here
            if here + sum(standing.values()) > AS_STREAM * batch_bytes_max:
                break
        if sum(standing.values()) > AS_STREAM * batch_bytes_max:
            break
    raise RowsError([f"a record batch has more than {batch_bytes_max} bytes unpacked: cut it"])


def _length(prefix: bytes, position: int) -> tuple[int, int]:
    """Return the length of a message's metadata, 0 at the stream's end, and its begin."""
    if len(prefix) < 4:
        return 0, position
    (length,) = struct.unpack_from("<I", prefix)
    if length != _CONTINUES:
        return length, position + 4  # as streams began before 2020
    return struct.unpack_from("<I", prefix, 4)[0], position + 8


def _unpacked(source: Readable, batch: _Table, body: int, end: int) -> int:
    """Return the bytes of a batch, unpacked."""
    if batch.table(3) is None:
        return end - body
    size = 0
    for offset, length in batch.pairs(2):
        if length:
            if offset < 0 or length < 0:
                raise struct.error
            source.seek(body + offset)
            (unpacked,) = struct.unpack("<q", source.read(8))
            if unpacked < _RAW:
                raise struct.error
            size += length if unpacked == _RAW else unpacked
    return size


class _Table:
    """A table in a flatbuffer; fields by their numbers. Raises struct.error."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - self._number("<i", at)
        self._fields_size = self._number("<H", self._fields)

    @classmethod
    def root(cls, data: bytes) -> _Table:
        (at,) = struct.unpack_from("<I", data)
        return cls(data, at)

    def byte(self, field: int) -> int:
        at = self._place(field)
        return self._number("<B", at) if at else 0

    def long(self, field: int) -> int:
        at = self._place(field)
        return self._number("<q", at) if at else 0

    def table(self, field: int) -> _Table | None:
        at = self._place(field)
        return _Table(self._data, at + self._number("<I", at)) if at else None

    def pairs(self, field: int) -> list[tuple[int, int]]:
        """Return a list of structures of two numbers."""
        if not (at := self._place(field)):
            return []
        at += self._number("<I", at)
        count = self._number("<I", at)
        if count > len(self._data) // 16:
            raise struct.error
        return [struct.unpack_from("<qq", self._data, at + 4 + 16 * n) for n in range(count)]

    def _place(self, field: int) -> int:
        slot = 4 + 2 * field
        if slot + 2 > self._fields_size:
            return 0
        offset = self._number("<H", self._fields + slot)
        return self._at + offset if offset else 0

    def _number(self, kind: str, at: int) -> int:
        if at < 0:
            raise struct.error
        number: int = struct.unpack_from(kind, self._data, at)[0]
        return number


# How many bytes rows take where each value stands for itself.


_VIEW_BYTES: Final = 16


def batch_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch in plain form."""
    return sum(map(unpacked_bytes, batch.columns))


def halved(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Yield a batch in pieces that take so much at most, unless one row takes more."""
    if batch.num_rows <= 1 or batch_bytes(batch) <= bytes_max:
        yield batch
        return
    half = batch.num_rows // 2
    yield from halved(batch.slice(0, half), bytes_max)
    yield from halved(batch.slice(half), bytes_max)


def unpacked_bytes(values: pa.Array) -> int:
    """Return the bytes of the values if each stands for itself.

    In a dictionary or a view one long text may stand for many values at next to no cost.
    """
    types, kind, count = pa.types, values.type, len(values)
    if types.is_dictionary(kind):
        return _bytes_of_indices(values)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        # A view is four numbers, the first one its length; where there is no value, it is any.
        begin, buffer = values.offset, values.buffers()[1] if count else b""
        views = memoryview(buffer).cast("B")[_VIEW_BYTES * begin : _VIEW_BYTES * (begin + count)]
        lengths = views.cast("i")[::4]
        return sum(length for length in lengths if length > 0)
    if types.is_struct(kind):
        return sum(map(unpacked_bytes, values.flatten())) + count // 8
    if types.is_map(kind):
        return unpacked_bytes(values.keys) + unpacked_bytes(values.items) + 4 * count
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return unpacked_bytes(values.flatten()) + 4 * count
    return int(values.nbytes)


def _bytes_of_indices(values: pa.DictionaryArray) -> int:
    known = values.dictionary
    try:
        return len(values) * int(known.type.bit_width) // 8
    except ValueError:  # the values differ in length
        pass
    try:
        lengths = pc.take(pc.binary_length(known), values.indices)
    except pa.ArrowNotImplementedError:  # neither texts nor bytes
        return len(values) * unpacked_bytes(known)
    return 4 * len(values) + (pc.sum(lengths).as_py() or 0)
