"""What every backend does alike with records on their way in and out. Pure.

On the way in a record is encoded and checked against the log's limit before anything is appended.
On the way out stored bytes become entries. A record that cannot be read ends the answer in front
of it, and is an error only when it is the first: so all that precedes it can still be had, and
reading on after it is possible, but nobody skips it by accident.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dmq.errors import (
    FencedError,
    LogCorruptError,
    LogRegressedError,
    RecordTooLargeError,
    TrimmedError,
)
from dmq.interface import CURSOR_NOTE_BYTES_MAX, Cursor, Entry
from dmq.record import FILLER, Record, decode, encode

RECORD_BYTES_MAX: Final = (8 << 20) + (64 << 10)
"""Default limit of an encoded record: a payload of 8 MiB and its headers."""


def encode_all(records: Sequence[Record], record_bytes_max: int) -> tuple[bytes, ...]:
    """Return the records' bytes, or raise RecordTooLargeError if any is over the limit."""
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


def decode_at(offset: int, data: bytes) -> Entry:
    """Return the entry of these stored bytes; errors name the offset."""
    try:
        return Entry(offset, decode(data))
    except LogCorruptError as error:
        raise type(error)(f"the record at offset {offset} cannot be read: {error}") from error


def decode_run(first: int, stored: Iterable[tuple[int, bytes]]) -> list[Entry]:
    """Return the readable entries from ``first`` up to a gap or a record that cannot be read.

    Raises LogCorruptError if that is at ``first`` itself. For logs with dense offsets.
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
    """Raise unless reading at ``offset`` is within the log, its end included."""
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
    """Raise FencedError if a newer process of the reader has committed."""
    if stored is not None and stored.epoch > cursor.epoch:
        raise FencedError(
            f"reader {reader} is at epoch {stored.epoch}: a process of epoch {cursor.epoch} was "
            "replaced and must stop"
        )


def check_cursor(cursor: Cursor) -> None:
    """Raise ValueError if the cursor cannot be stored by every backend."""
    if cursor.offset < 0:
        raise ValueError(f"a cursor's offset must not be negative, but is {cursor.offset}")
    if not cursor.note.isascii() or len(cursor.note) > CURSOR_NOTE_BYTES_MAX:
        raise ValueError(f"a cursor's note must be ASCII, {CURSOR_NOTE_BYTES_MAX} bytes at most")
