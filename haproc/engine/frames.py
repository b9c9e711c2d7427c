"""Several Arrow IPC streams of one schema as one, without touching the data.

A stream is a sequence of messages: a schema, then batches, then an end marker. A message is a
continuation marker (0xFFFFFFFF), the length of its metadata, the metadata (a flatbuffer that holds
the body's length), and the body. The end marker is a continuation marker with length 0. So a
stream that continues another one is its messages behind the schema, without the end marker.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

_PREFIX: Final = struct.Struct("<II")
_CONTINUATION: Final = 0xFFFFFFFF
_BODY_LENGTH_FIELD: Final = 3
END_OF_STREAM: Final = _PREFIX.pack(_CONTINUATION, 0)


class FrameError(ValueError):
    """The bytes are not an Arrow IPC stream."""


def opening(stream: bytes) -> memoryview:
    """Return the stream without its end marker."""
    return memoryview(stream)[: _end_of_messages(stream)]


def continuation(stream: bytes) -> memoryview:
    """Return the stream's messages behind its schema, without its end marker."""
    return memoryview(stream)[_message_end(stream, 0) : _end_of_messages(stream)]


def joined(streams: Sequence[bytes]) -> bytes:
    """Return one stream that holds the batches of all (at least one) in their order."""
    if len(streams) == 1:
        return streams[0]
    return b"".join(
        (opening(streams[0]), *(continuation(stream) for stream in streams[1:]), END_OF_STREAM)
    )


def _end_of_messages(stream: bytes) -> int:
    end = 0
    for end in _message_ends(stream):  # noqa: B007
        pass
    return end


def _message_ends(stream: bytes) -> Iterator[int]:
    position = 0
    while position < len(stream) and stream[position : position + 8] != END_OF_STREAM:
        position = _message_end(stream, position)
        yield position


def _message_end(stream: bytes, start: int) -> int:
    """Return where the message that starts here ends."""
    try:
        marker, length = _PREFIX.unpack_from(stream, start)
        if marker != _CONTINUATION or length == 0:
            raise FrameError("not an Arrow IPC stream: a message does not start as it must")
        metadata = start + _PREFIX.size
        end: int = metadata + length + _body_length(stream, metadata)
    except struct.error as error:
        raise FrameError("not an Arrow IPC stream: it is cut off") from error
    if not metadata + length <= end <= len(stream):
        raise FrameError("not an Arrow IPC stream: a message is longer than the stream")
    return end


def _body_length(stream: bytes, metadata: int) -> int:
    """Read the field bodyLength of the flatbuffer table Message; 0 if it is absent."""
    (root,) = struct.unpack_from("<I", stream, metadata)
    table = metadata + root
    (back,) = struct.unpack_from("<i", stream, table)
    vtable = table - back
    (vtable_size,) = struct.unpack_from("<H", stream, vtable)
    slot = 4 + 2 * _BODY_LENGTH_FIELD
    if slot + 2 > vtable_size:
        return 0
    (field,) = struct.unpack_from("<H", stream, vtable + slot)
    if field == 0:
        return 0
    length: int = struct.unpack_from("<q", stream, table + field)[0]
    return length
