"""Who waits for a place, and whose turn it is when one becomes free."""

from __future__ import annotations

import asyncio
from collections import deque

from haproc.config.shares import Shares


class Line:
    """Hands places to those that wait: to the user who has fewest of them, in the order of coming.

    So nobody's thousand requests keep another user's single one waiting for longer than a place.
    """

    def __init__(self, places: Shares) -> None:
        self._places = places
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """Users in the order in which their first one came."""
        self.length = 0

    def waits(self, user: str) -> bool:
        """Whether somebody of this user does."""
        return user in self._waiting

    def join(self, user: str) -> asyncio.Future[None]:
        """Return what is done once a place was taken for the one who comes now."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(turn)
        self.length += 1
        return turn

    def step_out(self, user: str, turn: asyncio.Future[None]) -> None:
        """Wait no more; once there is a place it is too late for this."""
        self._waiting[user].remove(turn)
        self._left(user)

    def serve(self) -> None:
        """Give out the places that are free."""
        while (user := self._next()) is not None:
            self._places.count(user, 1)
            turn = self._waiting[user].popleft()
            self._left(user)
            turn.set_result(None)

    def _next(self) -> str | None:
        may = [user for user in self._waiting if self._places.denied(user) is None]
        return min(may, key=self._places.of_user, default=None)

    def _left(self, user: str) -> None:
        self.length -= 1
        if not self._waiting[user]:
            del self._waiting[user]
