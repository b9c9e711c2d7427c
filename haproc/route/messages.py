"""Values and results as bytes between processes: to a worker, or to another HAProc."""

from __future__ import annotations

import io
import json
import pickle
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import IO, Any, Final

from haproc.engine.interface import Chunk
from haproc.failure import FailureKind, RequestError, WriteOutcome

# A result on its way from one HAProc to another: a sequence of frames.
#
# Each has a head of fixed size (what it is, rows, bytes) and then its bytes. A chunk's are those
# that the cluster made, untouched. The end and an error are frames, too, so that what breaks off
# is neither.


CONTENT_TYPE: Final = "application/vnd.haproc.pieces"
_HEAD: Final = struct.Struct(">BQQ")
HEAD_BYTES: Final = _HEAD.size
_CHUNK_BYTES_MAX: Final = 1 << 31
"""More than a cluster hands out at once; it only bounds what a broken stream can ask for."""


class FrameKind(IntEnum):
    """What a frame holds."""

    CHUNK = 0
    END = 1
    ERROR = 2


class BrokenPiecesError(Exception):
    """What came is no such sequence."""


def chunk_head(chunk: Chunk) -> bytes:
    """Return what goes before a chunk's bytes."""
    return _HEAD.pack(FrameKind.CHUNK, chunk.rows, len(chunk.data))


def end() -> bytes:
    """Return the frame that says that the result is whole."""
    return _HEAD.pack(FrameKind.END, 0, 0)


def error(body: dict[str, Any]) -> bytes:
    """Return the frame that ends a result with an error; ``body`` is that of an error answer."""
    data = json.dumps(body).encode()
    return _HEAD.pack(FrameKind.ERROR, 0, len(data)) + data


def read_head(data: bytes) -> tuple[FrameKind, int, int]:
    """Return what a frame holds, its rows, and how many bytes follow."""
    kind, rows, size = _HEAD.unpack(data)
    if kind not in FrameKind.__members__.values() or size > _CHUNK_BYTES_MAX:
        raise BrokenPiecesError("the peer's answer cannot be read")
    return FrameKind(kind), rows, size


def read_error(data: bytes) -> RequestError:
    """Return the error that an error answer's body tells of."""
    try:
        told = json.loads(data)
        return RequestError(
            FailureKind(told["kind"]),
            str(told["message"]),
            error_class=str(told["error_class"]),
            sqlstate=str(told["sqlstate"]),
            outcome=WriteOutcome(told["outcome"]),
            hint=str(told["hint"]),
            offset=told["log_offset"],
        )
    except (ValueError, KeyError, TypeError) as wrong:
        raise BrokenPiecesError("the peer's error cannot be read") from wrong


# Values as messages between a HAProc and its worker on texts, large texts apart.
#
# Copying 60 MiB keeps the interpreter busy for 30 ms or more, so the event loop waits. Large
# strings and bytes are therefore not copied into the pickled message: they travel behind it as
# they are, and what comes back as it was sent does not travel at all.


APART_MIN: Final = 64 << 10
"""Characters or bytes from which on a text travels apart; chosen, not measured."""
_NUMBER_BYTES: Final = 8

Text = str | bytes


class _Writer(pickle.Pickler):
    def __init__(self, file: IO[bytes], sent: Sequence[Text]) -> None:
        super().__init__(file)
        self._sent = sent
        self.apart: list[Text] = []

    def persistent_id(self, obj: Any) -> tuple[str, int] | None:
        """Return where a large text is found; None has everything else pickled."""
        if not isinstance(obj, str | bytes) or len(obj) < APART_MIN:
            return None
        for index, known in enumerate(self._sent):
            if known is obj:
                return "sent", index
        self.apart.append(obj)
        return "apart", len(self.apart) - 1


class _Reader(pickle.Unpickler):
    def __init__(self, file: IO[bytes], sent: Sequence[Text], apart: Sequence[Text]) -> None:
        super().__init__(file)
        self._texts = {"sent": sent, "apart": apart}

    def persistent_load(self, pid: Any) -> Text:
        """Return the text that was written there."""
        where, index = pid
        text: Text = self._texts[where][index]
        return text


def write(stream: IO[bytes], value: Any, sent: Sequence[Text] = ()) -> list[Text]:
    """Write a message; return the texts that travelled apart, for the answer to name.

    ``sent``: those that the other side sent before, and still has.
    """
    pickled = io.BytesIO()
    writer = _Writer(pickled, sent)
    writer.dump(value)
    _write_piece(stream, b"p", pickled.getbuffer())
    for text in writer.apart:
        if isinstance(text, bytes):
            _write_piece(stream, b"b", text)
        else:
            _write_piece(stream, b"s", text.encode("utf-8", "surrogatepass"))
    _write_piece(stream, b"e", b"")
    stream.flush()
    return writer.apart


def read(stream: IO[bytes], sent: Sequence[Text] = ()) -> tuple[Any, list[Text]]:
    """Return the next message and the texts that came apart; raises EOFError at the end."""
    _, pickled = _read_piece(stream)
    apart: list[Text] = []
    while True:
        kind, data = _read_piece(stream)
        if kind == b"e":
            return _Reader(io.BytesIO(pickled), sent, apart).load(), apart
        apart.append(bytes(data) if kind == b"b" else data.decode("utf-8", "surrogatepass"))


def _write_piece(stream: IO[bytes], kind: bytes, data: bytes | memoryview) -> None:
    stream.write(kind + len(data).to_bytes(_NUMBER_BYTES))
    stream.write(data)


def _read_piece(stream: IO[bytes]) -> tuple[bytes, bytearray]:
    head = stream.read(1 + _NUMBER_BYTES)
    if len(head) <= _NUMBER_BYTES:
        raise EOFError("no further message")
    data = bytearray(int.from_bytes(head[1:]))
    view, position = memoryview(data), 0
    while position < len(data):
        count = stream.readinto(view[position:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError("the message ends early")
        position += count
    view.release()
    return head[:1], data
