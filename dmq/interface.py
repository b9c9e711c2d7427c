"""The log as its users see it.

Contract (the suite in tests/contract runs it against every backend):

- Offsets rise strictly; they need not be dense. One append's records are in order. On some
  backends (Kafka) records of other writers may stand between them, and a writer that dies in an
  append of several may leave the first ones.
- ``append`` returns once the records would survive a kill of every process that holds the log.
  If it raises LogUnavailableError the records may or may not be there; if it raises anything
  else they are not.
- A record is seen by all readers in the same order; no reader sees a record before all that
  precede it are visible.
- ``read`` below the log's start raises TrimmedError and never skips; above the end it raises
  LogRegressedError. A log that lost records or was made anew under an open handle raises
  LogRegressedError, too; nothing makes it anew but opening it.
- An entry whose record is of kind `dmq.record.FILLER` only holds a place (a part of a larger
  record, say): it is in nobody's append, and readers pass over it. Cursors may stand on it.
- A cursor is durable when ``commit_cursor`` returns. The last commit of a reader counts, but one
  of a lower epoch than the stored one is refused and changes nothing.

Not in the contract: exactly one copy of a record whose append was retried. Readers drop copies
by ``Record.key``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from dmq.record import Record

CURSOR_NOTE_BYTES_MAX: Final = 3900
"""Kafka keeps at most 4,096 bytes beside a committed offset."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A record at its place."""

    offset: int
    record: Record


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a reader is: every record below ``offset`` is dealt with.

    ``note`` is the reader's own (ASCII, at most CURSOR_NOTE_BYTES_MAX bytes), stored with it
    atomically. ``epoch`` tells the processes that commit for one reader apart: a later one has a
    higher epoch, and its commits are final for all earlier ones.
    """

    offset: int = 0
    note: str = ""
    epoch: int = 0


class Log(Protocol):
    """One ordered, durable sequence of records. Safe for many tasks of one event loop."""

    async def append(self, records: Sequence[Record]) -> list[int]:
        """Make the records durable, in order; return their offsets."""
        ...

    async def read(
        self, start: int, *, records_max: int = 1024, bytes_max: int = 16 << 20
    ) -> list[Entry]:
        """Return the entries at or after ``start`` in order; empty at the end of the log.

        Stops at either limit, but always returns at least one entry where there is one.
        """
        ...

    async def wait(self, offset: int, timeout_s: float) -> bool:
        """Wait until the end is beyond ``offset`` (True) or the time is over (False)."""
        ...

    async def start(self) -> int:
        """Return the lowest offset that can still be read."""
        ...

    async def end(self) -> int:
        """Return the offset after the newest record that is durable now."""
        ...

    async def load_cursor(self, reader: str) -> Cursor | None:
        """Return the reader's cursor, or None if it never committed one."""
        ...

    async def commit_cursor(self, reader: str, cursor: Cursor) -> None:
        """Store the reader's cursor durably; FencedError if one of a higher epoch is stored."""
        ...

    async def cursors(self) -> Mapping[str, Cursor]:
        """Return every reader's cursor."""
        ...

    async def trim(self, before: int) -> None:
        """Delete the records below ``before``; asking again or for less is harmless.

        Some of them may stay for a while where the backend still needs them.
        """
        ...

    async def identity(self) -> str:
        """Return an id that no other log has, nor this one after it was made anew."""
        ...

    async def close(self) -> None:
        """Release what the log holds; appends under way finish first."""
        ...
