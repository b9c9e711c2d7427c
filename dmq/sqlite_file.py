"""A SQLite file that several processes of one host write: its lock, and the calls that block."""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import struct
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeAlias, TypeVar
from urllib.parse import quote

from dmq.log import LogCorruptError, LogError, LogRegressedError, LogUnavailableError

# One writer at a time on this host, and a bell for the readers.
#
# The lock file lies beside the log. Its lock (flock, gone with the process that held it) is taken
# around every transaction and checkpoint, for two reasons. SQLite's own lock is waited for in
# sleeps of up to 100 ms; this one in sleeps of at most 1 ms. And SQLite before 3.51.3 can corrupt a
# log when one process checkpoints while another one writes (sqlite.org/wal.html#walresetbug).
#
# The lock file's first 8 bytes are the bell: the log's end after the newest transaction. Waiting
# readers of other processes read the bell every few milliseconds, which costs one pread. It is a
# hint, not the truth: a writer killed between its commit and the bell leaves the bell silent. The
# next 8 bytes name the process that holds the lock, for error messages.


LOCK_TIMEOUT_S: Final = 5.0
"""How long a process waits for another one that writes the file; chosen, not measured."""
_SLEEP_FIRST_S: Final = 0.0001
_SLEEP_MAX_S: Final = 0.001
_NUMBER: Final = struct.Struct("<Q")


class WriterLock:
    """The lock file beside a SQLite file; it also has the bell (`dmq.sqlite_file`).

    ``held`` and ``ring`` are for the writing thread alone.
    """

    def __init__(self, path: Path, *, timeout_s: float = LOCK_TIMEOUT_S) -> None:
        """Open the lock file ``path``; create it if necessary. Raises OSError."""
        self._path = path
        self._timeout_s = timeout_s
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock while the block runs; LogUnavailableError if another process keeps it."""
        self._acquire()
        try:
            os.pwrite(self._fd, _NUMBER.pack(os.getpid()), _NUMBER.size)
            yield
        except OSError as error:
            raise LogUnavailableError(f"{self._path}: {error.strerror}") from error
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def ring(self, end: int) -> None:
        """Ring the bell: store the new end in the lock file, where all processes look for it."""
        os.pwrite(self._fd, _NUMBER.pack(end), 0)

    def announced(self) -> int:
        """Return the end that the bell last announced; 0 if none yet. Any thread may call it."""
        data = os.pread(self._fd, _NUMBER.size, 0)
        return int(_NUMBER.unpack(data)[0]) if len(data) == _NUMBER.size else 0

    def close(self) -> None:
        """Close the lock file; it stays, because other processes may use it."""
        os.close(self._fd)

    def _acquire(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        sleep_s = _SLEEP_FIRST_S
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                pass
            if time.monotonic() >= deadline:
                raise LogUnavailableError(
                    f"process {self._holder()} has held the lock {self._path} for more "
                    f"than {self._timeout_s:g} s: is it stopped, or its disk stuck?"
                )
            time.sleep(sleep_s)
            sleep_s = min(sleep_s * 2, _SLEEP_MAX_S)

    def _holder(self) -> int | str:
        data = os.pread(self._fd, _NUMBER.size, _NUMBER.size)
        return int(_NUMBER.unpack(data)[0]) if len(data) == _NUMBER.size else "unknown"


# A SQLite file that several processes of one host write: blocking calls, each side for one thread.
#
# The modules built on it define its content (`sqlite`, `key_value_sqlite`); this one makes it
# durable and keeps its size bounded. All changes of the file, checkpoints included, run within the
# WriterLock. Write-ahead log with synchronous=FULL: a commit is on the disk when it returns. Space
# is freed afterwards in small steps (``housekeep``), so that no write waits for long.


WAL_BYTES_MAX: Final = 64 << 20
"""A write-ahead log of this size is emptied if possible; long reads make it grow."""
_WAL_BYTES_KEPT: Final = 16 << 20
_CHECKPOINT_WAIT_MS: Final = 100
_VACUUM_PAGES: Final = 1024
_FREE_PAGES_KEPT: Final = 1024
_GONE: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_MISUSED: Final = frozenset(
    {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_MISUSE, sqlite3.SQLITE_CONSTRAINT}
)
_META: Final = "CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID"

Outcome: TypeAlias = "list[int] | LogError | None"
"""The result of one write of a group: its offsets, None if it has none, or its own error.

After an error the other writes of the group are stored all the same.
"""
WriteT = TypeVar("WriteT")
_logger = logging.getLogger("dmq")


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file: its application id, its version, and the statements that make a new one."""

    what: str
    application_id: int
    version: int
    schema: tuple[str, ...]


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """While the block runs, turn SQLite's and the system's errors into those of this package."""
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
    """Create the file, readable for its user alone; SQLite gives its other files the same mode."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


class Side:
    """A connection to the file, which checks that the file at the path is still the same one."""

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
        """Raise LogUnavailableError if the file was removed or replaced since it was opened."""
        if _inode(self._path) != self._inode:
            raise LogUnavailableError(
                f"{self._path} was removed or replaced while it was in use: restart this process"
            )


class FileWriter(Side, Generic[WriteT]):
    """The connection that changes the file; it creates the file if necessary."""

    format: Format

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
            raise LogError(f"{path} is not a {self.format.what}: {error.__cause__}") from error
        self._end_given = 0
        self._space_freed = False

    @property
    def file_id(self) -> str:
        """The id that the file got when it was created."""
        return self._file_id

    def write(self, group: Sequence[WriteT]) -> tuple[list[Outcome], int]:
        """Store a group of writes durably in one transaction.

        Returns the outcome of each write, and the end: the offset or revision after the newest one.
        """
        with translated(self._path), self._lock.held():
            self._check_in_place()
            with self._transaction():
                outcomes, end = self._write(group)
            self._end_given = end
            self._lock.ring(end)
            self._bound_wal()
        return outcomes, end

    def housekeep(self) -> bool:
        """Free a little of the space of deleted data; return True if there may be more."""
        with translated(self._path), self._lock.held():
            self._check_in_place()
            if self._delete_some() or self._shrink():
                self._space_freed = True
            elif self._space_freed:
                # The file itself shrinks when the write-ahead log is copied into it.
                self._space_freed = False
                self._empty_wal()
            return self._space_freed

    def close(self) -> None:
        """Close the connection; the last process that does so removes the write-ahead log."""
        try:
            with self._lock.held():
                self._db.close()
        except LogUnavailableError:
            # Another process holds the lock: closing without it loses nothing.
            self._db.close()

    def _write(self, group: Sequence[WriteT]) -> tuple[list[Outcome], int]:
        """Run the writes in the open transaction; return their outcomes and the new end."""
        raise NotImplementedError

    def _delete_some(self) -> bool:
        """Delete a little data that no reader can see; return False if there was none."""
        raise NotImplementedError

    def _check_end(self, end: int) -> None:
        """Raise LogRegressedError if the file's end is lower than it was: it lost writes."""
        if end < self._end_given:
            raise LogRegressedError(
                f"{self._path} ends at {end}, but gave out {self._end_given - 1} before: "
                "it lost its newest records"
            )

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
        wanted = self.format
        if self._pragma("application_id") != wanted.application_id:
            if self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                raise LogError(
                    f"{self._path} is not a {wanted.what}, but another program's SQLite file"
                )
            self._create()
        meta = dict(self._db.execute("SELECT name, value FROM meta"))
        if meta["schema_version"] > wanted.version:
            raise LogError(
                f"{self._path} has schema version {meta['schema_version']}; this version of dmq "
                f"knows {wanted.version}: upgrade it"
            )
        self._file_id: str = meta["log_id"]
        self._pragma("synchronous=FULL")
        self._pragma(f"journal_size_limit={_WAL_BYTES_KEPT}")

    def _create(self) -> None:
        self._pragma("auto_vacuum=INCREMENTAL")
        if self._pragma("journal_mode=WAL") != "wal":
            raise LogError(f"{self._path} is on a file system without shared memory: use another")
        self._pragma("synchronous=FULL")
        with self._transaction():
            for statement in (_META, *self.format.schema):
                self._db.execute(statement)
            self._db.executemany(
                "INSERT INTO meta VALUES (?, ?)",
                [("schema_version", self.format.version), ("log_id", uuid.uuid4().hex)],
            )
            self._pragma(f"application_id={self.format.application_id}")

    def _pragma(self, text: str) -> int | str | None:
        rows = self._db.execute(f"PRAGMA {text}").fetchall()
        return rows[0][0] if rows else None

    def _bound_wal(self) -> None:
        """Empty the write-ahead log if it has grown too large, because of long reads."""
        size = os.stat(self._wal).st_size  # noqa: PTH116 -- as below
        if size >= WAL_BYTES_MAX and not self._empty_wal():
            _logger.warning("%s: a long read keeps it from shrinking", self._wal)

    def _empty_wal(self) -> bool:
        """Copy the write-ahead log into the file and empty it; False if a read prevents it."""
        self._pragma(f"busy_timeout={_CHECKPOINT_WAIT_MS}")
        try:
            return self._pragma("wal_checkpoint(TRUNCATE)") == 0
        finally:
            self._pragma(f"busy_timeout={int(LOCK_TIMEOUT_S * 1000)}")

    def _shrink(self) -> bool:
        """Give free pages back to the file system, except some for the next writes.

        Returns True if it gave any back.
        """
        free, pages = self._pragma("freelist_count"), self._pragma("page_count")
        if not isinstance(free, int) or not isinstance(pages, int):
            return False
        surplus = free - max(_FREE_PAGES_KEPT, pages // 4)
        if surplus <= 0:
            return False
        # As a script, because ``execute`` would stop after the first page.
        self._db.executescript(f"PRAGMA incremental_vacuum({min(surplus, _VACUUM_PAGES)})")
        return True


class FileReader(Side):
    """The connection that reads the file; it never waits for a writer, and reads are short."""

    def __init__(self, path: Path) -> None:
        with translated(path):
            super().__init__(path, "rw")
            self._db.execute("PRAGMA query_only=ON")

    def close(self) -> None:
        """Close the connection."""
        self._db.close()


def _inode(path: Path) -> tuple[int, int]:
    status = os.stat(path)  # noqa: PTH116 -- half the time of Path.stat, at every commit
    return status.st_dev, status.st_ino
