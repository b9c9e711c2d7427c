"""Which request ids were seen before: two records with one id, and the first counts.

The answer must be the same on every cluster and after every restart, so it depends on offsets
alone: a record repeats another if the same id stands at most ``records`` offsets before it, be that
one a repetition itself or not. After a restart the window is rebuilt from the log itself.
"""

from __future__ import annotations

from collections import deque


class Window:
    """Request ids of the last ``records`` offsets."""

    def __init__(self, records: int) -> None:
        self._records = records
        self._newest: dict[str, int] = {}
        self._order: deque[tuple[int, str]] = deque()

    def see(self, offset: int, operation_id: str) -> int | None:
        """Note the id at ``offset``; return the newest offset before it with this id, if any.

        Offsets must rise from call to call.
        """
        while self._order and self._order[0][0] < offset - self._records:
            old_offset, old_id = self._order.popleft()
            if self._newest.get(old_id) == old_offset:
                del self._newest[old_id]
        earlier = self._newest.get(operation_id)
        self._newest[operation_id] = offset
        self._order.append((offset, operation_id))
        return earlier

    def begins(self, offset: int) -> int:
        """Return where reading must begin to rebuild the window in front of ``offset``."""
        return max(0, offset - self._records)
