"""A log in a SQLite file, shared by the processes of one host; see `sqlite_handle`.

A waiting reader is woken at once by appends of its own handle, and within milliseconds by those of
other processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dmq.entries import RECORD_BYTES_MAX, check_cursor, encode_all
from dmq.interface import Cursor, Entry
from dmq.record import Record
from dmq.sqlite_handle import FileHandle
from dmq.sqlite_records import Append, CommitCursor, LogReader, LogWriter, Trim, Write
from dmq.waiters import Waiters


class SqliteLog:
    """One process's handle to the log; see `dmq.interface.Log`. Made by ``open``."""

    def __init__(self, file: FileHandle[Write, LogReader], record_bytes_max: int) -> None:
        self._file = file
        self._record_bytes_max = record_bytes_max
        self._waiters = Waiters()
        file.listener = self

    @classmethod
    async def open(cls, path: str | Path, *, record_bytes_max: int = RECORD_BYTES_MAX) -> SqliteLog:
        """Open the log in this file, creating it if need be; raises as FileHandle.open does."""
        return cls(await FileHandle.open(path, LogWriter, LogReader), record_bytes_max)

    async def append(self, records: Sequence[Record]) -> list[int]:
        """See Log.append. If the caller is cancelled the records may or may not be there."""
        encoded = encode_all(records, self._record_bytes_max)
        if not encoded:
            self._file.check_open()
            return []
        offsets = await self._file.submit(Append(encoded))
        assert isinstance(offsets, list)
        return offsets

    async def read(
        self, start: int, *, records_max: int = 1024, bytes_max: int = 16 << 20
    ) -> list[Entry]:
        """See Log.read."""
        reader = self._file.reader
        return await self._file.ask(lambda: reader.read(start, records_max, bytes_max))

    async def wait(self, offset: int, timeout_s: float) -> bool:
        """See Log.wait."""
        self._file.check_open()
        if self._waiters.end > offset:
            return True
        if timeout_s <= 0:
            return await self.end() > offset
        self._file.listen()  # begins once this task is among the waiters
        return await self._waiters.wait(offset, timeout_s)

    async def start(self) -> int:
        """See Log.start."""
        return (await self._file.ask(self._file.reader.span))[0]

    async def end(self) -> int:
        """See Log.end."""
        end = (await self._file.ask(self._file.reader.span))[1]
        self._waiters.advance(end)
        return end

    async def load_cursor(self, reader: str) -> Cursor | None:
        """See Log.load_cursor."""
        return (await self._file.ask(lambda: self._file.reader.cursors(reader))).get(reader)

    async def commit_cursor(self, reader: str, cursor: Cursor) -> None:
        """See Log.commit_cursor."""
        check_cursor(cursor)
        await self._file.submit(CommitCursor(reader, cursor))

    async def cursors(self) -> Mapping[str, Cursor]:
        """See Log.cursors."""
        return await self._file.ask(self._file.reader.cursors)

    async def trim(self, before: int) -> None:
        """See Log.trim. The file gets smaller in the background."""
        await self._file.submit(Trim(before))

    async def identity(self) -> str:
        """See Log.identity: the id given to the file when it was created."""
        return self._file.file_id

    async def close(self) -> None:
        """See Log.close."""
        await self._file.close()

    # -- what its file tells it ------------------------------------------------------------

    def wanted(self) -> bool:
        """See Listener.wanted."""
        return bool(self._waiters)

    def written(self, end: int) -> bool:
        """See Listener.written."""
        self._waiters.advance(end)
        return True

    async def look(self) -> None:
        """See Listener.look."""
        await self.end()

    def fail(self, error: Exception) -> None:
        """See Listener.fail."""
        self._waiters.fail(error)
