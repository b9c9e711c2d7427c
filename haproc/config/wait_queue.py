"""Which users wait for a permit, and whose turn it is when one becomes free."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack

from haproc.config.shares import Denied, Shares


class WaitQueue:
    """Hands permits to waiting requests: to the user who has fewest of them; of several in turns.

    So nobody's thousand requests keep another user's single one waiting for longer than a place.
    Where one of many places is next, and there are fewer, they are kept for it.
    """

    def __init__(self, places: Shares) -> None:
        self._places = places
        self._waiting: dict[str, deque[tuple[asyncio.Future[None], int]]] = {}
        """Users, who was served longest ago first; who waits, and what each of them needs."""
        self.length = 0

    def waits(self, user: str) -> bool:
        """Whether somebody of this user does."""
        return user in self._waiting

    async def take(self, user: str, within_s: float, amount: int = 1) -> Callable[[], None]:
        """Wait for so many places, and return what gives them back; again is harmless.

        Raises TimeoutError if they do not become free in time.
        """
        with ExitStack() as held:
            turn = self.join(user, amount)
            held.callback(self._give_back, user, turn, amount)
            self.serve()
            if not turn.done():
                await asyncio.wait({turn}, timeout=within_s)
            if not turn.done():
                raise TimeoutError
            turn.result()
            return held.pop_all().close

    def _give_back(self, user: str, turn: asyncio.Future[None], amount: int) -> None:
        if turn.done():
            if turn.exception() is None:
                self._places.give_back(user, amount)
        else:
            self.step_out(user, turn)
            turn.cancel()
        self.serve()

    def join(self, user: str, amount: int = 1) -> asyncio.Future[None]:
        """Return what is done once so many places were taken for the one who comes now."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append((turn, amount))
        self.length += 1
        return turn

    def step_out(self, user: str, turn: asyncio.Future[None]) -> None:
        """Wait no more; once there is a place it is too late for this."""
        waiting = self._waiting[user]
        waiting.remove(next(each for each in waiting if each[0] is turn))
        self._left(user)

    def send_away(self, why: Callable[[], Exception]) -> None:
        """All who wait are told so, and wait no more."""
        for waiting in self._waiting.values():
            for turn, _ in waiting:
                turn.set_exception(why())
        self._waiting.clear()
        self.length = 0

    def serve(self) -> None:
        """Give out the places that are free."""
        while self._waiting and (user := self._next()) is not None:
            waiting = self._waiting.pop(user)
            turn, amount = waiting.popleft()
            self._waiting[user] = waiting  # behind all others that have as few
            self._places.count(user, amount)
            self._left(user)
            turn.set_result(None)

    def _next(self) -> str | None:
        why = {user: self._denied(user) for user in self._waiting}
        may = [user for user, denied in why.items() if denied is not Denied.SHARE_TAKEN]
        first = min(may, key=self._places.of_user, default=None)
        return first if first is not None and why[first] is None else None

    def _denied(self, user: str) -> Denied | None:
        _, amount = self._waiting[user][0]
        return self._places.denied(user, amount)

    def _left(self, user: str) -> None:
        self.length -= 1
        if not self._waiting[user]:
            del self._waiting[user]
