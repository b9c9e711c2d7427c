"""Parses protobuf messages that nest deeper than upb, the parser of Python's protobuf, allows.

Upb allows a hundred messages inside each other: fifty steps of a DataFrame, since each is two. Its
limit can only be lifted for the whole process, with all its threads. So this module walks through a
deeper message, without recursion: deep parts are cut out, parsed by themselves, and put back. A
message is parsed whole or not at all.

Nothing else in HAProc may parse a client's message, because it could fail on one that nests deeply.
Copies by constructor, `extend` and `MergeFrom` are parsing, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, TypeAlias

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

Piece: TypeAlias = Any
"""A part of an encoded message: bytes, or an object with bytes and a `len` (memoryview, Arrow
buffer)."""
DEPTH_MAX: Final = 1_000
"""The most messages inside each other; Spark's server takes 1,024 (marshallerRecursionLimit)."""
DEEP_BYTES_MAX: Final = 4 << 20
"""The largest message deeper than upb's limit: it is read in Python, only some MB a second."""
_PIECE_DEPTH: Final = 60
"""At this depth a part is cut out and parsed by itself.

An entry of a map is not cut out, because no empty message can stand in its place."""
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_VARINT_BITS_MAX = 64
_KEY = 1
"""The field number of the key in a map's entry."""


class MalformedError(ValueError):
    """The bytes encode no message of this class, or one that no protobuf library writes."""


class TooDeepError(ValueError):
    """The message nests deeper than allowed, or nests deeply and is larger than DEEP_BYTES_MAX."""


def parsed(kind: Any, data: bytes, depth_max: int = DEPTH_MAX) -> Any:
    """Parse ``data`` as a message of class ``kind``, and return it.

    Raises MalformedError, TooDeepError.
    """
    try:
        return kind.FromString(data)
    except DecodeError:
        pass
    if len(data) > DEEP_BYTES_MAX:
        raise TooDeepError(f"more than {DEEP_BYTES_MAX} bytes that nest deeply")
    return _Walk(data, depth_max).message(kind.DESCRIPTOR)


class _Frame:
    """A message that the walk is inside of; its length is encoded from ``begin`` to ``start``."""

    __slots__ = (
        "begin",
        "cut_out",
        "end",
        "field",
        "index",
        "key",
        "keys",
        "kind",
        "removed",
        "seen",
        "start",
    )

    def __init__(
        self, kind: Any, begin: int, start: int, end: int, field: Any = None, index: int = 0
    ) -> None:
        self.kind = kind
        self.begin = begin
        self.start = start
        self.end = end
        self.field = field
        self.index = index
        self.seen: dict[int, int] = {}
        self.key = b""
        """If this is an entry of a map: the encoded field with its key."""
        self.keys: set[tuple[int, Any]] = set()
        """If this message has maps: each key found so far, with the map's field number."""
        self.removed = 0
        self.cut_out: list[tuple[list[_Frame], Any]] = []


class _Walk:
    """Reads through one message; ``_pieces``: the depths of the open parts that are cut out."""

    def __init__(self, data: bytes, depth_max: int) -> None:
        self._data = data
        self._depth_max = depth_max
        self._frames: list[_Frame] = []
        self._pieces = [0]
        self._edits: list[list[tuple[int, int, bytes]]] = [[]]

    def message(self, descriptor: Any) -> Any:
        at = 0
        frame = _Frame(descriptor, 0, 0, len(self._data))
        self._frames.append(frame)
        while True:
            frame = self._frames[-1]
            if at < frame.end:
                at = self._field(frame, at)
                continue
            whole = self._leave()
            if whole is not None:
                return whole

    def _field(self, frame: _Frame, at: int) -> int:
        """Skip the field at ``at``, or enter it if it is a message; return the next position.

        Raises MalformedError.
        """
        begins = at
        key, at = varint(self._data, at, frame.end)
        wire_type = key & 7
        if wire_type == _VARINT:
            _, at = varint(self._data, at, frame.end)
        elif wire_type == _FIXED64:
            at += 8
        elif wire_type == _FIXED32:
            at += 4
        elif wire_type == _LENGTH:
            begin = at
            length, at = varint(self._data, at, frame.end)
            field = _messages(frame.kind).get(key >> 3)
            if field is None:
                at += length
            elif at + length > frame.end:
                raise MalformedError("a message ends behind the one that holds it")
            else:
                self._enter(frame, field, begin, at, at + length)
        else:
            raise MalformedError(f"wire type {wire_type} is not used")
        if at > frame.end:
            raise MalformedError("a field ends behind its message")
        if key >> 3 == _KEY and _is_entry(frame.kind):
            frame.key = self._data[begins:at]
        return at

    def _enter(self, outer: _Frame, field: Any, begin: int, start: int, end: int) -> None:
        if len(self._frames) >= self._depth_max:
            raise TooDeepError(f"more than {self._depth_max} messages inside each other")
        index = outer.seen.get(field.number, 0)
        if index and not field.is_repeated:
            raise MalformedError("a field stands there twice")
        outer.seen[field.number] = index + 1
        is_deep = len(self._frames) - self._pieces[-1] >= _PIECE_DEPTH
        if is_deep and not _is_entry(field.message_type):
            self._pieces.append(len(self._frames))
            self._edits.append([])
        self._frames.append(_Frame(field.message_type, begin, start, end, field, index))

    def _leave(self) -> Any | None:
        """End the innermost open message; return it parsed if it is the outermost, else None."""
        frame = self._frames.pop()
        if _is_entry(frame.kind):
            self._note_key(frame)
        if len(self._frames) != self._pieces[-1]:
            if frame.removed:
                length = varint_bytes(frame.end - frame.start - frame.removed)
                self._edit(frame.begin, frame.start, length, frame.removed)
            return None
        self._pieces.pop()
        message = self._piece(frame, self._edits.pop())
        if not self._frames:
            return message
        outer = self._pieces[-1]
        self._frames[outer].cut_out.append(([*self._frames[outer + 1 :], frame], message))
        self._edit(frame.begin, frame.end, b"\0", 0)
        return None

    def _note_key(self, entry: _Frame) -> None:
        """Store the key of a map's entry; raises MalformedError if the map has this key already."""
        found = (entry.field.number, _key(entry))
        keys = self._frames[-1].keys
        if found in keys:
            raise MalformedError("a key stands twice in a map")
        keys.add(found)

    def _edit(self, start: int, end: int, instead: bytes, removed: int) -> None:
        """Plan to replace the bytes from ``start`` to ``end`` before the part is parsed."""
        self._edits[-1].append((start, end, instead))
        self._frames[-1].removed += removed + end - start - len(instead)

    def _piece(self, frame: _Frame, edits: list[tuple[int, int, bytes]]) -> Any:
        parts, at = [], frame.start
        for start, end, instead in sorted(edits):
            parts += [self._data[at:start], instead]
            at = end
        parts.append(self._data[at : frame.end])
        message = _message_of(frame.kind, b"".join(parts))
        for path, inside in frame.cut_out:
            _place(message, path).CopyFrom(inside)
        return message


def _place(message: Any, path: list[_Frame]) -> Any:
    """Return the empty message, in a parsed message, that stands for a part that was cut out."""
    for frame in path:
        name = frame.field.name
        if _is_entry(frame.field.containing_type):
            continue  # the value, which the entry's key gave
        if _is_entry(frame.kind):
            message = getattr(message, name)[_key(frame)]
        elif frame.field.is_repeated:
            message = getattr(message, name)[frame.index]
        elif message.HasField(name):
            message = getattr(message, name)
        else:
            raise MalformedError("of fields that exclude each other more than one is there")
    return message


def _key(entry: _Frame) -> Any:
    return _message_of(entry.kind, entry.key).key


def _message_of(descriptor: Any, data: bytes) -> Any:
    try:
        return GetMessageClass(descriptor).FromString(data)
    except DecodeError as error:
        raise MalformedError("it is no message of its kind") from error


@cache
def _messages(descriptor: Any) -> dict[int, Any]:
    """Return, by number, the fields of a message type whose values are messages."""
    return {each.number: each for each in descriptor.fields if each.message_type}


@cache
def _is_entry(descriptor: Any) -> bool:
    return bool(descriptor.GetOptions().map_entry)


def varint(data: bytes | memoryview, at: int, end: int) -> tuple[int, int]:
    """Return the number that is encoded at ``at``, and the position after it.

    Raises MalformedError if it does not end before ``end``, or is too long.
    """
    value = shift = 0
    while at < end and shift < _VARINT_BITS_MAX:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise MalformedError("the message ends inside a number, or the number is too long")


def varint_bytes(number: int) -> bytes:
    """Return a number in protobuf's varint encoding."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def within(message: Any, field: str, value: Sequence[Piece]) -> list[Piece]:
    """Return, as a list of byte pieces, ``message`` encoded with ``field`` set to ``value``.

    ``value``: the encoded content of that field, which must be unset in ``message``. The sender
    joins the pieces, once.
    """
    tag = message.DESCRIPTOR.fields_by_name[field].number << 3 | _LENGTH
    head = varint_bytes(tag) + varint_bytes(sum(map(len, value)))
    return [head, *value, message.SerializeToString()]
