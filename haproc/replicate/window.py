"""Which request ids were seen before: two records with one id, and the first counts.

The answer must be the same on every cluster and after every restart, so it depends on offsets
alone: a record repeats another if the same id stands at most ``records`` offsets before it. After
a restart the window is rebuilt from the log itself.
"""

from __future__ import annotations

from collections import deque


class Window:
    """Request ids of the last ``records`` offsets."""

    def __init__(self, records: int) -> None:
        self._records = records
        self._first: dict[str, int] = {}
        self._order: deque[tuple[int, str]] = deque()

    def see(self, offset: int, operation_id: str) -> int | None:
        """Note the id at ``offset``; return the offset of the first with this id, if there is one.

        Offsets must rise from call to call.
        """
        while self._order and self._order[0][0] < offset - self._records:
            old_offset, old_id = self._order.popleft()
            if self._first.get(old_id) == old_offset:
                del self._first[old_id]
        first = self._first.get(operation_id)
        if first is None:
            self._first[operation_id] = offset
            self._order.append((offset, operation_id))
        return first

    def begins(self, offset: int) -> int:
        """Return where reading must begin to rebuild the window in front of ``offset``."""
        return max(0, offset - self._records)
