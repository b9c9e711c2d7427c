"""Messages between a HAProc and its worker process; large texts travel apart.

Copying 60 MiB keeps the interpreter busy for 30 ms or more, so the event loop waits. So large texts
and bytes are not copied into the pickled message: they follow it unchanged. A text that an answer
contains as it was sent does not travel again.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import IO, Any, Final

APART_MIN: Final = 64 << 10
"""A text or bytes of at least this length travel apart. Chosen, not measured."""
_NUMBER_BYTES: Final = 8

Text = str | bytes


class _Writer(pickle.Pickler):
    def __init__(self, file: IO[bytes], sent: Sequence[Text]) -> None:
        super().__init__(file)
        self._sent = sent
        self.apart: list[Text] = []

    def persistent_id(self, obj: Any) -> tuple[str, int] | None:
        """If ``obj`` is a large text, note it, and return its place; None for all other objects.

        Those are pickled as usual.
        """
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
        """Return the large text for which `_Writer.persistent_id` returned the place ``pid``."""
        where, index = pid
        text: Text = self._texts[where][index]
        return text


def write(stream: IO[bytes], value: Any, sent: Sequence[Text] = ()) -> list[Text]:
    """Write a message; return the large texts in it, which the answer may refer to.

    ``sent``: the large texts of the message that this one answers, which the other side still has.
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
    """Read the next message; return it, and the large texts in it.

    ``sent``: the large texts of the message that this one answers. Raises EOFError if there is
    none.
    """
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
