"""A result on its way from one HAProc to another: a sequence of frames.

Each has a head of fixed size (what it is, rows, bytes) and then its bytes. A chunk's are those
that the cluster made, untouched. The end and an error are frames, too, so that what breaks off is
neither.
"""

from __future__ import annotations

import json
import struct
from enum import IntEnum
from typing import Any, Final

from haproc.engine.interface import Chunk
from haproc.failure import FailureKind, RequestError, WriteOutcome

CONTENT_TYPE: Final = "application/vnd.haproc.pieces"
_HEAD: Final = struct.Struct(">BQQ")
HEAD_BYTES: Final = _HEAD.size
_CHUNK_BYTES_MAX: Final = 1 << 31
"""More than a cluster hands out at once; it only bounds what a broken stream can ask for."""


class FrameKind(IntEnum):
    """The content of a frame."""

    CHUNK = 0
    END = 1
    ERROR = 2


class BrokenPiecesError(Exception):
    """The received bytes are no such sequence."""


def chunk_head(chunk: Chunk) -> bytes:
    """Return the header of a chunk's bytes."""
    return _HEAD.pack(FrameKind.CHUNK, chunk.rows, len(chunk.data))


def end() -> bytes:
    """Return the frame that marks the result as whole."""
    return _HEAD.pack(FrameKind.END, 0, 0)


def error(body: dict[str, Any]) -> bytes:
    """Return the frame that ends a result with an error; ``body`` is that of an error answer."""
    data = json.dumps(body).encode()
    return _HEAD.pack(FrameKind.ERROR, 0, len(data)) + data


def read_head(data: bytes) -> tuple[FrameKind, int, int]:
    """Return a frame's kind, its rows, and the number of bytes that follow."""
    kind, rows, size = _HEAD.unpack(data)
    if kind not in FrameKind.__members__.values() or size > _CHUNK_BYTES_MAX:
        raise BrokenPiecesError("the peer's answer cannot be read")
    return FrameKind(kind), rows, size


def read_error(data: bytes) -> RequestError:
    """Return the error in an error answer's body."""
    try:
        fields = json.loads(data)
        return RequestError(
            FailureKind(fields["kind"]),
            str(fields["message"]),
            error_class=str(fields["error_class"]),
            sqlstate=str(fields["sqlstate"]),
            outcome=WriteOutcome(fields["outcome"]),
            hint=str(fields["hint"]),
            offset=fields["log_offset"],
        )
    except (ValueError, KeyError, TypeError) as wrong:
        raise BrokenPiecesError("the peer's error cannot be read") from wrong
