"""The log's interface: records, errors, and the checks that all backends share."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar

import msgspec
from msgspec import MsgspecError
from msgspec.msgpack import Decoder, Encoder

# The errors of a log; each shows if trying again can help.


class LogError(Exception):
    """The base of all errors of this package."""

    retriable: ClassVar[bool] = False


class LogUnavailableError(LogError):
    """The log cannot be reached, or did not answer in time. An append may yet be stored."""

    retriable = True


class TrimmedError(LogError):
    """The requested records were deleted by a trim: reading on would skip them without notice."""


class LogRegressedError(LogError):
    """The log lost its newest records: it ends before an offset that it gave out earlier."""


class FencedError(LogError):
    """The reader's stored cursor has a higher epoch: a later process has taken over this reader."""


class LogCorruptError(LogError):
    """A stored record's bytes cannot be read."""


class UnknownVersionError(LogCorruptError):
    """A newer version wrote the record, in a form that this version does not know."""


class RecordTooLargeError(LogError):
    """A record is larger than the log's limit; nothing was appended."""


class ValueTooLargeError(LogError):
    """The value is larger than the key-value store's limit; nothing was changed."""


# The record and its bytes.
#
# Layout, little-endian: magic ``b"DQ"``, format version (1 byte), flags (1 byte, 0), length of the
# JSON header (4 bytes), the header ``[kind, key]`` in UTF-8, then the payload to the end. A reader
# that meets a version it does not know refuses the record; it never guesses.


Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

FORMAT_VERSION: Final = 1
FILLER: Final = "dmq.filler"
"""The kind of a record that only fills an offset and has no meaning: readers skip it."""
_PREFIX: Final = struct.Struct("<2sBBI")
_MAGIC: Final = b"DQ"
_encode_header: Final = msgspec.json.Encoder().encode
_decode_header: Final = msgspec.json.Decoder(tuple[str, str]).decode


@dataclass(frozen=True, slots=True)
class Record:
    """One message of the log.

    ``kind`` is chosen by the writer. ``key`` is an id that may repeat when a writer retries (the
    log stores every copy, readers decide which one counts). ``payload`` may be as large as the
    log's limit; in a record that was read it is a view of the stored bytes, because it may be
    large: a reader makes its own copy.
    """

    kind: str
    key: str = ""
    payload: bytes | memoryview = b""


def encode(record: Record) -> bytes:
    """Return the record as bytes, in the format's current version."""
    header = _encode_header((record.kind, record.key))
    return _PREFIX.pack(_MAGIC, FORMAT_VERSION, 0, len(header)) + header + record.payload


def decode(data: bytes) -> Record:
    """Return the record that ``encode`` wrote.

    Raises UnknownVersionError for a newer version and LogCorruptError for any other bytes that are
    not a record.
    """
    if len(data) < _PREFIX.size or data[:2] != _MAGIC:
        raise LogCorruptError("not a record: the magic bytes are missing")
    _, version, flags, length = _PREFIX.unpack_from(data)
    if version != FORMAT_VERSION:
        raise UnknownVersionError(
            f"record format version {version} is not known to this version of dmq "
            f"(it knows {FORMAT_VERSION}): upgrade this process before it reads on"
        )
    if flags:
        raise UnknownVersionError(
            f"record flags {flags:#04x} are not known to this version of dmq: upgrade this process "
            "before it reads on"
        )
    end = _PREFIX.size + length
    try:
        kind, key = _decode_header(data[_PREFIX.size : end])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise LogCorruptError(f"a record's header cannot be read: {error!r}") from error
    return Record(kind, key, memoryview(data)[end:])


# The interface of a log.
#
# Contract (the suite in tests/contract runs it against every backend):
#
# - Offsets rise strictly; they need not be dense. One append's records are in order. On some
#   backends (Kafka) records of other writers may be between them, and a writer that dies in an
#   append of several may leave the first ones.
# - ``append`` returns once the records would survive a kill of every process that holds the log.
#   If it raises LogUnavailableError the records may or may not be there; if it raises any other
#   error they are not.
# - All readers see the records in the same order; no reader sees a record before all earlier ones
#   are visible.
# - ``read`` below the log's start raises TrimmedError and never skips; above the end it raises
#   LogRegressedError. A log that lost records or was made anew under an open handle raises
#   LogRegressedError, too; only opening makes a log anew.
# - An entry with a record of kind `dmq.log.FILLER` only fills an offset (for example a part of a
#   larger record): it belongs to no append, and readers skip it. A cursor may have its offset.
# - A cursor is durable when ``commit_cursor`` returns. The last commit of a reader counts, but one
#   of a lower epoch than the stored one is refused and changes nothing.
#
# Not in the contract: exactly one copy of a record after a retried append. Readers drop copies by
# ``Record.key``.


CURSOR_NOTE_BYTES_MAX: Final = 3900
"""The longest note of a cursor: Kafka stores 4,096 bytes beside a committed offset."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record with its offset in the log."""

    offset: int
    record: Record


@dataclass(frozen=True, slots=True)
class Cursor:
    """A reader's progress: every record below ``offset`` has been handled.

    ``note`` is the reader's own (ASCII, at most CURSOR_NOTE_BYTES_MAX bytes), stored with the
    offset atomically. ``epoch`` distinguishes the processes that commit for one reader: a later one
    has a higher epoch, and after its commit the earlier ones cannot commit any more.
    """

    offset: int = 0
    note: str = ""
    epoch: int = 0


class Log(Protocol):
    """One ordered, durable sequence of records. Many tasks of one event loop may use it."""

    async def append(self, records: Sequence[Record]) -> list[int]:
        """Store the records durably at the end of the log, in order; return their offsets."""
        ...

    async def read(
        self, start: int, *, records_max: int = 1024, bytes_max: int = 16 << 20
    ) -> list[Entry]:
        """Return the entries from offset ``start`` on, in order; empty at the end of the log.

        Stops at either limit, but returns at least one entry if there is one.
        """
        ...

    async def wait(self, offset: int, timeout_s: float) -> bool:
        """Wait until the log's end is beyond ``offset`` (True), or the time is over (False)."""
        ...

    async def start(self) -> int:
        """Return the lowest offset that can still be read."""
        ...

    async def end(self) -> int:
        """Return the offset after the newest record that is durable now."""
        ...

    async def load_cursor(self, reader: str) -> Cursor | None:
        """Return the reader's stored cursor, or None if it never stored one."""
        ...

    async def commit_cursor(self, reader: str, cursor: Cursor) -> None:
        """Store the reader's cursor durably; FencedError if a stored one has a higher epoch."""
        ...

    async def cursors(self) -> Mapping[str, Cursor]:
        """Return every reader's stored cursor, by reader."""
        ...

    async def trim(self, before: int) -> None:
        """Delete the records below offset ``before``; harmless if they are deleted already.

        Some of them may stay for a while if the backend still needs them.
        """
        ...

    async def identity(self) -> str:
        """Return an id that no other log has; a deleted log that is made again gets another id."""
        ...

    async def close(self) -> None:
        """Release the log's connections and files; unfinished appends finish first."""
        ...


Batches: TypeAlias = Callable[[], Iterator[tuple[int, Sequence[bytes]]]]
"""A function that yields records in order: an offset, and the bytes of the records from it on.

It can be called again, and then yields the same.
"""


class MovableLog(Log, Protocol):
    """A log's handle that can also be filled with another log's records (`dmq.moving`).

    No other process may use the log meanwhile.
    """

    known_as: str
    """The id of the log from which this one was moved; ``identity`` returns it.

    Empty: the log was not moved, and has its own id.
    """

    async def begin_at(self, offset: int) -> None:
        """Make a log without records begin, and end, at ``offset``.

        Can be repeated, also after an interruption. Raises LogError if the log's end is higher.
        """
        ...

    async def refill(self, end: int, batches: Batches) -> None:
        """Append another log's records at their offsets; the first is this log's present end.

        ``end``: the offset after the last record. Behind it the log may have fillers.
        """
        ...


# The handling of written and read records that all backends share. No side effects.
#
# A written record is encoded and checked against the log's limit before anything is appended. Read
# bytes become entries. A record that cannot be read ends the result before it; it raises an error
# only if it is the first one. So all records before it can be read, and no reader skips it by
# accident.


RECORD_BYTES_MAX: Final = (8 << 20) + (64 << 10)
"""Default limit of an encoded record: 8 MiB of rows or text, and the other fields."""


def encode_all(records: Sequence[Record], record_bytes_max: int) -> tuple[bytes, ...]:
    """Return the records as bytes. Raises RecordTooLargeError if one is over the limit.

    Raises ValueError for a filler, which only the log itself writes.
    """
    encoded = tuple(map(encode, records))
    for index, data in enumerate(encoded):
        if records[index].kind == FILLER:
            raise ValueError(f"records of kind {FILLER!r} are the log's own")
        if len(data) > record_bytes_max:
            raise RecordTooLargeError(
                f"record {index + 1} of {len(encoded)} has {len(data):,} bytes; this log takes "
                f"{record_bytes_max:,} at most, so nothing was appended: split it, or raise the "
                "log's limit"
            )
    return encoded


FILLER_STORED: Final = encode(Record(FILLER))
"""A filler as bytes."""


def check_begins(offset: int, start: int, end: int) -> None:
    """Raise LogError if a log from ``start`` to ``end`` cannot be made to begin at ``offset``."""
    if end > offset or start not in (0, end):
        raise LogError(
            f"the log has offsets from {start} to {end}, so it cannot be made to begin at "
            f"{offset}: use a new one"
        )


def check_placed(wanted: int, offsets: Sequence[int]) -> None:
    """Raise LogError unless appended records got the offsets from ``wanted`` on."""
    if list(offsets) != list(range(wanted, wanted + len(offsets))):
        raise LogError(
            f"the records for offset {wanted} got offset {offsets[0]}: another process writes to "
            "this log; stop it, and begin again with a new log"
        )


def decode_at(offset: int, data: bytes) -> Entry:
    """Return the entry whose record has these bytes. The text of an error has the offset."""
    try:
        return Entry(offset, decode(data))
    except LogCorruptError as error:
        raise type(error)(f"the record at offset {offset} cannot be read: {error}") from error


def decode_run(first: int, stored: Iterable[tuple[int, bytes]]) -> list[Entry]:
    """Return the entries from ``first`` up to a gap or a record that cannot be read.

    Raises LogCorruptError if that is at ``first`` itself. For logs without gaps in their offsets.
    """
    entries: list[Entry] = []
    for offset, data in stored:
        expected = first + len(entries)
        try:
            if offset != expected:
                raise LogCorruptError(f"the record at offset {expected} is missing from the log")
            entries.append(decode_at(offset, data))
        except LogCorruptError:
            if entries:
                break
            raise
    return entries


def check_readable(offset: int, start: int, end: int) -> None:
    """Raise TrimmedError if ``offset`` is below the log, LogRegressedError if it is beyond.

    The log's end itself is allowed.
    """
    if offset < start:
        raise TrimmedError(
            f"offset {offset} was asked for, but the log starts at {start}: the records before it "
            "were trimmed"
        )
    check_not_beyond(offset, end)


def check_not_beyond(offset: int, end: int) -> None:
    """Raise LogRegressedError if ``offset`` lies beyond the log's end."""
    if offset > end:
        raise LogRegressedError(
            f"offset {offset} was asked for, but the log ends at {end}: it lost its newest "
            "records, or this is another log"
        )


def check_epoch(reader: str, stored: Cursor | None, cursor: Cursor) -> None:
    """Raise FencedError if the reader's stored cursor has a higher epoch than ``cursor``."""
    if stored is not None and stored.epoch > cursor.epoch:
        raise FencedError(
            f"reader {reader} is at epoch {stored.epoch}: a process of epoch {cursor.epoch} was "
            "replaced and must stop"
        )


def check_cursor(cursor: Cursor) -> None:
    """Raise ValueError if the cursor's offset is negative, or its note too long or not ASCII."""
    if cursor.offset < 0:
        raise ValueError(f"a cursor's offset must not be negative, but is {cursor.offset}")
    if not cursor.note.isascii() or len(cursor.note) > CURSOR_NOTE_BYTES_MAX:
        raise ValueError(f"a cursor's note must be ASCII, {CURSOR_NOTE_BYTES_MAX} bytes at most")


# Records with declared content: each kind has a type; its fields are the payload.
#
# The payload is MessagePack: a map by field name, so bytes stay unchanged, and older and newer
# versions can read it. **The rule for changes**:
#
# - A reader ignores fields that it does not know. So a new field has a default, and is only for
#   information that an older reader may ignore.
# - A change of how a record must be treated is a new kind, ``kind.2``, beside the old one, or a new
#   tag of a union. An older reader stops before it, and goes on from there once it is upgraded.


M = TypeVar("M")

_encode: Final = Encoder(order="deterministic").encode
"""Encodes a message; sets and maps are sorted, so that equal messages have equal bytes."""


class Kinds(Generic[M]):
    """Turns typed messages into records and back: each type has its own kind of record."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        self._kinds = {of: kind for kind, of in types.items()}
        self._decoders = {kind: Decoder(of) for kind, of in types.items()}

    @property
    def names(self) -> frozenset[str]:
        """The kinds of record that this version knows."""
        return frozenset(self._decoders)

    def record(self, message: M) -> Record:
        """Return the message as a record."""
        return Record(self._kinds[type(message)], payload=_encode(message))

    def message(self, record: Record) -> M:
        """Return the message in a record.

        Raises UnknownVersionError for an unknown kind, LogCorruptError for content that does not
        fit the kind's type.
        """
        decoder = self._decoders.get(record.kind)
        if decoder is None:
            raise UnknownVersionError(
                f"record kind {record.kind!r} is not known to this version: upgrade this process "
                "before it reads on"
            )
        try:
            message: M = decoder.decode(record.payload)
        except (MsgspecError, ValueError, RecursionError) as error:
            raise LogCorruptError(f"a {record.kind} record cannot be read: {error}") from error
        return message

    def to_bytes(self, message: M) -> bytes:
        """Return the message as a record's bytes, for the key-value store."""
        return encode(self.record(message))

    def from_bytes(self, data: bytes) -> M:
        """Return the message in a record's bytes; raises as `message` does."""
        return self.message(decode(data))
