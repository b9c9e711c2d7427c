"""The wait queue: requests of users that wait for permits, and their order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack

from haproc.config.shares import Denied, Shares


class WaitQueue:
    """Gives free permits to waiting requests, first to the user who has the fewest permits.

    Users with equally many take turns, so a user's thousand requests do not hold up another user's
    single one. If the next request needs more permits than are free, the free ones are kept for it.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._waiting: dict[str, deque[tuple[asyncio.Future[None], int]]] = {}
        """The waiting requests by user, each with its number of permits; the user who was served
        longest ago comes first."""
        self.length = 0

    def waits(self, user: str) -> bool:
        """True if any request of this user is waiting."""
        return user in self._waiting

    async def take(self, user: str, within_s: float, amount: int = 1) -> Callable[[], None]:
        """Wait for ``amount`` permits; return the function that gives them back.

        That function may be called twice. Raises TimeoutError if the permits do not become free in
        time.
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
                self._shares.give_back(user, amount)
        else:
            self.step_out(user, turn)
            turn.cancel()
        self.serve()

    def join(self, user: str, amount: int = 1) -> asyncio.Future[None]:
        """Add a request to the queue; return a future that is done once it has its permits."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append((turn, amount))
        self.length += 1
        return turn

    def step_out(self, user: str, turn: asyncio.Future[None]) -> None:
        """Remove a waiting request that has no permits yet; ``turn``: its future from `join`."""
        waiting = self._waiting[user]
        waiting.remove(next(each for each in waiting if each[0] is turn))
        self._left(user)

    def send_away(self, why: Callable[[], Exception]) -> None:
        """Remove all waiting requests; each gets the exception that ``why`` returns."""
        for waiting in self._waiting.values():
            for turn, _ in waiting:
                turn.set_exception(why())
        self._waiting.clear()
        self.length = 0

    def serve(self) -> None:
        """Give the free permits to waiting requests, in their order."""
        while self._waiting and (user := self._next()) is not None:
            waiting = self._waiting.pop(user)
            turn, amount = waiting.popleft()
            self._waiting[user] = waiting  # after all others with as few
            self._shares.count(user, amount)
            self._left(user)
            turn.set_result(None)

    def _next(self) -> str | None:
        why = {user: self._denied(user) for user in self._waiting}
        may = [user for user, denied in why.items() if denied is not Denied.SHARE_TAKEN]
        first = min(may, key=self._shares.of_user, default=None)
        return first if first is not None and why[first] is None else None

    def _denied(self, user: str) -> Denied | None:
        _, amount = self._waiting[user][0]
        return self._shares.denied(user, amount)

    def _left(self, user: str) -> None:
        self.length -= 1
        if not self._waiting[user]:
            del self._waiting[user]
