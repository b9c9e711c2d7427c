"""A log in a SQLite file, shared by the processes of one host.

Two threads, each with a connection of its own: one writes, one reads, so a read never waits for a
commit. Writes are committed in groups: whatever is asked for within one turn of the event loop, or
while a transaction is under way, shares the next transaction and its one sync of the disk. All
state lives on the event loop; the threads only run blocking calls.

A waiting reader is woken at once by appends of its own handle. For those of other processes it
looks at the bell (see `dmq.writer_lock`) every few milliseconds, more often while there is
traffic, and asks the file itself twice a second in case a writer died before it rang.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

from dmq.entries import RECORD_BYTES_MAX, check_cursor, encode_all
from dmq.errors import LogError, LogUnavailableError
from dmq.interface import Cursor, Entry
from dmq.record import Record
from dmq.sqlite_file import Append, CommitCursor, LogReader, LogWriter, Outcome, Trim, Write
from dmq.waiters import Waiters
from dmq.writer_lock import WriterLock

GROUP_RECORDS_MAX: Final = 4096
GROUP_BYTES_MAX: Final = 32 << 20
"""One transaction takes no more writes than this, but always one."""
PENDING_BYTES_MAX: Final = 256 << 20
"""Appends beyond this many bytes that wait for their transaction are refused."""
HOUSEKEEP_EVERY_GROUPS: Final = 8
"""Under a load that never pauses, every so many transactions a step of trimming is done."""
POLL_IDLE_S: Final = 0.01
POLL_BUSY_S: Final = 0.001
POLL_BUSY_FOR_S: Final = 0.1
CHECK_S: Final = 0.5
"""How soon a record is noticed whose writer died between its commit and the bell."""

_TRY_AGAIN: Final = frozenset(
    {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE}
)

T = TypeVar("T")
_logger = logging.getLogger("dmq")


class SqliteLog:
    """One process's handle to the log; see `dmq.interface.Log`. Made by ``open``."""

    def __init__(
        self,
        writer: LogWriter,
        reader: LogReader,
        lock: WriterLock,
        threads: tuple[ThreadPoolExecutor, ThreadPoolExecutor],
        record_bytes_max: int,
    ) -> None:
        self._writer = writer
        self._reader = reader
        self._lock = lock
        self._writing, self._reading = threads
        self._record_bytes_max = record_bytes_max
        self._loop = asyncio.get_running_loop()
        self._pending: deque[tuple[Write, asyncio.Future[Outcome]]] = deque()
        self._pending_bytes = 0
        self._space_to_free = True
        self._flusher: asyncio.Task[None] | None = None
        self._waiters = Waiters()
        self._heard = 0
        self._poll_timer: asyncio.TimerHandle | None = None
        self._poll_busy_until = 0.0
        self._check_due = 0.0
        self._checking: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, path: str | Path, *, record_bytes_max: int = RECORD_BYTES_MAX) -> SqliteLog:
        """Open the log in this file, creating it if need be.

        Raises LogError if the file is not a log, was written by a newer version, or cannot be
        made, and LogUnavailableError if trying again may help.
        """
        loop = asyncio.get_running_loop()
        threads = (ThreadPoolExecutor(1, "dmq-write"), ThreadPoolExecutor(1, "dmq-read"))
        path = _absolute(path)
        try:
            lock = _open_lock(path)
            try:
                writer = await loop.run_in_executor(threads[0], LogWriter, path, lock)
                reader = await loop.run_in_executor(threads[1], LogReader, path)
            except BaseException:
                lock.close()
                raise
        except BaseException:
            for thread in threads:
                thread.shutdown(wait=False)
            raise
        log = cls(writer, reader, lock, threads, record_bytes_max)
        log._start_flusher()
        return log

    async def append(self, records: Sequence[Record]) -> list[int]:
        """See Log.append. If the caller is cancelled the records may or may not be there."""
        encoded = encode_all(records, self._record_bytes_max)
        if not encoded:
            self._check_open()
            return []
        offsets = await self._submit(Append(encoded))
        assert isinstance(offsets, list)
        return offsets

    async def read(
        self, start: int, *, records_max: int = 1024, bytes_max: int = 16 << 20
    ) -> list[Entry]:
        """See Log.read."""
        return await self._ask(lambda: self._reader.read(start, records_max, bytes_max))

    async def wait(self, offset: int, timeout_s: float) -> bool:
        """See Log.wait."""
        self._check_open()
        if self._waiters.end > offset:
            return True
        if timeout_s <= 0:
            return await self.end() > offset
        if self._poll_timer is None:
            # Runs once this task is among the waiters.
            self._poll_timer = self._loop.call_later(0, self._poll)
        return await self._waiters.wait(offset, timeout_s)

    async def start(self) -> int:
        """See Log.start."""
        return (await self._ask(self._reader.span))[0]

    async def end(self) -> int:
        """See Log.end."""
        end = (await self._ask(self._reader.span))[1]
        self._waiters.advance(end)
        return end

    async def load_cursor(self, reader: str) -> Cursor | None:
        """See Log.load_cursor."""
        return (await self._ask(lambda: self._reader.cursors(reader))).get(reader)

    async def commit_cursor(self, reader: str, cursor: Cursor) -> None:
        """See Log.commit_cursor."""
        check_cursor(cursor)
        await self._submit(CommitCursor(reader, cursor))

    async def cursors(self) -> Mapping[str, Cursor]:
        """See Log.cursors."""
        return await self._ask(self._reader.cursors)

    async def trim(self, before: int) -> None:
        """See Log.trim. The file gets smaller in the background."""
        await self._submit(Trim(before))

    async def identity(self) -> str:
        """See Log.identity: the id given to the file when it was created."""
        return self._writer.log_id

    async def close(self) -> None:
        """See Log.close."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    async def _ask(self, call: Callable[[], T]) -> T:
        self._check_open()
        return await self._loop.run_in_executor(self._reading, call)

    def _submit(self, write: Write) -> asyncio.Future[Outcome]:
        self._check_open()
        if self._pending_bytes > PENDING_BYTES_MAX:
            raise LogUnavailableError(
                f"{len(self._pending)} writes already wait for the log: it is slower than they come"
            )
        outcome: asyncio.Future[Outcome] = self._loop.create_future()
        self._pending.append((write, outcome))
        self._pending_bytes += _size(write)
        self._start_flusher()
        return outcome

    def _start_flusher(self) -> None:
        # The task first runs in the loop's next turn: all writes of this turn share its group.
        if self._flusher is None:
            self._flusher = self._loop.create_task(self._flush())

    async def _flush(self) -> None:
        groups = 0
        try:
            while self._pending or self._space_to_free:
                if self._pending:
                    await self._write_group()
                    groups += 1
                if not self._pending or groups % HOUSEKEEP_EVERY_GROUPS == 0:
                    await self._housekeep()
        finally:
            self._flusher = None
            self._fail_pending()

    async def _write_group(self) -> None:
        group = self._take_group()
        if not group:
            return
        writes = [write for write, _ in group]
        try:
            outcomes, end = await self._loop.run_in_executor(
                self._writing, self._writer.write, writes
            )
        except BaseException as error:
            _fail(group, error)
            if not isinstance(error, Exception):
                raise
            return
        self._heard = end
        self._space_to_free |= any(isinstance(write, Trim) for write in writes)
        for (_, waiting), outcome in zip(group, outcomes, strict=True):
            if waiting.done():
                continue
            if isinstance(outcome, LogError):
                waiting.set_exception(outcome)
            else:
                waiting.set_result(outcome)
        self._waiters.advance(end)

    def _take_group(self) -> list[tuple[Write, asyncio.Future[Outcome]]]:
        """Take the next group off the queue; what was cancelled meanwhile is left out."""
        group: list[tuple[Write, asyncio.Future[Outcome]]] = []
        records = size = 0
        while self._pending:
            write, outcome = self._pending[0]
            if not outcome.done():
                records += len(write.encoded) if isinstance(write, Append) else 1
                size += _size(write)
                if group and (records > GROUP_RECORDS_MAX or size > GROUP_BYTES_MAX):
                    break
                group.append((write, outcome))
            self._pending.popleft()
            self._pending_bytes -= _size(write)
        return group

    async def _housekeep(self) -> None:
        if not self._space_to_free or self._closing is not None:
            self._space_to_free = False
            return
        try:
            self._space_to_free = await self._loop.run_in_executor(
                self._writing, self._writer.housekeep
            )
        except LogError as error:
            self._space_to_free = False
            _logger.warning("trimmed records keep their space until the next trim: %s", error)

    def _fail_pending(self) -> None:
        """Leave nobody waiting if the flusher was stopped from outside."""
        left = list(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        _fail(left, LogUnavailableError("the event loop stopped before the log was written"))

    def _poll(self) -> None:
        """Look whether another process appended; runs only while somebody waits."""
        self._poll_timer = None
        if not self._waiters or self._closing is not None:
            return
        now = self._loop.time()
        heard = self._lock.heard()
        if heard != self._heard:
            self._poll_busy_until = now + POLL_BUSY_FOR_S
        if (heard != self._heard or now >= self._check_due) and self._checking is None:
            self._heard = heard
            self._check_due = now + CHECK_S
            self._checking = self._loop.create_task(self._check_end())
        interval_s = POLL_BUSY_S if now < self._poll_busy_until else POLL_IDLE_S
        self._poll_timer = self._loop.call_later(interval_s, self._poll)

    async def _check_end(self) -> None:
        try:
            await self.end()
        except LogError as error:
            self._waiters.fail(error)
        finally:
            self._checking = None

    async def _close(self) -> None:
        if self._poll_timer is not None:
            self._poll_timer.cancel()
        self._waiters.fail(LogError("the log was closed"))
        for task in (self._flusher, self._checking):
            if task is not None:
                await asyncio.wait([task])
        try:
            await self._loop.run_in_executor(self._reading, self._reader.close)
            await self._loop.run_in_executor(self._writing, self._writer.close)
        finally:
            self._reading.shutdown(wait=False)
            self._writing.shutdown(wait=False)
            self._lock.close()

    def _check_open(self) -> None:
        if self._closing is not None:
            raise LogError("the log was closed")


def _absolute(path: str | Path) -> Path:
    return Path(path).absolute()


def _open_lock(path: Path) -> WriterLock:
    try:
        if path.exists() and not os.access(path, os.R_OK | os.W_OK):
            raise LogError(f"{path} cannot be opened: this user may not read and write it")
        return WriterLock(path.with_name(f"{path.name}-lock"))
    except OSError as error:
        if error.errno in _TRY_AGAIN:
            raise LogUnavailableError(f"{path} cannot be opened now: {error.strerror}") from error
        raise LogError(
            f"{path} cannot be opened: {error.strerror}; its folder must exist and be writable"
        ) from error


def _size(write: Write) -> int:
    return sum(map(len, write.encoded)) if isinstance(write, Append) else 0


def _fail(group: Sequence[tuple[Write, asyncio.Future[Outcome]]], error: BaseException) -> None:
    failure = (
        error
        if isinstance(error, Exception)
        else LogUnavailableError("the event loop stopped while the log was written")
    )
    for _, outcome in group:
        if not outcome.done():
            outcome.set_exception(failure)
