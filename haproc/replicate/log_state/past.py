"""Where the log ended some time ago: below that no copy of a request stands that was sent later.

A request says how long ago it was first sent, by its sender's own clock. This HAProc watches the
log's end once a second, and remembers that as far back as the window of request ids reaches. What
it did not see itself, because it was started later, it takes from the times at which the records
were made, by the clocks of the HAProcs that made them.

`MARGIN_S` is given to every request, also to one that is sent for the first time: it may have lain
in this process's sockets while that was frozen. After thawing, the newest end known from five
seconds ago is the one from before the freeze.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

MARGIN_S: Final = 5.0
"""How much older a request may be than it says, and how far the HAProcs' clocks may differ. Chosen:
more than a network's delays, and at 5,000 writes a second less than half of the window."""
_STEP_MS: Final = 100


class Past:
    """The ends of the log as far back as ``records`` offsets; times are of one monotonic clock."""

    def __init__(self, records: int) -> None:
        self._records = records
        self._seen_s: list[float] = []
        self._ends: list[int] = []
        self._made_ms: list[int] = []
        self._made_at: list[int] = []
        self._forgotten = False
        self._noted_to = 0

    def observe(self, now_s: float, end: int) -> None:
        """The log had this end, or a later one."""
        if self._ends and end <= self._ends[-1]:
            return
        self._seen_s.append(now_s)
        self._ends.append(end)
        if len(self._ends) > 2 and self._ends[len(self._ends) // 2] < end - self._records:
            half = len(self._ends) // 2
            del self._seen_s[:half], self._ends[:half]
            self._forgotten = True

    def note(self, offset: int, created_ms: int) -> None:
        """The record at this offset was made at this time; offsets rise from call to call."""
        self._noted_to = offset + 1
        if self._made_ms and created_ms < self._made_ms[-1] + _STEP_MS:
            return
        self._made_ms.append(created_ms)
        self._made_at.append(offset)
        half = len(self._made_at) // 2
        if half and self._made_at[half] < offset - self._records:
            del self._made_ms[:half], self._made_at[:half]

    def since(self, age_s: float, arrived_s: float, arrived_ms: int) -> int:
        """Return an offset below which no copy of a request stands.

        It arrived at ``arrived_s``, which was ``arrived_ms`` in Unix time, and was first sent
        ``age_s`` before. 0 if nothing is known of that time.
        """
        at = bisect_right(self._seen_s, arrived_s - age_s - MARGIN_S) - 1
        if at >= 0:
            return self._ends[at]
        if self._forgotten or not self._ends:
            return 0
        if age_s == 0:
            return self._ends[0]  # before that this process was not there to be sent anything
        return min(self._made_since(arrived_ms - 1000 * (age_s + MARGIN_S)), self._ends[0])

    def _made_since(self, moment_ms: float) -> int:
        """Return the first offset that may hold a record made after this moment."""
        at = bisect_right(self._made_ms, moment_ms - _STEP_MS)
        if at == 0:
            return 0
        return self._made_at[at] if at < len(self._made_at) else self._noted_to
