"""The newest stretch of a log, kept in memory, so that what was just written or fetched for one
reader need not be fetched for the next. Safe for several threads."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

RECENT_RECORDS_MAX: Final = 8192
RECENT_BYTES_MAX: Final = 16 << 20


class Recent:
    """Stored values at consecutive offsets; the oldest are dropped at the limits."""

    def __init__(
        self, *, records_max: int = RECENT_RECORDS_MAX, bytes_max: int = RECENT_BYTES_MAX
    ) -> None:
        self._lock = threading.Lock()
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._first = 0
        self._values: list[bytes] = []
        self._size = 0

    def extend(self, stored: Sequence[tuple[int, bytes]]) -> None:
        """Take in values in the order of their offsets; a gap drops all that is before it."""
        with self._lock:
            end = self._first + len(self._values)
            if stored and stored[0][0] == end and stored[-1][0] == end + len(stored) - 1:
                values = [value for _, value in stored]
                self._values += values
                self._size += sum(map(len, values))
                self._shrink()
                return
            for offset, value in stored:
                end = self._first + len(self._values)
                if self._values and offset < end:
                    continue
                if offset != end:
                    self._values.clear()
                    self._size = 0
                if not self._values:
                    self._first = offset
                self._values.append(value)
                self._size += len(value)
            self._shrink()

    def run(self, start: int, records_max: int) -> list[tuple[int, bytes]]:
        """Return what is kept from this offset on; nothing if it is not kept."""
        with self._lock:
            index = start - self._first
            if not 0 <= index < len(self._values):
                return []
            return list(enumerate(self._values[index : index + max(1, records_max)], start))

    def get(self, offset: int) -> bytes | None:
        """Return one value, if it is kept."""
        with self._lock:
            index = offset - self._first
            return self._values[index] if 0 <= index < len(self._values) else None

    def forget(self, below: int) -> None:
        """Drop what is below this offset."""
        with self._lock:
            self._drop(below - self._first)

    def _shrink(self) -> None:
        if len(self._values) <= self._records_max and self._size <= self._bytes_max:
            return
        # To three quarters, so that it is not done again for each value.
        count, size = len(self._values), self._size
        drop = 0
        while drop < count and (
            count - drop > self._records_max * 3 // 4 or size > self._bytes_max * 3 // 4
        ):
            size -= len(self._values[drop])
            drop += 1
        self._drop(drop)

    def _drop(self, count: int) -> None:
        count = min(count, len(self._values))
        if count > 0:
            self._size -= sum(map(len, self._values[:count]))
            del self._values[:count]
            self._first += count
