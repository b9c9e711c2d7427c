"""Whose statement the cluster's driver plans next.

All that a driver plans at once share its cores alike: of a hundred statements, none is planned for
long, and no probe is answered. So it is given some at a time, and the others wait in line, where
the user comes first who has fewest. Whose tasks run, or whose rows come, is counted no more: how
long those take is no matter of the driver's. Nor is who takes very long: it waits for something
else, its table's storage for one, and must not keep others from theirs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Final

from haproc.config.line import Line
from haproc.config.shares import Shares
from haproc.failure import busy

PLANNED_S_MAX: Final = 10.0
"""Where a driver has some to plan at once, each takes a second or two. Chosen."""


class Planning:
    """Counts the statements that one cluster's driver is planning for clients."""

    def __init__(self, places: Shares) -> None:
        self._places = places
        self._line = Line(places)

    @property
    def waiting(self) -> int:
        """How many wait in line."""
        return self._line.length

    @asynccontextmanager
    async def turn(self, user: str, within_s: float) -> AsyncIterator[Callable[[], None]]:
        """Have a turn, once it comes; what is given tells that the driver is done with it.

        So does the end. Who has a turn must not wait for another one, nor for the log. Raises
        RequestError if it does not come in time.
        """
        with ExitStack() as held:
            turn = self._line.join(user)
            held.callback(self._leave, user, turn)
            self._line.serve()
            if not turn.done():
                await asyncio.wait({turn}, timeout=within_s)
            if not turn.done():
                raise busy(f"{user} had no turn in {within_s:g} s (limits.planned_max)")
            late = asyncio.get_running_loop().call_later(PLANNED_S_MAX, held.close)
            held.callback(late.cancel)
            yield held.close

    def _leave(self, user: str, turn: asyncio.Future[None]) -> None:
        if turn.done():
            self._places.give_back(user)
            self._line.serve()
        else:
            self._line.step_out(user, turn)
            turn.cancel()
