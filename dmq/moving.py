"""The export of a whole log into a file, and the import of such a file into an empty log.

Everything is moved: records at their offsets, cursors, the store's keys at their revisions, and the
log's id. No other process may use the log meanwhile. The file:

- `MAGIC`, with the format's version;
- frames, each its length (4 bytes, little-endian) and a MessagePack array: one `Head`, `Records`,
  `Reader` for each cursor, `Value` for each key;
- `TRAILER`, and the BLAKE2b sum of all bytes before the sum.

So a file that was cut off has no trailer, and a damaged one has another sum: both are refused
before anything is changed. A file is written under another name first.

A log is filled in this order: the note that it is not whole yet, records, keys, cursors, the note
that it is whole (`dmq.key_value`). Memory holds one batch of records or one value at a time.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from os import O_RDONLY, close, fsync
from os import open as open_folder
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import msgspec

from dmq.key_value import (
    KEY_PREFIX,
    KeyValueStore,
    MovableStore,
    MoveState,
    Origin,
    Placed,
    origin_of,
    remember,
)
from dmq.log import FILLER, FILLER_STORED, Cursor, LogCorruptError, LogError, MovableLog, encode

MAGIC: Final = b"DMQ log 2\n"
TRAILER: Final = b"DMQ end\n"
_SUM_BYTES: Final = 32
_LENGTH: Final = struct.Struct("<I")
_READ_BYTES: Final = 1 << 20
BATCH_RECORDS_MAX: Final = 1024
BATCH_BYTES_MAX: Final = 4 << 20


class Head(msgspec.Struct, frozen=True, array_like=True, tag="log"):
    """The first frame: the log's id, its start and end, and the newest revision of its store."""

    identity: str
    start: int
    end: int
    revision: int


class Records(msgspec.Struct, frozen=True, array_like=True, tag="records"):
    """A frame of records' bytes, from offset ``first`` on; a filler's bytes are empty."""

    first: int
    encoded: list[bytes]


class Reader(msgspec.Struct, frozen=True, array_like=True, tag="cursor"):
    """A frame with a reader's cursor."""

    name: str
    offset: int
    note: str
    epoch: int


class Value(msgspec.Struct, frozen=True, array_like=True, tag="key"):
    """A frame with a key of the store, its value and its revision; in the order of revisions."""

    key: str
    value: bytes
    revision: int


Frame: TypeAlias = Head | Records | Reader | Value
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Head | Records | Reader | Value).decode


@dataclass(frozen=True, slots=True)
class Contents:
    """What an export file contains, in numbers. ``records`` does not count fillers.

    ``revision``: the newest revision of the store.
    """

    identity: str
    start: int
    end: int
    records: int
    cursors: int
    keys: int
    revision: int


# -- the file ----------------------------------------------------------------------------------


class _Writer:
    """Writes frames into a temporary file; `finish` gives the file its final name."""

    def __init__(self, path: Path) -> None:
        if path.exists():
            raise LogError(f"{path} is there already: name another file")
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        self._file: BinaryIO = self._part.open("wb")
        self._part.chmod(0o600)
        self._sum = hashlib.blake2b(digest_size=_SUM_BYTES)
        self._write(MAGIC)

    def frame(self, frame: Frame) -> None:
        """Write one frame."""
        data = _encode(frame)
        self._write(_LENGTH.pack(len(data)))
        self._write(data)

    def finish(self) -> None:
        """Write the trailer and the checksum, sync the file, and give it its final name."""
        self._write(TRAILER)
        self._file.write(self._sum.digest())
        self._file.flush()
        fsync(self._file.fileno())
        self._part.rename(self._path)
        folder = open_folder(self._path.parent, O_RDONLY)
        try:
            fsync(folder)  # else the name may be gone after a power cut
        finally:
            close(folder)

    def close(self) -> None:
        """Close the temporary file; delete it unless `finish` was called."""
        self._file.close()
        self._part.unlink(missing_ok=True)

    def _write(self, data: bytes) -> None:
        self._sum.update(data)
        self._file.write(data)


def read_contents(path: Path) -> Contents:
    """Read an export file to its end; return what it contains, in numbers.

    Raises LogCorruptError for a file that was cut off or damaged.
    """
    _check_sum(path)
    found = frames(path)
    head = next(found, None)
    if not isinstance(head, Head):
        raise LogCorruptError(f"{path} does not say which log it is")
    at, records, cursors, keys = head.start, 0, 0, 0
    for frame in found:
        match frame:
            case Records(first, encoded):
                if first != at:
                    raise LogCorruptError(f"{path} has no record of offset {at}")
                at += len(encoded)
                records += sum(map(bool, encoded))
            case Reader():
                cursors += 1
            case Value():
                keys += 1
    if at != head.end:
        raise LogCorruptError(f"{path} has records up to offset {at}, not {head.end}")
    return Contents(head.identity, head.start, head.end, records, cursors, keys, head.revision)


def frames(path: Path) -> Iterator[Frame]:
    """Yield the frames of a file, in order. The caller must have verified its checksum."""
    with path.open("rb") as file:
        left = path.stat().st_size - len(MAGIC) - len(TRAILER) - _SUM_BYTES
        file.seek(len(MAGIC))
        while left > 0:
            (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
            try:
                yield _decode(file.read(length))
            except msgspec.MsgspecError as error:
                raise LogCorruptError(f"{path} cannot be read: {error}") from error
            left -= _LENGTH.size + length


def _check_sum(path: Path) -> None:
    """Raise LogCorruptError if the file is no export, was cut off, or is damaged."""
    summed, left = hashlib.blake2b(digest_size=_SUM_BYTES), path.stat().st_size - _SUM_BYTES
    with path.open("rb") as file:
        begins, last = b"", b""
        while left > 0 and (data := file.read(min(left, _READ_BYTES))):
            begins = begins or data[: len(MAGIC)]
            last = (last + data)[-len(TRAILER) :]
            summed.update(data)
            left -= len(data)
        if begins != MAGIC:
            raise LogCorruptError(
                f"{path} is not the export of a log, or of a version that is not known here"
            )
        if last != TRAILER:
            raise LogCorruptError(
                f"{path} was cut off: it has no end. Nothing was changed; export the log again"
            )
        if file.read() != summed.digest():
            raise LogCorruptError(
                f"{path} is damaged: its checksum is another one. Nothing was changed; copy it "
                "again, or export the log again"
            )


# -- out of a log ------------------------------------------------------------------------------


async def export_log(log: MovableLog, store: KeyValueStore, path: Path) -> Contents:
    """Write a log, its cursors and its store into a new file; return what it contains.

    Raises LogError if the file exists, if the log never had a record, or if it was written to
    during the export; no file is left then.
    """
    before = await _state(log, store)
    start, end = await log.start(), await log.end()
    if end == 0:
        raise LogError("the log has had no records: there is nothing to export")
    writer = _Writer(path)
    try:
        writer.frame(Head(await log.identity(), start, end, await store.revision()))
        await _write_records(log, writer, start, end)
        for name, cursor in sorted((await log.cursors()).items()):
            writer.frame(Reader(name, cursor.offset, cursor.note, cursor.epoch))
        for key in await _by_revision(store):
            if (kept := await store.get(key)) is not None:
                writer.frame(Value(key, kept.value, kept.revision))
        if await _state(log, store) != before:
            raise LogError(
                "the log was written to while it was exported: a HAProc runs. Stop all of them, "
                "and export it again"
            )
        writer.finish()
    finally:
        writer.close()
    return read_contents(path)


async def _by_revision(store: KeyValueStore) -> list[str]:
    """Return the keys to move, in the order of their revisions.

    So the key that was stored first is also stored first in the new store. Values are read one at a
    time.
    """
    found: list[tuple[int, str]] = []
    for key in await store.keys(""):
        kept = None if key.startswith(KEY_PREFIX) else await store.get(key)
        if kept is not None:
            found.append((kept.revision, key))
    return [key for _, key in sorted(found)]


async def _state(log: MovableLog, store: KeyValueStore) -> tuple[Any, ...]:
    return await log.start(), await log.end(), dict(await log.cursors()), await store.revision()


async def _write_records(log: MovableLog, writer: _Writer, start: int, end: int) -> None:
    while start < end:
        entries = await log.read(start, records_max=BATCH_RECORDS_MAX, bytes_max=BATCH_BYTES_MAX)
        if not entries:
            raise LogCorruptError(f"the log ends at {start}, and not at {end}")
        encoded = [
            b"" if entry.record.kind == FILLER else encode(entry.record) for entry in entries
        ]
        writer.frame(Records(start, encoded))
        start = entries[-1].offset + 1


# -- into a log --------------------------------------------------------------------------------


async def import_log(path: Path, log: MovableLog, store: MovableStore) -> Contents:
    """Fill a new log and its store from an export file; the log gets the exported log's id.

    Raises LogCorruptError for a damaged file, and LogError for a log that is not new: nothing is
    changed then. After any other error the log is filled only in part, and cannot be used.
    """
    contents = read_contents(path)
    by = f"haproc log import of {path.name}"
    await check_new(log, store)
    await remember(log, store, Origin(MoveState.HALF, by=by))
    await log.begin_at(contents.start)
    await log.refill(contents.end, lambda: _batches(path))
    await store.refill(_values(path), contents.revision)
    for frame in frames(path):
        if isinstance(frame, Reader):
            await log.commit_cursor(frame.name, Cursor(frame.offset, frame.note, frame.epoch))
    await remember(log, store, Origin(MoveState.WHOLE, contents.identity, by))
    return contents


async def check_new(log: MovableLog, store: KeyValueStore, *, resumed: str = "") -> None:
    """Raise LogError if the log or its store has been used.

    ``resumed``: a command that may repeat its own interrupted work in this log.
    """
    origin = await origin_of(log, store)
    if resumed and origin.standing is MoveState.HALF and origin.by == resumed:
        return
    if origin.standing is MoveState.HALF:
        raise LogError(
            f"this log is not whole: {origin.by} was cut off. Remove it and its store (SQLite: the "
            "file, the one with -store behind its name, and what lies beside them; Kafka: the "
            "topic, the one with .store behind its name, and its consumer groups), then repeat "
            "the command"
        )
    span = await log.start(), await log.end()
    readers = sorted(await log.cursors())
    keys = [key for key in await store.keys("") if not key.startswith(KEY_PREFIX)]
    for found, what in (
        (span != (0, 0), f"it has offsets from {span[0]} to {span[1]}"),
        (readers, f"it has cursors of {', '.join(readers)}"),
        (keys, f"its store has {len(keys)} keys"),
    ):
        if found:
            raise LogError(f"this log is not new: {what}. Name a new one; nothing was changed")


def _batches(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    for frame in frames(path):
        if isinstance(frame, Records):
            yield frame.first, [data or FILLER_STORED for data in frame.encoded]


def _values(path: Path) -> Iterator[Placed]:
    for frame in frames(path):
        if isinstance(frame, Value):
            yield Placed(frame.key, frame.value, frame.revision)
