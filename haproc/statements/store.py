"""Results kept for clients that fetch them later: in memory up to a size, beyond it in files.

The store keeps bytes and counts them; which result has to go, and when, is decided by
`statements.registry`. Files lie in a folder of this HAProc's own that is emptied at start: a result
belongs to the process that made it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dmq import Json
from haproc.config.shares import Shares
from haproc.engine.interface import Column
from haproc.failure import ErrorClass, refused

_LOG = logging.getLogger(__name__)

MEMORY_BYTES_MAX: Final = 64 << 20
"""Kept in memory by all results together; chosen, not measured."""
OVERHEAD_BYTES: Final = 2048
"""Counted for each result beside its data: its columns, its report, its place in the tables."""


@dataclass(slots=True)
class KeptChunk:
    """One chunk of a result: its bytes in memory, or where they lie in the result's file."""

    row_offset: int
    row_count: int
    byte_count: int
    data: bytes | None
    file_offset: int = 0

    def describe(self, index: int) -> dict[str, Json]:
        """Return the chunk's numbers as the manifest and the result object show them."""
        return {
            "chunk_index": index,
            "row_offset": self.row_offset,
            "row_count": self.row_count,
            "byte_count": self.byte_count,
        }


@dataclass(slots=True)
class Kept:
    """A whole result as it is kept."""

    user: str = ""
    columns: tuple[Column, ...] = ()
    chunks: list[KeptChunk] = field(default_factory=list)
    truncated: bool = False
    bytes: int = 0
    memory_bytes: int = 0
    file: Path | None = None

    @property
    def rows(self) -> int:
        """How many rows all chunks hold."""
        return sum(chunk.row_count for chunk in self.chunks)


class ResultStore:
    """Bytes of results, as many as ``shares`` says."""

    def __init__(
        self, folder: Path, shares: Shares, memory_bytes_max: int = MEMORY_BYTES_MAX
    ) -> None:
        self._folder = folder
        self._memory_bytes_max = memory_bytes_max
        self._memory_bytes = 0
        self.shares = shares

    @property
    def bytes_used(self) -> int:
        """How many bytes all results take."""
        return self.shares.taken

    def clean(self) -> None:
        """Delete what an earlier process left."""
        shutil.rmtree(self._folder, ignore_errors=True)

    async def add(self, kept: Kept, data: bytes, rows: int) -> None:
        """Append a chunk to a result."""
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
        """Write the chunk to the result's file; where that fails it stays in memory."""
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
        """Count bytes that a result takes beside its data."""
        self.shares.count(kept.user, size)
        kept.bytes += size

    async def read(self, kept: Kept, index: int) -> bytes:
        """Return a chunk's bytes."""
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
        """Forget a result."""
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
