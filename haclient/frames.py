"""Cut an Arrow IPC stream into record batches while it arrives.

pyarrow reads a stream by pulling from a file, which suits neither asyncio nor a connection that has
to be watched. So the bytes are pushed in here. A message is framed as: 0xFFFFFFFF, the length of
its metadata (int32), the metadata (a flatbuffer that knows the length of the body), the body.
Length 0 ends the stream. Only these lengths are read here; whole messages go to pyarrow.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from haclient.intervals import readable, readable_schema

_CONTINUATION = 0xFFFFFFFF
_SCHEMA, _DICTIONARY = 1, 2
_END_OF_STREAM = struct.pack("<II", _CONTINUATION, 0)


class BrokenStream(Exception):
    """What arrived is not an Arrow IPC stream, or ends in the middle of a message."""


class Frames:
    """Takes bytes as they come, gives the batches that are complete."""

    def __init__(self) -> None:
        self.schema: Any = None
        """The pyarrow schema, once it has arrived."""
        self._data = bytearray()
        self._head = b""
        self._ended = False

    def feed(self, data: bytes) -> list[Any]:
        """Take more bytes; return the batches that they completed."""
        self._data += data
        position, complete = 0, bytearray()
        while not self._ended and (length := self._message_length(position)) is not None:
            kind = self._kind(position) if length > 8 else None
            message = self._data[position : position + length]
            position += length
            if kind is None:
                self._ended = True
            elif kind in (_SCHEMA, _DICTIONARY):
                self._head += bytes(message)
                if kind == _SCHEMA:
                    self.schema = readable_schema(_read(self._head).schema)
            else:
                complete += message
        del self._data[:position]
        if not complete:
            return []
        try:
            return [readable(batch) for batch in _read(self._head + bytes(complete))]
        except pa.ArrowInvalid as error:
            raise BrokenStream(f"the answer cannot be read: {error}") from error

    def finish(self) -> None:
        """The answer is at its end; raises BrokenStream if the stream is not."""
        if self._data and not self._ended:
            raise BrokenStream("the answer ends in the middle of a batch")

    def _message_length(self, start: int) -> int | None:
        """Return the length of the message at ``start``; None while it is incomplete."""
        if len(self._data) - start < 8:
            return None
        mark, metadata = struct.unpack_from("<Ii", self._data, start)
        if mark != _CONTINUATION or metadata < 0:
            raise BrokenStream("the answer is not an Arrow stream")
        if metadata == 0:
            return 8
        if len(self._data) - start < 8 + metadata:
            return None
        length = 8 + metadata + int(self._field(start, 3, "<q"))
        return length if len(self._data) - start >= length else None

    def _kind(self, start: int) -> int:
        return self._field(start, 1, "<B")

    def _field(self, start: int, slot: int, form: str) -> int:
        """Read one scalar of the message's flatbuffer table; 0 where it is left out."""
        try:
            table = start + 8 + struct.unpack_from("<I", self._data, start + 8)[0]
            vtable = table - struct.unpack_from("<i", self._data, table)[0]
            if 4 + 2 * slot >= struct.unpack_from("<H", self._data, vtable)[0]:
                return 0
            offset = struct.unpack_from("<H", self._data, vtable + 4 + 2 * slot)[0]
            return int(struct.unpack_from(form, self._data, table + offset)[0]) if offset else 0
        except struct.error as error:
            raise BrokenStream("the answer is not an Arrow stream") from error


def _read(stream: bytes) -> Any:
    return pa.ipc.open_stream(stream + _END_OF_STREAM)


def read_whole(stream: bytes) -> tuple[Any, list[Any]]:
    """Return the schema and the batches of a complete stream."""
    try:
        reader = pa.ipc.open_stream(stream)
        return readable_schema(reader.schema), [readable(batch) for batch in reader]
    except (pa.ArrowInvalid, OSError) as error:
        raise BrokenStream(f"the answer cannot be read: {error}") from error
