"""Whose operation gets the next lane, of those that are ready.

Who has fewest lanes comes first, then who has waited longest for one. Nothing that runs is taken
back, so one user could still fill all lanes just before another one comes. Therefore one lane is
kept for others as long as there are any: somebody else wrote something not long ago.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

NOT_LONG_AGO: Final = 16_384
"""Records. Chosen: as far as operations run ahead of each other."""
USERS_MAX: Final = 1_024
"""Of whom it is known when they had a lane last; the others count as having waited longest."""


class Sharing:
    """See the module. Values in, values out."""

    def __init__(self) -> None:
        self._served: OrderedDict[str, int] = OrderedDict()
        self._count = 0
        self._came: OrderedDict[str, int] = OrderedDict()
        """The newest operations of the two users that wrote last."""

    def came(self, user: str, offset: int) -> None:
        """An operation of this user was read from the log."""
        self._came[user] = offset
        self._came.move_to_end(user)
        if len(self._came) > 2:
            self._came.popitem(last=False)

    def next(
        self, ready: Mapping[str, int], has: Mapping[str, int], lanes: int, read_to: int
    ) -> str | None:
        """Return whose operation starts next; None if none may.

        ``ready``: the first offset of each user that may start; ``has``: how many lanes each user
        has, of so many.
        """
        allowed = [user for user in ready if self._may_have(user, has, lanes, read_to)]
        if not allowed:
            return None
        if len(allowed) == 1:
            return allowed[0]
        return min(
            allowed,
            key=lambda user: (has.get(user, 0), self._served.get(user, 0), ready[user]),
        )

    def served(self, user: str) -> None:
        """This user got a lane."""
        self._count += 1
        self._served[user] = self._count
        self._served.move_to_end(user)
        if len(self._served) > USERS_MAX:
            self._served.popitem(last=False)

    def _may_have(self, user: str, has: Mapping[str, int], lanes: int, read_to: int) -> bool:
        if has.get(user, 0) < lanes - 1 or lanes == 1:
            return True
        since = read_to - NOT_LONG_AGO
        return not any(other != user and at >= since for other, at in self._came.items())
