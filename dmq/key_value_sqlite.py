"""A key-value store in a SQLite file, shared by the processes of one host."""

from __future__ import annotations

import asyncio
import functools
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from dmq.key_value import FIRST_REVISION, Kept, Placed, check_key, check_value
from dmq.log import LogRegressedError
from dmq.sqlite_file import FileReader, FileWriter, Format, Outcome, translated
from dmq.sqlite_handle import CHECK_S, FileHandle, FileWrite
from dmq.waiting import CHANGES_MAX, Changes

# The key-value store's SQLite file: blocking calls on top of `sqlite_file`.
#
# The format (schema version 1): ``kept(key, revision, value)``, and ``changes(revision, key)``, the
# newest changes, deletions among them. The newest change is never deleted, so no revision is given
# out twice. The file is not the log's: some values are large, and an append must not wait for the
# transaction that stores one.


_COLUMNS: Final = 64
_LARGE_BYTES: Final = 64 << 10
"""A put of at least this size may replace as large a value, whose space can be freed."""

_FORMAT: Final = Format(
    what="keyed store",
    application_id=0x444D514B,  # "DMQK"
    version=1,
    schema=(
        "CREATE TABLE kept (key BLOB PRIMARY KEY, revision INTEGER NOT NULL, value BLOB NOT NULL)",
        "CREATE TABLE changes (revision INTEGER PRIMARY KEY, key BLOB NOT NULL)",
    ),
)
_REVISION: Final = "SELECT ifnull(max(revision), 0) FROM changes"
_BELOW: Final = "key >= ?1 AND (?2 IS NULL OR key < ?2)"
_IN_ONE_ROW: Final = "group_concat(hex(key) || ' ' || revision)"
"""SQL that gives all keys and revisions in one row.

After every row the thread must get Python's interpreter lock back, which takes long beside a busy
event loop.
"""


@dataclass(frozen=True, slots=True)
class Put(FileWrite):
    """A change: store a value under a key."""

    key: bytes
    value: bytes

    @property
    def size_bytes(self) -> int:
        """The size of the value."""
        return len(self.value)

    @property
    def frees(self) -> bool:
        """True if the value that it replaces may leave free space in the file."""
        return len(self.value) >= _LARGE_BYTES


@dataclass(frozen=True, slots=True)
class Delete(FileWrite):
    """A change: delete a key."""

    key: bytes
    frees = True


@dataclass(frozen=True, slots=True)
class Place(FileWrite):
    """A change: store a value at the revision that it had in another store.

    With an empty key nothing is stored, and only the revision is used up.
    """

    key: bytes
    value: bytes
    revision: int

    @property
    def size_bytes(self) -> int:
        """The size of the value."""
        return len(self.value)


Change: TypeAlias = Put | Delete | Place


class StoreWriter(FileWriter[Change]):
    """The connection that changes the store."""

    format = _FORMAT

    def _write(self, group: Sequence[Change]) -> tuple[list[Outcome], int]:
        revision = _revision(self._db)
        self._check_end(revision + 1)
        outcomes: list[Outcome] = []
        for change in group:
            if isinstance(change, Place):
                revision = max(revision, change.revision)
                self._place(change)
                outcomes.append([change.revision])
                continue
            if isinstance(change, Put):
                revision = max(revision + 1, FIRST_REVISION)
                self._db.execute(
                    "INSERT OR REPLACE INTO kept VALUES (?, ?, ?)",
                    (change.key, revision, change.value),
                )
            elif self._db.execute("DELETE FROM kept WHERE key = ?", (change.key,)).rowcount:
                revision += 1
            else:
                outcomes.append(None)
                continue
            self._db.execute("INSERT INTO changes VALUES (?, ?)", (revision, change.key))
            outcomes.append([revision])
        self._db.execute("DELETE FROM changes WHERE revision <= ?", (revision - CHANGES_MAX,))
        return outcomes, revision + 1

    def _place(self, change: Place) -> None:
        row = change.revision, change.key
        if change.key:
            values = (change.key, change.revision, change.value)
            self._db.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", values)
        self._db.execute("INSERT OR REPLACE INTO changes VALUES (?, ?)", row)

    def _delete_some(self) -> bool:
        return False


class StoreReader(FileReader):
    """The connection that reads the store."""

    _announced = 0

    def get(self, key: bytes) -> Kept | None:
        """Return the value under this key, with its revision; None if there is none."""
        with translated(self._path):
            self._revision()
            row = self._db.execute("SELECT value, revision FROM kept WHERE key = ?", (key,))
            found = row.fetchone()
        return None if found is None else Kept(*found)

    def scan(self, prefix: bytes) -> dict[str, Kept]:
        """Return the values of all keys that begin with ``prefix``, in the keys' order."""
        with translated(self._path), self._db:
            self._db.execute("BEGIN")
            self._revision()
            found = self._keys(prefix)
            values: list[bytes] = []
            for first in range(0, len(found), _COLUMNS):
                keys = [key for key, _ in found[first : first + _COLUMNS]]
                values += self._db.execute(_select_sql(len(keys)), keys).fetchone()
        return {
            key.decode(): Kept(value, revision)
            for (key, revision), value in zip(found, values, strict=True)
        }

    def keys(self, prefix: bytes) -> list[str]:
        """Return the keys that begin with ``prefix``, in order."""
        with translated(self._path):
            self._revision()
            return [key.decode() for key, _ in self._keys(prefix)]

    def revision(self) -> int:
        """Return the revision of the newest change; 0 if there was none yet."""
        with translated(self._path):
            return self._revision()

    def changes(self, after: int) -> tuple[int, list[tuple[int, str]]]:
        """Return the oldest revision that the file still lists, and the changes after ``after``."""
        with translated(self._path):
            self._check_in_place()
            oldest, texts = self._db.execute(
                f"SELECT (SELECT min(revision) FROM changes), {_IN_ONE_ROW}"
                " FROM (SELECT * FROM changes WHERE revision > ? ORDER BY revision)",
                (after,),
            ).fetchone()
        return oldest or 0, [(revision, key.decode()) for key, revision in _read(texts)]

    def _revision(self) -> int:
        """Return the newest revision. Raises LogRegressedError if the store lost changes."""
        self._check_in_place()
        revision = _revision(self._db)
        if revision < self._announced:
            raise LogRegressedError(
                f"{self._path} is at revision {revision}, but was at {self._announced}: "
                "it lost its newest changes"
            )
        self._announced = revision
        return revision

    def _keys(self, prefix: bytes) -> list[tuple[bytes, int]]:
        """Return the keys that begin with ``prefix`` and their revisions, in order."""
        (texts,) = self._db.execute(
            f"SELECT {_IN_ONE_ROW}"
            f" FROM (SELECT key, revision FROM kept WHERE {_BELOW} ORDER BY key)",
            (prefix, _end_of(prefix)),
        ).fetchone()
        return _read(texts)


def _revision(db: sqlite3.Connection) -> int:
    return int(db.execute(_REVISION).fetchone()[0])


def _read(texts: str | None) -> list[tuple[bytes, int]]:
    """Return the keys and revisions from a text that `_IN_ONE_ROW` made."""
    pairs = [text.split(" ") for text in texts.split(",")] if texts else []
    return [(bytes.fromhex(key), int(revision)) for key, revision in pairs]


def _end_of(prefix: bytes) -> bytes | None:
    """Return the first key behind all that begin with ``prefix``; None for an empty prefix.

    It is the prefix with its last byte plus one: UTF-8 has no byte 255.
    """
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else None


@functools.cache
def _select_sql(keys: int) -> str:
    """Return a query that gives the values of ``keys`` keys as the columns of one row."""
    return "SELECT " + ",".join(["(SELECT value FROM kept WHERE key = ?)"] * keys)


# A key-value store in a SQLite file, shared by the processes of one host, by a `sqlite_handle`.
#
# All state is in the file, and every read sees all changes. A repeated call of ``keys`` with the
# same prefix, while no process writes, is answered from memory: writers ring the bell before their
# change counts as made (see `dmq.sqlite_file`), and reading the bell costs a thousandth of a read.


LOOKS_MAX: Final = 4096
"""The most answers of ``keys`` in memory; chosen."""


@dataclass(frozen=True, slots=True)
class _Look:
    """An answer of ``keys``: valid for this value of the bell, and until this time in seconds."""

    announced: int
    until: float
    keys: tuple[str, ...]


class SqliteKeyValueStore:
    """One process's handle to the store; see `dmq.key_value.KeyValueStore`. Made by ``open``."""

    def __init__(self, file: FileHandle[Change, StoreReader]) -> None:
        self._file = file
        self._changes = Changes()
        self._waiting = 0
        self._looks: dict[str, _Look] = {}
        self._clock = asyncio.get_running_loop().time
        file.listener = self

    @classmethod
    async def open(cls, path: str | Path) -> SqliteKeyValueStore:
        """Open the store in this file; create it if necessary. Raises as `FileHandle.open`."""
        return cls(await FileHandle.open(path, StoreWriter, StoreReader))

    async def put(self, key: str, value: bytes) -> int:
        """Store the value under the key, durably; return the change's revision.

        If the caller is cancelled, the value may or may not be stored.
        """
        check_key(key)
        check_value(key, value)
        outcome = await self._file.submit(Put(key.encode(), value))
        assert isinstance(outcome, list)
        return outcome[0]

    async def get(self, key: str) -> Kept | None:
        """Return the value under this key, with its revision; None if there is none."""
        check_key(key)
        return await self._file.run_on_reading_thread(lambda: self._file.reader.get(key.encode()))

    async def delete(self, key: str) -> None:
        """Delete the key and its value, durably; harmless if there is none."""
        check_key(key)
        await self._file.submit(Delete(key.encode()))

    async def scan(self, prefix: str) -> dict[str, Kept]:
        """Return the values of all keys that begin with ``prefix``, in the keys' order."""
        return await self._file.run_on_reading_thread(
            lambda: self._file.reader.scan(prefix.encode())
        )

    async def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with ``prefix``, in order."""
        self._file.check_open()
        announced, now = self._file.announced(), self._clock()
        known = self._looks.get(prefix)
        if known is None or known.announced != announced or now >= known.until:
            found = await self._file.run_on_reading_thread(
                lambda: self._file.reader.keys(prefix.encode())
            )
            if len(self._looks) >= LOOKS_MAX:
                self._looks.clear()
            known = self._looks[prefix] = _Look(announced, now + CHECK_S, tuple(found))
        return list(known.keys)

    async def revision(self) -> int:
        """Return the revision of the newest change; 0 if there was none yet."""
        return await self._file.run_on_reading_thread(self._file.reader.revision)

    async def wait(self, prefix: str, after: int, timeout_s: float) -> bool:
        """Wait for a change below ``prefix`` after revision ``after``; False if there is none."""
        self._waiting += 1
        try:
            await self.look()
            self._file.check_open()
            self._file.listen()
            return await self._changes.wait(prefix, after, timeout_s)
        finally:
            self._waiting -= 1

    async def refill(self, values: Iterable[Placed], end: int) -> None:
        """Store another store's values at their revisions (`MovableStore.refill`)."""
        for each in values:
            await self._file.submit(Place(each.key.encode(), each.value, each.revision))
        if await self.revision() < end:
            await self._file.submit(Place(b"", b"", end))

    async def close(self) -> None:
        """Close the file and the threads; unfinished changes finish first."""
        await self._file.close()

    # -- events of its file ------------------------------------------------------------

    def wanted(self) -> bool:
        """True if a task waits for a change, so that other processes' writes matter."""
        return self._waiting > 0

    def written(self, end: int) -> bool:
        """Return False: the file must be read.

        Other processes' changes may lie between those of this process.
        """
        return False

    async def look(self) -> None:
        """Read the new changes from the file, and wake the tasks that wait for them."""
        known = self._changes.revision
        oldest, found = await self._file.run_on_reading_thread(
            lambda: self._file.reader.changes(known)
        )
        if oldest > max(self._changes.revision + 1, FIRST_REVISION):
            self._changes.begin(oldest - 1)
        for revision, key in found:
            self._changes.note(revision, key)

    def fail(self, error: Exception) -> None:
        """Make the waiting calls raise ``error``."""
        self._changes.fail(error)
