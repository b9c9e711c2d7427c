"""One process's handle to a SQLite file that several processes write.

Two threads have a connection each: one writes, one reads, so a read never waits for a commit.
Writes are committed in groups: all writes of one turn of the event loop, or of the time of one
transaction, share the next transaction and its one sync of the disk. All state lives on the event
loop; the threads only run blocking calls.

Writes of other processes are noticed while a task waits for them. The bell (see `dmq.sqlite_file`)
is read every few milliseconds, more often while there is traffic. The file itself is read twice a
second, because a writer may die before it rings.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

from dmq.log import LogError, LogUnavailableError
from dmq.sqlite_file import FileReader, FileWriter, Outcome, WriterLock

GROUP_ROWS_MAX: Final = 4096
GROUP_BYTES_MAX: Final = 32 << 20
"""The most rows and bytes of one transaction; a larger write gets its own transaction."""
PENDING_BYTES_MAX: Final = 256 << 20
"""The most bytes of writes that wait; further writes are refused."""
HOUSEKEEP_EVERY_GROUPS: Final = 8
"""If writes never pause, space is freed in one step after this many transactions."""
POLL_IDLE_S: Final = 0.01
POLL_BUSY_S: Final = 0.001
POLL_BUSY_FOR_S: Final = 0.1
CHECK_S: Final = 0.5
"""How late a record is noticed at most, if its writer died before it rang the bell."""

_TRY_AGAIN: Final = frozenset(
    {errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE}
)


class FileWrite:
    """One write; several share a transaction. Usually it writes one small row."""

    __slots__ = ()

    @property
    def rows(self) -> int:
        """The number of rows that it writes; they count for the limit of a transaction."""
        return 1

    @property
    def size_bytes(self) -> int:
        """The number of bytes that it writes; 0 if they are only a few."""
        return 0

    @property
    def frees(self) -> bool:
        """True if it leaves free space or deleted data, so that ``housekeep`` has work."""
        return False


class Listener(Protocol):
    """What a handle calls when records were written, by this process or another one."""

    def wanted(self) -> bool:
        """True if a task waits for other processes' writes."""
        ...

    def written(self, end: int) -> bool:
        """Note the new end after own writes; return True if the file need not be read."""
        ...

    async def look(self) -> None:
        """Read what is new in the file."""
        ...

    def fail(self, error: Exception) -> None:
        """Make the waiting calls raise ``error``."""
        ...


T = TypeVar("T")
WriteT = TypeVar("WriteT", bound=FileWrite)
ReaderT = TypeVar("ReaderT", bound=FileReader)
_logger = logging.getLogger("dmq")


class FileHandle(Generic[WriteT, ReaderT]):
    """One process's handle to a SQLite file. Made by ``open``; then set ``listener`` first."""

    listener: Listener

    def __init__(
        self,
        what: str,
        sides: tuple[FileWriter[WriteT], ReaderT],
        lock: WriterLock,
        threads: tuple[ThreadPoolExecutor, ThreadPoolExecutor],
    ) -> None:
        self._what = what
        self._writer, self.reader = sides
        self._lock = lock
        self._writing, self._reading = threads
        self._loop = asyncio.get_running_loop()
        self._pending: deque[tuple[WriteT, asyncio.Future[Outcome]]] = deque()
        self._pending_bytes = 0
        self._space_to_free = True
        self._flusher: asyncio.Task[None] | None = None
        self._announced = 0
        self._poll_timer: asyncio.TimerHandle | None = None
        self._poll_busy_until = 0.0
        self._check_due = 0.0
        self._checking: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        path: str | Path,
        writer_kind: type[FileWriter[WriteT]],
        reader_kind: type[ReaderT],
    ) -> FileHandle[WriteT, ReaderT]:
        """Open the file; create it if necessary.

        Raises LogError if the file is of another kind, was written by a newer version, or cannot be
        created, and LogUnavailableError if trying again may help.
        """
        loop = asyncio.get_running_loop()
        threads = (ThreadPoolExecutor(1, "dmq-write"), ThreadPoolExecutor(1, "dmq-read"))
        path = _absolute(path)
        try:
            lock = _open_lock(path)
            try:
                writer = await loop.run_in_executor(threads[0], writer_kind, path, lock)
                reader = await loop.run_in_executor(threads[1], reader_kind, path)
            except BaseException:
                lock.close()
                raise
        except BaseException:
            for thread in threads:
                thread.shutdown(wait=False)
            raise
        handle = cls(writer_kind.format.what, (writer, reader), lock, threads)
        handle._start_flusher()
        return handle

    @property
    def file_id(self) -> str:
        """The id that the file got when it was created."""
        return self._writer.file_id

    async def run_on_reading_thread(self, call: Callable[[], T]) -> T:
        """Run ``call`` on the thread for reads; return its result."""
        self.check_open()
        return await self._loop.run_in_executor(self._reading, call)

    def submit(self, write: WriteT) -> asyncio.Future[Outcome]:
        """Add the write to the next group; return a future of its outcome.

        Raises LogError if the handle is closed, LogUnavailableError if too many writes wait.
        """
        self.check_open()
        if self._pending_bytes > PENDING_BYTES_MAX:
            raise LogUnavailableError(
                f"{len(self._pending)} writes already wait for the {self._what}: it is slower "
                "than they come"
            )
        outcome: asyncio.Future[Outcome] = self._loop.create_future()
        self._pending.append((write, outcome))
        self._pending_bytes += write.size_bytes
        self._start_flusher()
        return outcome

    def announced(self) -> int:
        """Return the bell's value, which changes whenever any process writes."""
        return self._lock.announced()

    def listen(self) -> None:
        """Begin to check for other processes' writes; this ends when no task waits any more."""
        if self._poll_timer is None:
            self._poll_timer = self._loop.call_later(0, self._poll)

    def check_open(self) -> None:
        """Raise LogError if the handle was closed."""
        if self._closing is not None:
            raise LogError(f"the {self._what} was closed")

    async def close(self) -> None:
        """Let running calls finish; close the file and the threads."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    # -- writes ----------------------------------------------------------------------------

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
        self._space_to_free |= any(write.frees for write in writes)
        for (_, waiting), outcome in zip(group, outcomes, strict=True):
            if waiting.done():
                continue
            if isinstance(outcome, LogError):
                waiting.set_exception(outcome)
            else:
                waiting.set_result(outcome)
        if self.listener.written(end):
            self._announced = end

    def _take_group(self) -> list[tuple[WriteT, asyncio.Future[Outcome]]]:
        """Take waiting writes, up to a limit, as the next group; drop cancelled ones."""
        group: list[tuple[WriteT, asyncio.Future[Outcome]]] = []
        rows = size = 0
        while self._pending:
            write, outcome = self._pending[0]
            if not outcome.done():
                rows += write.rows
                size += write.size_bytes
                if group and (rows > GROUP_ROWS_MAX or size > GROUP_BYTES_MAX):
                    break
                group.append((write, outcome))
            self._pending.popleft()
            self._pending_bytes -= write.size_bytes
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
            _logger.warning("the %s keeps its space until later: %s", self._what, error)

    def _fail_pending(self) -> None:
        """Make the waiting writes fail, because the task that writes them was stopped."""
        left = list(self._pending)
        self._pending.clear()
        self._pending_bytes = 0
        _fail(left, LogUnavailableError("the event loop stopped before the file was written"))

    # -- writes of other processes ---------------------------------------------------------

    def _poll(self) -> None:
        """Check if the bell changed, and set the timer for the next check while a task waits."""
        self._poll_timer = None
        if not self.listener.wanted() or self._closing is not None:
            return
        now = self._loop.time()
        announced = self._lock.announced()
        if announced != self._announced:
            self._poll_busy_until = now + POLL_BUSY_FOR_S
        if (announced != self._announced or now >= self._check_due) and self._checking is None:
            self._announced = announced
            self._check_due = now + CHECK_S
            self._checking = self._loop.create_task(self._check())
        interval_s = POLL_BUSY_S if now < self._poll_busy_until else POLL_IDLE_S
        self._poll_timer = self._loop.call_later(interval_s, self._poll)

    async def _check(self) -> None:
        try:
            await self.listener.look()
        except LogError as error:
            self.listener.fail(error)
        finally:
            self._checking = None

    async def _close(self) -> None:
        if self._poll_timer is not None:
            self._poll_timer.cancel()
        self.listener.fail(LogError(f"the {self._what} was closed"))
        for task in (self._flusher, self._checking):
            if task is not None:
                await asyncio.wait([task])
        try:
            await self._loop.run_in_executor(self._reading, self.reader.close)
            await self._loop.run_in_executor(self._writing, self._writer.close)
        finally:
            self._reading.shutdown(wait=False)
            self._writing.shutdown(wait=False)
            self._lock.close()


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


def _fail(group: Sequence[tuple[FileWrite, asyncio.Future[Outcome]]], error: BaseException) -> None:
    failure = (
        error
        if isinstance(error, Exception)
        else LogUnavailableError("the event loop stopped while the file was written")
    )
    for _, outcome in group:
        if not outcome.done():
            outcome.set_exception(failure)
