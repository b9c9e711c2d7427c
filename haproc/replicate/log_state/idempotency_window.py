"""Which request ids were seen before: two records with one id, and the first counts.

The answer must be the same on every cluster and after every restart, so it depends on the log
alone. A record repeats another if the same id of the same user stands at most ``window`` offsets
before it, be that one a repetition itself or not. After a restart the window is rebuilt from the
log. A stale record (`replicate.log_state.definitions`) is never shown to the window: it is as if it
were not there. Records of versions 1 and 2 are still judged by the id alone, whoever's it is.

What stands farther back is forgotten. So that a late copy is not taken for new, a record says
``since``: an offset below which no copy of its request can stand (see `replicate.log_state.past`).
If that is not within the window, the record is *expired*: it is passed over, whether or not there
was an earlier copy. Of two copies at most one is therefore applied: the second one is either within
reach of the first, or expired, because its ``since`` lies at or below the first.

``window`` comes with the record, so all readers agree on it, whatever their own limits; one that
remembers less than a record asks for cannot judge it, and stops there. So does one that could not
read as far back as a record asks for, because the log begins later.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import TypeAlias

from dmq import LogError


class WindowTooSmallError(LogError):
    """A record asks for more memory of request ids than this HAProc has."""


class Sighting(Enum):
    """What a record is, by its request id."""

    NEW = auto()
    REPEATED = auto()
    EXPIRED = auto()


_Key: TypeAlias = tuple[str | None, str]
"""A user and an id of his, or None and anybody's."""


class IdempotencyWindow:
    """Request ids of the last ``records`` offsets."""

    def __init__(self, records: int) -> None:
        self._records = records
        self._known_from = 0
        self._newest: dict[_Key, int] = {}
        self._order: deque[tuple[int, _Key]] = deque()
        self._unsure: dict[_Key, int] = {}
        self._sure_from = 0

    @property
    def known_from(self) -> int:
        """The ids of all records from here on are known, and whether they count.

        As far as the window reaches.
        """
        return max(self._known_from, self._sure_from)

    def knows_from(self, offset: int) -> None:
        """The ids of all records from there on were, or will be, noted."""
        self._known_from = offset

    def see(
        self,
        offset: int,
        operation_id: str,
        since: int | None = None,
        window: int | None = None,
        *,
        user: str = "",
        own_id: bool = True,
    ) -> Sighting:
        """Note the id at ``offset`` and say what the record is; records of old say no ``since``.

        ``own_id``: the id is the user's own, and no other user's record is repeated. Offsets must
        rise from call to call.
        """
        reach = self._records if window is None else window
        if reach > self._records:
            raise WindowTooSmallError(
                f"the record at offset {offset} was written with limits.window_records = {reach}, "
                f"and this HAProc has {self._records}: give it at least as many, and start it again"
            )
        while self._order and self._order[0][0] < offset - self._records:
            old_offset, old = self._order.popleft()
            if self._newest.get(old) == old_offset:
                del self._newest[old]
        asked: _Key = (user, operation_id) if own_id else (None, operation_id)
        earlier, unsure = self._newest.get(asked, -1), self._unsure.get(asked, -1)
        for key in ((user, operation_id), (None, operation_id)):
            self._newest[key] = offset
            self._order.append((offset, key))
        if earlier >= max(0, offset - reach):
            return Sighting.REPEATED
        if unsure >= max(0, offset - reach):
            raise WindowTooSmallError(
                f"whether the record at offset {offset} repeats the one at {unsure} cannot be "
                "known: the log began too late, when this HAProc was started, to tell whether that "
                "one counts"
            )
        if since is not None and since < offset - reach:
            return Sighting.EXPIRED
        if since is not None and since < self._known_from:
            raise WindowTooSmallError(
                f"whether the record at offset {offset} repeats an earlier one cannot be known: "
                f"request ids from offset {since} on are needed, and the log began at "
                f"{self._known_from} when this HAProc was started"
            )
        return Sighting.NEW

    def unsure(self, offset: int, operation_id: str, user: str) -> None:
        """Note a record of which it cannot be known whether it is stale."""
        for key in ((user, operation_id), (None, operation_id)):
            self._unsure[key] = offset
        self._sure_from = offset + 1

    def begins(self, offset: int) -> int:
        """Return from where on the ids must be known to judge what stands at ``offset``."""
        return max(0, offset - self._records)
