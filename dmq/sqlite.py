"""A log in a SQLite file, shared by the processes of one host: its records and cursors."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from dmq.log import (
    RECORD_BYTES_MAX,
    Batches,
    Cursor,
    Entry,
    LogError,
    Record,
    check_begins,
    check_cursor,
    check_epoch,
    check_not_beyond,
    check_placed,
    check_readable,
    decode_run,
    encode_all,
)
from dmq.sqlite_file import FileReader, FileWriter, Format, Outcome, translated
from dmq.sqlite_handle import FileHandle, FileWrite
from dmq.waiting import Waiters

# The log's SQLite file: records and cursors, blocking calls on top of `sqlite_file`.
#
# The format (schema version 1): ``records(offset, data)`` in the order of the log, ``cursors``, and
# ``meta`` with the schema version, the log's id and ``start``, the trim point. Offsets are dense:
# the next one is the newest record's plus one, or ``start`` if there is no record, because nothing
# can be trimmed beyond the end. So no offset is given out twice, even after trims and restarts.
#
# Trimming moves ``start`` at once; the space is freed afterwards.


_ROWS_PER_INSERT_MAX: Final = 64
_LARGE_BYTES: Final = 64 << 10
_INSERT_LARGE: Final = "INSERT INTO records SELECT ?1, ?2 WHERE ?1 >= 0"
_READ_RECORDS_MAX: Final = 4096
_COLUMNS: Final = 64
_TRIM_ROWS_MAX: Final = 512
_TRIM_BYTES_MAX: Final = 4 << 20

_FORMAT: Final = Format(
    what="log",
    application_id=0x444D5131,  # "DMQ1"
    version=1,
    schema=(
        "CREATE TABLE records (offset INTEGER PRIMARY KEY, data BLOB NOT NULL)",
        "CREATE TABLE cursors (reader TEXT PRIMARY KEY, offset INTEGER NOT NULL,"
        " note TEXT NOT NULL, epoch INTEGER NOT NULL) WITHOUT ROWID",
        "INSERT INTO meta VALUES ('start', 0)",
    ),
)
_START: Final = "(SELECT value FROM meta WHERE name = 'start')"
_SPAN: Final = f"SELECT {_START}, ifnull((SELECT max(offset) + 1 FROM records), {_START})"


@dataclass(frozen=True, slots=True)
class Append(FileWrite):
    """A write: append records, at adjacent offsets and in order."""

    encoded: tuple[bytes, ...]

    @property
    def rows(self) -> int:
        """The number of records."""
        return len(self.encoded)

    @property
    def size_bytes(self) -> int:
        """The size of the records together."""
        return sum(map(len, self.encoded))


@dataclass(frozen=True, slots=True)
class CommitCursor(FileWrite):
    """A write: store a reader's cursor."""

    reader: str
    cursor: Cursor


@dataclass(frozen=True, slots=True)
class Trim(FileWrite):
    """A write: set the offset below which records are deleted."""

    before: int
    frees = True


@dataclass(frozen=True, slots=True)
class Begin(FileWrite):
    """A write: set the offset at which a log without records begins."""

    at: int


Write: TypeAlias = Append | CommitCursor | Trim | Begin


class LogWriter(FileWriter[Write]):
    """The connection that changes the log."""

    format = _FORMAT

    def _write(self, group: Sequence[Write]) -> tuple[list[Outcome], int]:
        start, end = _span(self._db)
        self._check_end(end)
        outcomes: list[Outcome] = []
        first = end
        fresh: list[bytes] = []
        for write in group:
            outcome: Outcome = None
            try:
                match write:
                    case Append(encoded):
                        outcome = list(range(end, end + len(encoded)))
                        fresh.extend(encoded)
                        end += len(encoded)
                    case CommitCursor(reader, cursor):
                        self._commit(reader, cursor)
                    case Trim(before):
                        check_not_beyond(before, end)
                        start = max(start, before)
                        self._set_start(start)
                    case Begin(at):
                        check_begins(at, start, end)
                        start = first = end = at
                        self._set_start(start)
            except LogError as error:  # refused; the other writes of the group are stored
                outcome = error
            outcomes.append(outcome)
        self._insert(first, fresh)
        return outcomes, end

    def _set_start(self, start: int) -> None:
        self._db.execute("UPDATE meta SET value = ? WHERE name = 'start'", (start,))

    def _commit(self, reader: str, cursor: Cursor) -> None:
        check_epoch(reader, _cursors(self._db, reader).get(reader), cursor)
        self._db.execute(
            "INSERT OR REPLACE INTO cursors VALUES (?, ?, ?, ?)",
            (reader, cursor.offset, cursor.note, cursor.epoch),
        )

    def _insert(self, first: int, encoded: Sequence[bytes]) -> None:
        values: list[int | bytes] = []
        for offset, data in enumerate(encoded, first):
            if len(data) > _LARGE_BYTES:
                self._insert_large(offset, data)
                continue
            values += (offset, data)
            if len(values) == 2 * _ROWS_PER_INSERT_MAX:
                self._insert_many(values)
                values = []
        self._insert_many(values)

    def _insert_many(self, values: Sequence[int | bytes]) -> None:
        # In one statement: the interpreter's lock changes hands once, not once per row.
        if values:
            self._db.execute(_insert_sql(len(values) // 2), values)

    def _insert_large(self, offset: int, data: bytes) -> None:
        # Alone: SQLite makes two copies of a statement's values. The statement is cached, and keeps
        # its last values: so small ones follow.
        self._db.execute(_INSERT_LARGE, (offset, data))
        self._db.execute(_INSERT_LARGE, (-1, b""))

    def _delete_some(self) -> bool:
        """Delete a few of the records that a trim released; return False if there were none."""
        last, size = None, 0
        for offset, length in self._db.execute(
            f"SELECT offset, length(data) FROM records WHERE offset < {_START}"
            " ORDER BY offset LIMIT ?",
            (_TRIM_ROWS_MAX,),
        ).fetchall():
            if last is not None and size + length > _TRIM_BYTES_MAX:
                break
            last, size = offset, size + length
        if last is None:
            return False
        with self._transaction():
            self._db.execute("DELETE FROM records WHERE offset <= ?", (last,))
        return True


class LogReader(FileReader):
    """The connection that reads the log."""

    def read_entries(self, start: int, records_max: int, bytes_max: int) -> list[Entry]:
        """Return the entries from offset ``start`` on, at least one if there is any."""
        with translated(self._path):
            rows = self._rows(start, max(1, records_max), bytes_max)
            if not rows:
                check_readable(start, *_span(self._db))
            return decode_run(start, rows)

    def span(self) -> tuple[int, int]:
        """Return the lowest offset that can be read, and the offset after the newest record."""
        with translated(self._path):
            self._check_in_place()
            return _span(self._db)

    def cursors(self, reader: str | None = None) -> dict[str, Cursor]:
        """Return the stored cursors by reader; with ``reader`` only that reader's."""
        with translated(self._path):
            return _cursors(self._db, reader)

    def _rows(self, start: int, records_max: int, bytes_max: int) -> list[tuple[int, bytes]]:
        """Return the records' bytes from ``start`` on, up to a limit or a missing record.

        Records come as the columns of a few wide rows: after every row the thread must get Python's
        interpreter lock back. Beside an event loop that is always busy, 1,024 rows took up to 37 s
        (measured), as wide rows 0.05 s.
        """
        # Records below the trim point may still be there, but no reader may see them.
        (sizes,) = self._db.execute(
            "SELECT group_concat(size) FROM (SELECT length(data) AS size FROM records"
            f" WHERE offset >= ?1 AND offset < ?1 + ?2 AND ?1 >= {_START} ORDER BY offset)",
            (start, min(records_max, _READ_RECORDS_MAX)),
        ).fetchone()
        end = start + _count_within(map(int, sizes.split(",")) if sizes else (), bytes_max)
        rows: list[tuple[int, bytes]] = []
        for first in range(start, end, _COLUMNS):
            columns = 1 if end - first == 1 else _COLUMNS
            found = self._db.execute(_select_sql(columns), (first, end)).fetchone()
            for offset, data in enumerate(found, first):
                if data is None:
                    return rows
                rows.append((offset, data))
        return rows


def _span(db: sqlite3.Connection) -> tuple[int, int]:
    start, end = db.execute(_SPAN).fetchone()
    return start, end


def _cursors(db: sqlite3.Connection, reader: str | None) -> dict[str, Cursor]:
    """Return the stored cursors by reader; with a ``reader`` only that reader's."""
    rows = db.execute(
        "SELECT reader, offset, note, epoch FROM cursors WHERE ?1 IS NULL OR reader = ?1",
        (reader,),
    )
    return {name: Cursor(offset, note, epoch) for name, offset, note, epoch in rows}


def _count_within(sizes: Iterable[int], bytes_max: int) -> int:
    """Return how many of the first sizes add up to at most ``bytes_max``; at least 1."""
    count = total = 0
    for size in sizes:
        total += size
        if count and total > bytes_max:
            break
        count += 1
    return count


@functools.cache
def _select_sql(columns: int) -> str:
    """Return a query for the records from ?1 on and below ?2, in columns; missing: NULL."""
    return "SELECT " + ",".join(
        f"(SELECT data FROM records WHERE offset = ?1 + {column} AND offset < ?2)"
        for column in range(columns)
    )


@functools.cache
def _insert_sql(rows: int) -> str:
    return "INSERT INTO records VALUES " + ",".join(["(?,?)"] * rows)


# A log in a SQLite file, shared by the processes of one host, by a `sqlite_handle`.
#
# A waiting reader is woken at once by appends of its own handle, and within milliseconds by those
# of other processes.


class SqliteLog:
    """One process's handle to the log in a file; see `dmq.log.Log`. Made by ``open``."""

    def __init__(self, file: FileHandle[Write, LogReader], record_bytes_max: int) -> None:
        self._file = file
        self._record_bytes_max = record_bytes_max
        self.known_as = ""
        self._waiters = Waiters()
        file.listener = self

    @classmethod
    async def open(cls, path: str | Path, *, record_bytes_max: int = RECORD_BYTES_MAX) -> SqliteLog:
        """Open the log in this file; create it if necessary. Raises as `FileHandle.open`."""
        return cls(await FileHandle.open(path, LogWriter, LogReader), record_bytes_max)

    async def append(self, records: Sequence[Record]) -> list[int]:
        """Store the records durably at the end of the log, in order; return their offsets.

        If the caller is cancelled, the records may or may not be in the log.
        """
        encoded = encode_all(records, self._record_bytes_max)
        del records  # large records would stay in memory twice until they are written
        if not encoded:
            self._file.check_open()
            return []
        offsets = await self._file.submit(Append(encoded))
        assert isinstance(offsets, list)
        return offsets

    async def read(
        self, start: int, *, records_max: int = 1024, bytes_max: int = 16 << 20
    ) -> list[Entry]:
        """Return entries from offset ``start`` on, at least one if there is any (`Log.read`)."""
        reader = self._file.reader
        return await self._file.run_on_reading_thread(
            lambda: reader.read_entries(start, records_max, bytes_max)
        )

    async def wait(self, offset: int, timeout_s: float) -> bool:
        """Wait until the log's end is beyond ``offset`` (True), or the time is over (False)."""
        self._file.check_open()
        if self._waiters.end > offset:
            return True
        if timeout_s <= 0:
            return await self.end() > offset
        self._file.listen()  # begins once this task is among the waiters
        return await self._waiters.wait(offset, timeout_s)

    async def start(self) -> int:
        """Return the lowest offset that can still be read."""
        return (await self._file.run_on_reading_thread(self._file.reader.span))[0]

    async def end(self) -> int:
        """Return the offset after the newest record."""
        end = (await self._file.run_on_reading_thread(self._file.reader.span))[1]
        self._waiters.advance(end)
        return end

    async def load_cursor(self, reader: str) -> Cursor | None:
        """Return the reader's stored cursor, or None if it never stored one."""
        return (
            await self._file.run_on_reading_thread(lambda: self._file.reader.cursors(reader))
        ).get(reader)

    async def commit_cursor(self, reader: str, cursor: Cursor) -> None:
        """Store the reader's cursor. Raises FencedError if a stored one has a higher epoch."""
        check_cursor(cursor)
        await self._file.submit(CommitCursor(reader, cursor))

    async def cursors(self) -> Mapping[str, Cursor]:
        """Return every reader's stored cursor, by reader."""
        return await self._file.run_on_reading_thread(self._file.reader.cursors)

    async def trim(self, before: int) -> None:
        """Release the records below offset ``before``; they are deleted in the background."""
        await self._file.submit(Trim(before))

    async def identity(self) -> str:
        """Return the log's id: its id before a move, else the one given when it was created."""
        return self.known_as or self._file.file_id

    async def begin_at(self, offset: int) -> None:
        """Make a log without records begin, and end, at ``offset`` (`MovableLog.begin_at`)."""
        await self._file.submit(Begin(offset))

    async def refill(self, end: int, batches: Batches) -> None:
        """Append another log's records at their offsets (`MovableLog.refill`)."""
        for first, encoded in batches():
            offsets = await self._file.submit(Append(tuple(encoded)))
            assert isinstance(offsets, list)
            check_placed(first, offsets)

    async def close(self) -> None:
        """Close the file and the threads; unfinished appends finish first."""
        await self._file.close()

    # -- events of its file ------------------------------------------------------------

    def wanted(self) -> bool:
        """True if a task waits for new records, so that other processes' writes matter."""
        return bool(self._waiters)

    def written(self, end: int) -> bool:
        """Note the new end after writes of this process; return True: the file need not be read."""
        self._waiters.advance(end)
        return True

    async def look(self) -> None:
        """Read the log's end from the file, and wake the tasks that wait for it."""
        await self.end()

    def fail(self, error: Exception) -> None:
        """Make the waiting calls raise ``error``."""
        self._waiters.fail(error)
