"""Keeps large bodies of rows on disk while they are needed; a process of its own reads Parquet."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, Coroutine, Iterator, Sequence
from contextlib import aclosing, closing, contextmanager
from pathlib import Path
from typing import IO, Any, Final, TypeVar

from haproc.config.sections import Limits
from haproc.config.shares import Denied, Shares
from haproc.engine.arrow import joined, without_rows
from haproc.engine.interface import Chunk, Column
from haproc.engine.statement import ROWS_MAX
from haproc.failure import ErrorClass, RequestError, busy, refused
from haproc.route.model import Fitted
from haproc.route.offload import Worker, WorkerDiedError
from haproc.route.rows.forms import ARROW, NOT_OF_FORM, Form, FormKind, RowsError
from haproc.route.rows.reading import fitted, makes_a_record, misfit, pieces
from haproc.route.spooled_file import SpooledFile

# The pieces of a body of Parquet, from a process that reads nothing but this one body.
#
# A file with a few wrong bytes can end the process that reads it: Arrow's C++ was found to throw
# exceptions that nothing catches. So a worker reads it (`haproc.route.parquet_worker`), and if that
# ends, only these rows are refused. The worker reads a piece when it is asked for one, so no more
# is in memory, there or here.


WORKER: Final = "haproc.route.parquet_worker"
OWN_DOING: Final = frozenset(
    {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGTRAP}
)
"""Signals that end a process because of its own fault, such as a wrong memory access. Other signals
come from outside, and show nothing about the rows."""


class ParquetPieces(Iterator[Chunk]):
    """Reads a Parquet body in a process of its own; yields its rows in pieces.

    `__next__` blocks, and raises RequestError. `close` ends the process. ``descriptor``: that of
    the body's file, which is duplicated.
    """

    def __init__(
        self, descriptor: int, size: int, columns: Sequence[Column], bytes_max: int, form: Form
    ) -> None:
        self._file: int | None = os.dup(descriptor)
        self._worker = Worker(WORKER, (self._file,))
        self._task: Any = (self._file, size, columns, bytes_max, form)
        self._form = form

    def __next__(self) -> Chunk:
        """Return the next piece of rows; raises RequestError. StopIteration: there is none."""
        try:
            found = self._worker.exchange(self._task)
        except WorkerDiedError as error:
            self.close()
            raise self._died(error) from error
        self._task = None
        if isinstance(found, Chunk):
            return found
        self.close()
        raise StopIteration if found is None else found

    def close(self) -> None:
        """End the process; does nothing if it has ended."""
        self._worker.end()  # first: the number may be another file's later
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _died(self, error: WorkerDiedError) -> RequestError:
        ended_by = -(error.returncode or 0)
        if ended_by in OWN_DOING:
            name = signal.Signals(ended_by).name
            message = f"reading it ended the process that did ({name}), so it is damaged"
            return misfit(RowsError([f"{NOT_OF_FORM[self._form.kind]}: {message}"]))
        return busy(f"the process that read the rows was ended, or none could be begun: {error}")


# Large bodies of rows: on disk from their first byte until their operation needs them no more.
#
# A body is a file without a name in this HAProc's folder, so nothing is left of it however the
# process ends. The disk space is limited, for all bodies together and for each user. Only a piece
# of a body is in memory at a time.
#
# The rows are fitted to their table piece by piece: first all of them, before anything enters the
# log, so that a misfit in the last row has no effect; and again when they are used.


WRITE_BYTES: Final = 1 << 20
"""Bytes that are collected in memory before they are written to the file; chosen, not measured."""
RECORD_BYTES_MAX: Final = 16 << 20
"""Rows up to this size go into the log as one record, whether they came as one body or not; larger
ones are staged in parts. Chosen: one statement can insert the rows of several records at once;
parts must be collected first."""

PASSING_BYTES_MAX: Final = 24 << 20
"""The most bytes of rows that are in memory at a time, from the check that they fit until the log
has them: they are in memory three or four times then. Measured: a load has eight pieces under way,
which took 250 MiB without this limit. Two pieces of texts at a time keep two cores busy."""
_GROWS_MAX: Final = 4
"""The rows of a body are assumed to be this many times as large as the body, but at most half of
`PASSING_BYTES_MAX`. Chosen."""
PARQUET_FITS_MAX: Final = 8
"""The most Parquet bodies that are checked at a time, each by a process of 32 MiB (measured) beside
its rows; the others wait. Chosen. Few bodies are read later: one for each operation at its turn."""

T = TypeVar("T")


class PassingBytes:
    """Limits the bytes of rows in memory; a body for which there is no room waits, in turn."""

    def __init__(self, bytes_max: int) -> None:
        self._left = self._bytes_max = bytes_max
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> int:
        """Wait until there is room for ``size`` bytes, and reserve them; return the reserved bytes.

        They are never more than ``bytes_max``.
        """
        size = min(size, self._bytes_max)
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((size, turn))
        self.give_back(0)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(size)
            raise
        return size

    def give_back(self, size: int) -> None:
        """Release reserved bytes; bodies that wait, and for which there is room now, may go on."""
        self._left += size
        while self._waiting and (self._waiting[0][1].done() or self._waiting[0][0] <= self._left):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self._left -= size
                turn.set_result(None)


class Spools:
    """The folder with the files of all bodies, and how much of the disk each user takes."""

    def __init__(self, folder: Path, shares: Shares, limits: Limits) -> None:
        self._folder = folder
        self.shares = shares
        self.limits = limits
        self.parquet_fits = asyncio.Semaphore(PARQUET_FITS_MAX)
        self.passing = PassingBytes(PASSING_BYTES_MAX)

    def clean(self) -> None:
        """Delete files of an earlier process: some systems cannot make a file without a name."""
        shutil.rmtree(self._folder, ignore_errors=True)

    async def begin(self, user: str, size: int | None, form: Form = ARROW) -> SpooledBody:
        """Make an empty body and return it.

        ``size``: the bytes that will come, if known. Raises RequestError if there is no room.
        """
        self.check(user, 0, size or 0)
        return SpooledBody(self, user, await asyncio.to_thread(self._file), form)

    def check(self, user: str, has: int, more: int) -> None:
        """Raise RequestError if there is no room for ``more`` bytes of a body.

        ``has``: the bytes that the body has already.
        """
        if has + more > (most := self.limits.staged_bytes_max):
            raise refused(
                ErrorClass.TOO_LARGE,
                f"the request's body is larger than {most} bytes",
                "send the rows in several operations, or raise limits.staged_bytes_max",
            )
        if why := self.shares.denied(user, more):
            whose = f"those of {user} " if why is Denied.SHARE_TAKEN else ""
            raise busy(
                f"bodies of rows under way here {whose}take as much of the disk as they may "
                "(limits.spooled_bytes_max)"
            )

    def _file(self) -> IO[bytes]:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return tempfile.TemporaryFile(dir=self._folder, buffering=0)
        except OSError as error:
            raise _no_room(error) from error


class SpooledBody:
    """One body of rows in a file; implements `haproc.route.model.ManyRows`.

    It has one holder at first; `release` it once more than `hold` was called. Once it is `fit` to a
    table, iterating over it yields its rows in the form that Spark takes.
    """

    def __init__(self, spools: Spools, user: str, file: IO[bytes], form: Form) -> None:
        self._spools = spools
        self._form = form
        self._user = user
        self._file = file
        self._hash = hashlib.sha256()
        self._buffer = bytearray()
        self._holders = 1
        self._passing = 0
        self._columns: Sequence[Column] = ()
        self.size = 0

    async def append_bytes(self, data: bytes) -> None:
        """Append the next bytes; raises RequestError if there is no room for them."""
        self._spools.check(self._user, self.size, len(data))
        self._spools.shares.count(self._user, len(data))
        self.size += len(data)
        self._buffer += data
        if len(self._buffer) >= WRITE_BYTES:
            await self._write()

    async def complete(self) -> str:
        """Write the remaining bytes to the file; return the SHA-256 of the whole body.

        To be called after the last `append_bytes`.
        """
        await self._write()
        return self._hash.hexdigest()

    def hold(self) -> None:
        """Add a holder, who must call `release` later."""
        self._holders += 1

    def release(self) -> None:
        """Remove a holder; without any holder the file is deleted."""
        self._holders -= 1
        if self._holders == 0:
            self.passed()
            self._file.close()
            self._spools.shares.give_back(self._user, self.size)

    def passed(self) -> None:
        """Note that the rows are not in memory any more: the log has them, or never will."""
        passing, self._passing = self._passing, 0
        self._spools.passing.give_back(passing)

    async def fit(self, columns: Sequence[Column]) -> Fitted:
        """Check that all rows fit the table's columns; raises RequestError if one does not.

        From here on, until `passed`, its rows count as bytes in memory.
        """
        self._columns = columns
        try:
            if self._form.kind is FormKind.PARQUET:
                async with self._spools.parquet_fits:
                    return await self._fitted()
            if self._form.kind is FormKind.ARROW:
                return await self._as_record() or await self._fitted()
            return await self._fitted()
        except BaseException:
            self.passed()
            raise

    async def _as_record(self) -> Fitted | None:
        """Check a body of Arrow whose rows may fit into one record.

        None if they do not fit into one; then nothing is checked.
        """
        if self.size > self._spools.limits.operation_bytes_max:
            return None
        await self._pass(self.size)
        rows = await _unhurt(asyncio.to_thread(self._record))
        return None if rows is None else Fitted(without_rows(rows), rows)

    async def _pass(self, size: int) -> None:
        self.passed()
        self._passing = await self._spools.passing.take(size)

    def _record(self) -> bytes | None:
        """Return the rows of a body of Arrow as one record; None if they are too many for one."""
        bytes_max = self._spools.limits.operation_bytes_max
        data = os.pread(self._file.fileno(), self.size, 0)
        if not makes_a_record(data, bytes_max):
            return None
        return fitted(data, self._columns, bytes_max, self._form)

    async def _fitted(self) -> Fitted:
        limits = self._spools.limits
        size, rows, schema = 0, 0, b""
        few: list[bytes] | None = []
        await self._pass(min(_GROWS_MAX * self.size, PASSING_BYTES_MAX // 2))
        async with aclosing(aiter(self)) as chunks:
            async for chunk in chunks:
                size, rows = size + len(chunk.data), rows + chunk.rows
                schema = schema or without_rows(chunk.data)
                fits = size <= min(RECORD_BYTES_MAX, limits.operation_bytes_max)
                if few is not None and fits and rows <= ROWS_MAX:
                    few.append(chunk.data)
                elif few is not None:
                    few = None  # the rows of one piece at a time, from here on
                    self.passed()
                if size > (most := limits.staged_bytes_max):
                    raise refused(
                        ErrorClass.TOO_LARGE,
                        f"the rows are larger than {most} bytes unpacked",
                        "send them in several operations, or raise limits.staged_bytes_max",
                    )
        return Fitted(schema, None if few is None else await asyncio.to_thread(joined, few))

    async def __aiter__(self) -> AsyncGenerator[Chunk, None]:
        with self._pieces() as found:
            while (chunk := await _unhurt(asyncio.to_thread(_next, found))) is not None:
                yield chunk

    @contextmanager
    def _pieces(self) -> Iterator[Iterator[Chunk]]:
        file, size, columns, form = self._file, self.size, self._columns, self._form
        bytes_max = self._spools.limits.operation_bytes_max
        if form.kind is not FormKind.PARQUET:
            yield pieces(
                SpooledFile(file.fileno, size, bytes_max, form.kind), columns, bytes_max, form
            )
            return
        with closing(ParquetPieces(file.fileno(), size, columns, bytes_max, form)) as found:
            yield found

    async def _write(self) -> None:
        data, self._buffer = bytes(self._buffer), bytearray()
        try:
            await _unhurt(asyncio.to_thread(self._put, data))
        except OSError as error:
            raise _no_room(error) from error

    def _put(self, data: bytes) -> None:
        self._hash.update(data)
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]


async def _unhurt(work: Coroutine[Any, Any, T]) -> T:
    """Wait until a thread's work has ended, even if cancelled: the thread uses the file."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        raise


def _next(chunks: Iterator[Chunk]) -> Chunk | None:
    return next(chunks, None)


def _no_room(error: OSError) -> RequestError:
    return busy(f"the body cannot be kept here while it comes: {error.strerror or error}")
