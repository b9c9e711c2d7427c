"""Results of statements: streamed, or read to their end in chunks and kept for clients."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import uuid
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dmq import Json
from haproc.config.shares import Shares
from haproc.engine.arrow import END_OF_STREAM, continuation, empty_stream, joined, opening
from haproc.engine.interface import Chunk, Column, ResultStream
from haproc.failure import ErrorClass, FailureKind, RequestError, refused
from haproc.offloop import by_size
from haproc.route.model import Answer
from haproc.statements import json_rows
from haproc.statements.plain_arrow import columns_of, readable
from haproc.statements.request import Cutter, Delivery, Disposition, Format

# A result as one Arrow IPC stream, put together while the cluster makes it.
#
# Each of the cluster's chunks is a whole stream; they become one by leaving out the further
# schemas and end markers. The next chunk is taken only when the next piece is asked for.


async def arrow_stream(result: ResultStream, delivery: Delivery) -> AsyncGenerator[memoryview]:
    """Yield a result as one Arrow IPC stream, piece by piece, within the client's limits.

    The first piece has the schema.
    """
    cutter = Cutter(delivery.rows_max, delivery.bytes_max)
    chunks = aiter(result)
    first = await anext(chunks, None) or Chunk(empty_stream(), 0)
    changes = (made := readable(first.data)) is not first.data
    taken = cutter.take(Chunk(made, first.rows))
    assert taken is not None  # the first chunk always passes, if only with its schema
    yield opening(taken.data)
    while not cutter.truncated and (chunk := await anext(chunks, None)) is not None:
        if changes:
            chunk = Chunk(await by_size(len(chunk.data), readable, chunk.data), chunk.rows)
        if (taken := cutter.take(chunk)) is not None:
            yield continuation(taken.data)
    yield memoryview(END_OF_STREAM)


# Reading a result to its end into chunks that are kept for the client.
#
# The cluster's chunks (one for each of its tasks, often small) are gathered into chunks of about
# `CHUNK_BYTES` in the form the client asked for. Large ones are converted in a thread, so that
# the event loop, and with it the heartbeat, goes on.


CHUNK_BYTES: Final = 4 << 20
"""A chunk of a kept result is closed once it has this many bytes; chosen, not measured."""
THREAD_BYTES: Final = 256 << 10
"""Chunks with more bytes are converted in a thread: it takes some milliseconds, longer than the
event loop should wait."""


class Collector:
    """Reads one user's result to its end, and stores it in chunks.

    ``make_room(user, bytes)`` deletes other results; False if there is not enough room even then.
    """

    def __init__(
        self,
        store: ResultStore,
        delivery: Delivery,
        inline_bytes_max: int,
        user: str,
        make_room: Callable[[str, int], bool],
    ) -> None:
        self._store = store
        self._delivery = delivery
        self._make_room = make_room
        self._inline_bytes_max = inline_bytes_max
        self._json = delivery.format is Format.JSON_ARRAY
        self._parts: list[bytes] = []
        self._part_bytes = 0
        self._part_rows = 0
        self.kept = Kept(user)

    async def collect(self, answer: Answer) -> Kept:
        """Read the answer's result within the client's limits, store it, and return it.

        The result stream is closed in any case. Raises RequestError, EngineError.
        """
        cutter = Cutter(self._delivery.rows_max, self._delivery.bytes_max)
        columns = answer.columns
        try:
            async for chunk in answer.result:
                taken = cutter.take(chunk)
                if taken is not None:
                    found = await self._add(taken)
                    columns = columns or found
                if cutter.truncated:
                    break
        finally:
            await answer.result.aclose()
        await self._flush()
        self.kept.columns = columns or ()
        self.kept.truncated = cutter.truncated
        return self.kept

    async def _add(self, chunk: Chunk) -> tuple[Column, ...]:
        columns: tuple[Column, ...] = ()
        data = chunk.data
        if len(chunk.data) > THREAD_BYTES:
            columns, data = await asyncio.to_thread(self._convert, chunk.data)
        else:
            columns, data = self._convert(chunk.data)
        self._parts.append(data)
        self._part_bytes += len(data)
        self._part_rows += chunk.rows
        self._check_size()
        if self._part_bytes >= CHUNK_BYTES:
            await self._flush()
        return columns

    def _convert(self, data: bytes) -> tuple[tuple[Column, ...], bytes]:
        columns, data = columns_of(json_rows.schema_of(data)), readable(data)
        return columns, json_rows.dumps(json_rows.rows_of(data)[1]) if self._json else data

    def _check_size(self) -> None:
        total = self.kept.bytes + self._part_bytes
        inline = self._delivery.disposition is Disposition.INLINE
        if inline and total > self._inline_bytes_max:
            raise refused(
                ErrorClass.RESULT_TOO_LARGE,
                f"the result is larger than {self._inline_bytes_max} bytes",
                "ask for disposition EXTERNAL_LINKS or for the Arrow stream, or set row_limit",
            )

    async def _flush(self) -> None:
        if not self._parts:
            return
        data = _json_joined(self._parts) if self._json else joined(self._parts)
        if not self._make_room(self.kept.user, len(data)):
            raise RequestError(
                FailureKind.AVAILABILITY,
                "this HAProc keeps as many results, or as many of this user, as it may "
                "(limits.results_kept_bytes_max, limits.user_share)",
                error_class=ErrorClass.RESULTS_FULL,
                hint="fetch kept results, ask for the Arrow stream, or try the next HAProc",
            )
        await self._store.append_chunk(self.kept, data, self._part_rows)
        self._parts, self._part_bytes, self._part_rows = [], 0, 0


def _json_joined(parts: list[bytes]) -> bytes:
    """Join several JSON arrays to one with the items of all."""
    if len(parts) == 1:
        return parts[0]
    inner = [part[1:-1] for part in parts]
    return b"[" + b",".join(part for part in inner if part) + b"]"


# Results kept for clients that fetch them later: in memory up to a size, beyond it in files.
#
# The store keeps bytes and counts them; `statements.registry` decides which result is dropped, and
# when. Files are in a folder of this HAProc's own that is emptied at start: a result belongs to the
# process that made it.


_LOG = logging.getLogger(__name__)

MEMORY_BYTES_MAX: Final = 64 << 20
"""The most bytes that all results take in memory; more go to files. Chosen, not measured."""
OVERHEAD_BYTES: Final = 2048
"""Bytes that each result counts beside its data, for its columns, report and entries in tables."""


@dataclass(slots=True)
class KeptChunk:
    """One chunk of a kept result.

    ``data``: its bytes; None if they are in the result's file, from ``file_offset`` on.
    """

    row_offset: int
    row_count: int
    byte_count: int
    data: bytes | None
    file_offset: int = 0

    def describe(self, index: int) -> dict[str, Json]:
        """Return the fields for this chunk in an answer; ``index``: the chunk's number."""
        return {
            "chunk_index": index,
            "row_offset": self.row_offset,
            "row_count": self.row_count,
            "byte_count": self.byte_count,
        }


@dataclass(slots=True)
class Kept:
    """A result that is kept for its client.

    ``truncated``: True if rows were left out because of the client's limits. ``memory_bytes``: the
    part of ``bytes`` that is in memory; ``file``: where the rest is; None: nowhere.
    """

    user: str = ""
    columns: tuple[Column, ...] = ()
    chunks: list[KeptChunk] = field(default_factory=list)
    truncated: bool = False
    bytes: int = 0
    memory_bytes: int = 0
    file: Path | None = None

    @property
    def rows(self) -> int:
        """The number of rows in all chunks."""
        return sum(chunk.row_count for chunk in self.chunks)


class ResultStore:
    """Stores results, in memory or in files, and counts each user's bytes in ``shares``."""

    def __init__(
        self, folder: Path, shares: Shares, memory_bytes_max: int = MEMORY_BYTES_MAX
    ) -> None:
        self._folder = folder
        self._memory_bytes_max = memory_bytes_max
        self._memory_bytes = 0
        self.shares = shares

    @property
    def bytes_used(self) -> int:
        """The bytes of all kept results, in memory and in files."""
        return self.shares.taken

    def clean(self) -> None:
        """Delete all files of results, also those of an earlier process."""
        shutil.rmtree(self._folder, ignore_errors=True)

    async def append_chunk(self, kept: Kept, data: bytes, rows: int) -> None:
        """Append a chunk to a result: in memory if there is room, else in the result's file."""
        size = len(data)
        chunk = KeptChunk(kept.rows if kept.chunks else 0, rows, size, data)
        self.shares.count(kept.user, size)
        kept.bytes += size
        if self._memory_bytes + size > self._memory_bytes_max:
            await self._spill(kept, chunk, data)
        if chunk.data is not None:
            self._memory_bytes += size
            kept.memory_bytes += size
        kept.chunks.append(chunk)

    async def _spill(self, kept: Kept, chunk: KeptChunk, data: bytes) -> None:
        """Write the chunk to the result's file; if that fails, the chunk stays in memory."""
        kept.file = kept.file or self._folder / uuid.uuid4().hex
        write = asyncio.ensure_future(asyncio.to_thread(_append, kept.file, data))
        try:
            chunk.file_offset = await asyncio.shield(write)
            chunk.data = None
        except OSError as error:
            _LOG.warning("a result stays in memory: %s cannot be written: %s", kept.file, error)
        except asyncio.CancelledError:
            await asyncio.wait({write})  # else the file would come back after it was deleted
            raise

    def charge(self, kept: Kept, size: int) -> None:
        """Count ``size`` bytes that a result takes beside its data."""
        self.shares.count(kept.user, size)
        kept.bytes += size

    async def read_stored_chunk(self, kept: Kept, index: int) -> bytes:
        """Return the bytes of one chunk; raises RequestError if the result is deleted."""
        chunk = kept.chunks[index]
        if chunk.data is not None:
            return chunk.data
        assert kept.file is not None
        try:
            return await asyncio.to_thread(_read, kept.file, chunk.file_offset, chunk.byte_count)
        except FileNotFoundError as error:
            raise refused(
                ErrorClass.STATEMENT_UNKNOWN, "the result has expired meanwhile"
            ) from error

    def drop(self, kept: Kept) -> None:
        """Delete a result, in memory and on disk."""
        self.shares.give_back(kept.user, kept.bytes)
        self._memory_bytes -= kept.memory_bytes
        if kept.file is not None:
            with contextlib.suppress(OSError):
                kept.file.unlink()
        kept.bytes = kept.memory_bytes = 0
        kept.file = None
        kept.chunks.clear()


def _append(file: Path, data: bytes) -> int:
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with file.open("ab") as stream:
        offset = stream.tell()
        stream.write(data)
        return offset


def _read(file: Path, offset: int, size: int) -> bytes:
    with file.open("rb") as stream:
        stream.seek(offset)
        return stream.read(size)
