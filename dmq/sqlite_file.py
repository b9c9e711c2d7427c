"""The log's SQLite file: blocking calls, each side for one thread of its own.

The format (schema version 1): ``records(offset, data)`` in the order of the log, ``cursors``, and
``meta`` with the schema version, the log's id and ``start``, the trim point. Offsets are dense:
the next one is the newest record's plus one, or ``start`` if there is no record, since nothing can
be trimmed beyond the end; so none is given out twice, whatever was trimmed or restarted.

Everything that changes the file runs within the WriterLock, checkpoints included. Write-ahead log
with synchronous=FULL: a commit is on the disk when it returns. Trimming moves ``start`` at once;
the space comes back afterwards in small steps (``housekeep``), so that no append waits for long.
"""

from __future__ import annotations

import functools
import logging
import os
import sqlite3
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import quote

from dmq.entries import check_epoch, check_not_beyond, check_readable, decode_run
from dmq.errors import LogCorruptError, LogError, LogRegressedError, LogUnavailableError
from dmq.interface import Cursor, Entry
from dmq.writer_lock import LOCK_TIMEOUT_S, WriterLock

SCHEMA_VERSION: Final = 1
APPLICATION_ID: Final = 0x444D5131
""""DMQ1" in the file's header: what tells a log from any other SQLite file."""

WAL_BYTES_MAX: Final = 64 << 20
"""From this size on a write-ahead log that readers kept from being reused is emptied by force."""
_WAL_BYTES_KEPT: Final = 16 << 20
_CHECKPOINT_WAIT_MS: Final = 100
_ROWS_PER_INSERT_MAX: Final = 64
_READ_RECORDS_MAX: Final = 4096
_COLUMNS: Final = 64
_TRIM_ROWS_MAX: Final = 512
_TRIM_BYTES_MAX: Final = 4 << 20
_VACUUM_PAGES: Final = 1024
_FREE_PAGES_KEPT: Final = 1024
_GONE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_MISUSED: Final = frozenset(
    {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISUSE, sqlite3.SQLITE_CONSTRAINT}
)

_SCHEMA: Final = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID",
    "CREATE TABLE records (offset INTEGER PRIMARY KEY, data BLOB NOT NULL)",
    "CREATE TABLE cursors (reader TEXT PRIMARY KEY, offset INTEGER NOT NULL, note TEXT NOT NULL,"
    " epoch INTEGER NOT NULL) WITHOUT ROWID",
)
_START: Final = "(SELECT value FROM meta WHERE name = 'start')"
_SPAN: Final = f"SELECT {_START}, ifnull((SELECT max(offset) + 1 FROM records), {_START})"

_logger = logging.getLogger("dmq")


@dataclass(frozen=True, slots=True)
class Append:
    """Records to append, adjacent and in order."""

    encoded: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class CommitCursor:
    """A reader's new cursor."""

    reader: str
    cursor: Cursor


@dataclass(frozen=True, slots=True)
class Trim:
    """A new trim point."""

    before: int


Write: TypeAlias = Append | CommitCursor | Trim
Outcome: TypeAlias = "list[int] | LogError | None"
"""What one write of a group gave: offsets, nothing, or why it was refused (the others stand)."""


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn SQLite's and the system's errors into the package's, by their codes."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in _GONE:
            raise LogCorruptError(f"{path} is damaged: {error}") from error
        if code in _MISUSED:
            raise LogError(f"{path}: {error}") from error
        raise LogUnavailableError(f"{path} cannot be used now: {error}") from error
    except OSError as error:
        raise LogUnavailableError(f"{path} cannot be used now: {error.strerror}") from error


def _make(path: Path) -> None:
    """Make the file, for its user alone; SQLite gives those beside it the same mode."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


class _Side:
    """A connection, and the proof that its file is still the one at its path."""

    def __init__(self, path: Path, mode: str) -> None:
        self._path = path
        self._db = sqlite3.connect(
            f"file:{quote(str(path))}?mode={mode}",
            uri=True,
            isolation_level=None,
            timeout=LOCK_TIMEOUT_S,
        )
        self._inode = _inode(path)

    def _check_in_place(self) -> None:
        """Refuse to go on in a file that others no longer see."""
        if _inode(self._path) != self._inode:
            raise LogUnavailableError(
                f"{self._path} was removed or replaced while it was in use: restart this process"
            )

    def _span(self) -> tuple[int, int]:
        start, end = self._db.execute(_SPAN).fetchone()
        return start, end


class LogWriter(_Side):
    """The side that changes the file; creates it if need be."""

    def __init__(self, path: Path, lock: WriterLock) -> None:
        self._lock = lock
        self._wal = f"{path}-wal"
        try:
            with translated(path), lock.held():
                _make(path)
                super().__init__(path, "rwc")
                try:
                    self._prepare()
                except BaseException:
                    self._db.close()
                    raise
        except LogCorruptError as error:
            raise LogError(f"{path} is not a log: {error.__cause__}") from error
        self._end_given = 0
        self._space_freed = False

    @property
    def log_id(self) -> str:
        """The id given to the log when it was created."""
        return self._log_id

    def write(self, group: Sequence[Write]) -> tuple[list[Outcome], int]:
        """Make a group of writes durable in one transaction; return their outcomes and the end."""
        with translated(self._path), self._lock.held():
            self._check_in_place()
            with self._transaction():
                outcomes, end = self._write(group)
            self._end_given = end
            self._lock.ring(end)
            self._bound_wal()
        return outcomes, end

    def housekeep(self) -> bool:
        """Give back a little of the space of trimmed records; return whether there is more."""
        with translated(self._path), self._lock.held():
            self._check_in_place()
            if self._delete_trimmed() or self._shrink():
                self._space_freed = True
            elif self._space_freed:
                # The file itself gets smaller when the write-ahead log is carried over to it.
                self._space_freed = False
                self._empty_wal()
            return self._space_freed

    def close(self) -> None:
        """Close the connection; the last one of all tidies the write-ahead log up."""
        try:
            with self._lock.held():
                self._db.close()
        except LogUnavailableError:
            # Another process sits on the lock: nothing of ours is at stake, so don't insist.
            self._db.close()

    def _write(self, group: Sequence[Write]) -> tuple[list[Outcome], int]:
        start, end = self._span()
        if end < self._end_given:
            raise LogRegressedError(
                f"{self._path} ends at {end}, but gave out offset {self._end_given - 1} before: "
                "it lost its newest records"
            )
        outcomes: list[Outcome] = []
        first = end
        fresh: list[bytes] = []
        for write in group:
            outcome: Outcome = None
            match write:
                case Append(encoded):
                    outcome = list(range(end, end + len(encoded)))
                    fresh.extend(encoded)
                    end += len(encoded)
                case CommitCursor(reader, cursor):
                    outcome = self._commit(reader, cursor)
                case Trim(before):
                    try:
                        check_not_beyond(before, end)
                    except LogError as error:
                        outcome = error
                    else:
                        start = max(start, before)
                        self._db.execute("UPDATE meta SET value = ? WHERE name = 'start'", (start,))
            outcomes.append(outcome)
        self._insert(first, fresh)
        return outcomes, end

    def _commit(self, reader: str, cursor: Cursor) -> Outcome:
        try:
            check_epoch(reader, _cursors(self._db, reader).get(reader), cursor)
        except LogError as error:
            return error
        self._db.execute(
            "INSERT OR REPLACE INTO cursors VALUES (?, ?, ?, ?)",
            (reader, cursor.offset, cursor.note, cursor.epoch),
        )
        return None

    def _insert(self, first: int, encoded: Sequence[bytes]) -> None:
        # Many rows in one statement: the interpreter's lock changes hands once, not once a row.
        for index in range(0, len(encoded), _ROWS_PER_INSERT_MAX):
            rows = encoded[index : index + _ROWS_PER_INSERT_MAX]
            values: list[int | bytes] = []
            for offset, data in enumerate(rows, first + index):
                values += (offset, data)
            self._db.execute(_insert_sql(len(rows)), values)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _prepare(self) -> None:
        if self._pragma("application_id") != APPLICATION_ID:
            if self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise LogError(f"{self._path} is not a log, but another program's SQLite file")
            self._create()
        meta = dict(self._db.execute("SELECT name, value FROM meta"))
        if meta["schema_version"] > SCHEMA_VERSION:
            raise LogError(
                f"{self._path} has schema version {meta['schema_version']}; this version of dmq "
                f"knows {SCHEMA_VERSION}: upgrade it"
            )
        self._log_id: str = meta["log_id"]
        self._pragma("synchronous=FULL")
        self._pragma(f"journal_size_limit={_WAL_BYTES_KEPT}")

    def _create(self) -> None:
        self._pragma("auto_vacuum=INCREMENTAL")
        if self._pragma("journal_mode=WAL") != "wal":
            raise LogError(f"{self._path} is on a file system without shared memory: use another")
        self._pragma("synchronous=FULL")
        with self._transaction():
            for statement in _SCHEMA:
                self._db.execute(statement)
            self._db.executemany(
                "INSERT INTO meta VALUES (?, ?)",
                [("schema_version", SCHEMA_VERSION), ("log_id", uuid.uuid4().hex), ("start", 0)],
            )
            self._pragma(f"application_id={APPLICATION_ID}")

    def _pragma(self, text: str) -> int | str | None:
        rows = self._db.execute(f"PRAGMA {text}").fetchall()
        return rows[0][0] if rows else None

    def _bound_wal(self) -> None:
        """Empty the write-ahead log if readers kept it from being reused for too long."""
        size = os.stat(self._wal).st_size  # noqa: PTH116 -- as below
        if size >= WAL_BYTES_MAX and not self._empty_wal():
            _logger.warning("%s: a long read keeps it from shrinking", self._wal)

    def _empty_wal(self) -> bool:
        """Carry the write-ahead log over and cut it to nothing; False if a read is in the way."""
        self._pragma(f"busy_timeout={_CHECKPOINT_WAIT_MS}")
        try:
            return self._pragma("wal_checkpoint(TRUNCATE)") == 0
        finally:
            self._pragma(f"busy_timeout={int(LOCK_TIMEOUT_S * 1000)}")

    def _delete_trimmed(self) -> bool:
        """Delete a step's worth of records below the trim point; return whether any was left."""
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

    def _shrink(self) -> bool:
        """Return free pages to the file system, but for some that the next appends will use."""
        free, pages = self._pragma("freelist_count"), self._pragma("page_count")
        if not isinstance(free, int) or not isinstance(pages, int):
            return False
        surplus = free - max(_FREE_PAGES_KEPT, pages // 4)
        if surplus <= 0:
            return False
        # As a script, since ``execute`` would stop after the first page.
        self._db.executescript(f"PRAGMA incremental_vacuum({min(surplus, _VACUUM_PAGES)})")
        return True


def _cursors(db: sqlite3.Connection, reader: str | None) -> dict[str, Cursor]:
    """Return every reader's cursor, or one reader's."""
    rows = db.execute(
        "SELECT reader, offset, note, epoch FROM cursors WHERE ?1 IS NULL OR reader = ?1",
        (reader,),
    )
    return {name: Cursor(offset, note, epoch) for name, offset, note, epoch in rows}


class LogReader(_Side):
    """The side that reads; never waits for a writer, and its snapshots are short."""

    def __init__(self, path: Path) -> None:
        with translated(path):
            super().__init__(path, "rw")
            self._db.execute("PRAGMA query_only=ON")

    def read(self, start: int, records_max: int, bytes_max: int) -> list[Entry]:
        """See Log.read."""
        with translated(self._path):
            rows = self._rows(start, max(1, records_max), bytes_max)
            if not rows:
                check_readable(start, *self._span())
            return decode_run(start, rows)

    def span(self) -> tuple[int, int]:
        """Return the lowest offset that can be read and the end."""
        with translated(self._path):
            self._check_in_place()
            return self._span()

    def cursors(self, reader: str | None = None) -> dict[str, Cursor]:
        """Return every reader's cursor, or one reader's."""
        with translated(self._path):
            return _cursors(self._db, reader)

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def _rows(self, start: int, records_max: int, bytes_max: int) -> list[tuple[int, bytes]]:
        """Return the stored bytes from ``start`` on, up to a limit or a missing record.

        Records come as the columns of a few wide rows, not as rows: after every row the thread has
        to get the interpreter's lock back. Beside an event loop that is busy all the time, 1,024
        rows took up to 37 s (measured), as wide rows 0.05 s.
        """
        # Records below the trim point may still be there, but nobody may see them.
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


def _count_within(sizes: Iterable[int], bytes_max: int) -> int:
    """Return how many of the leading records are within the limit, but at least one."""
    count = total = 0
    for size in sizes:
        total += size
        if count and total > bytes_max:
            break
        count += 1
    return count


@functools.cache
def _select_sql(columns: int) -> str:
    """Return a query for the records from ?1 on and below ?2, each in a column, NULL if missing."""
    return "SELECT " + ",".join(
        f"(SELECT data FROM records WHERE offset = ?1 + {column} AND offset < ?2)"
        for column in range(columns)
    )


@functools.cache
def _insert_sql(rows: int) -> str:
    return "INSERT INTO records VALUES " + ",".join(["(?,?)"] * rows)


def _inode(path: Path) -> tuple[int, int]:
    status = os.stat(path)  # noqa: PTH116 -- half the time of Path.stat, at every commit
    return status.st_dev, status.st_ino
