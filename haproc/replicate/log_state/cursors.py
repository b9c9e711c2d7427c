"""Which stored cursors say what their clusters have done. Values in, values out.

A cursor says so only of the log that its cluster read. A log that lost its newest records (a disk
that lied, a copy of old) ends before the cursors of those who had read them, and later grows beyond
them with other records. So a cursor counts only if

- it is not beyond the log's end, asked for after it was read. One that was does not count from then
  on, however far the log grows, before its cluster stores a lower one or another process does;
- what it knows of the clusters' newest claims below it is what this log says of them: whoever began
  after the loss claimed at an offset that held something else before;
- its cluster is not known to differ from the others.

What none of these shows: a log that was shortened and grew again while nobody looked at it, and
nobody began.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from dmq import Cursor, LogCorruptError
from haproc.replicate.log_state.claims import Claims
from haproc.replicate.records.progress import Progress, from_cursor


class StoredCursors:
    """See the module. ``claims``: those that the log says, up to the ends that it is asked with."""

    def __init__(self, claims: Claims) -> None:
        self._claims = claims
        self._beyond: dict[str, Cursor] = {}

    def counting(self, cursors: Mapping[str, Cursor], end: int) -> dict[str, Progress]:
        """Return by cluster what the cursors say that count.

        ``end``: the log's, asked for after the cursors were read; all claims below it were heard.
        """
        found: dict[str, Progress] = {}
        for name, cursor in cursors.items():
            if cursor.offset > end:
                self._beyond[name] = cursor
            if self._was_beyond(name, cursor):
                continue
            with suppress(LogCorruptError):
                progress = from_cursor(cursor)
                if progress.diverged is None and self._of_this_log(progress):
                    found[name] = progress
        return found

    def _was_beyond(self, name: str, cursor: Cursor) -> bool:
        known = self._beyond.get(name)
        if known is None:
            return False
        return cursor.epoch == known.epoch and cursor.offset >= known.offset

    def _of_this_log(self, progress: Progress) -> bool:
        here = dict(self._claims.before(progress.low))
        return all(here.get(name, claim) == claim for name, claim in progress.claims)
