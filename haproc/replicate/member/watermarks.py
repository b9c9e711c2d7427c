"""How far this member has come, beyond what its schedule says."""

from __future__ import annotations

from haproc.replicate.member.news import News
from haproc.replicate.queue.schedule import Schedule


class Watermarks:
    """See the module. All are offsets, but the two counts; none ever falls."""

    def __init__(self, schedule: Schedule, news: News) -> None:
        self._schedule = schedule
        self._news = news
        self._log_end = self._looked_ahead_to = self._verified_below = 0
        self._exclusive_applied = self._definitions_applied = 0

    @property
    def log_end(self) -> int:
        """The newest known end of the log."""
        return max(self._log_end, self._schedule.read_to)

    def log_ends(self, end: int) -> None:
        """The log was asked for its end."""
        self._log_end = max(self._log_end, end)

    @property
    def lag(self) -> int:
        """How many records are not applied here: all unread ones, and what waits of the others.

        What is applied already behind one that takes long does not count.
        """
        unread = max(0, self.log_end - self._schedule.read_to)
        return min(unread + self._schedule.pending, self.log_end - self._schedule.low)

    @property
    def heard_to(self) -> int:
        """The offset up to which all control records are known."""
        return max(self._schedule.read_to, self._looked_ahead_to)

    def looked_ahead(self, to: int) -> None:
        """The log was read so far for its control records alone, see `replicate.reader`."""
        self._looked_ahead_to = to

    async def heard(self, to: int) -> None:
        """Wait until all control records below an offset are known."""
        await self._news.until(lambda: self.heard_to >= to)

    @property
    def verified_below(self) -> int:
        """A verification found this cluster's tables equal to the others' here."""
        return self._verified_below

    def verified(self, marker: int) -> None:
        """One did so at a marker."""
        self._verified_below = max(self._verified_below, marker)

    @property
    def exclusive_applied(self) -> int:
        """How many exclusive operations (DDL) this process has applied; dates sessions."""
        return self._exclusive_applied

    @property
    def definitions_applied(self) -> int:
        """These, and what may define something anew beside others; dates what is remembered of
        definitions."""
        return self._definitions_applied

    def defined(self) -> None:
        """Something was applied that may have defined something anew."""
        self._definitions_applied += 1

    def applied_exclusive(self) -> None:
        """An exclusive operation was applied."""
        self._exclusive_applied += 1
