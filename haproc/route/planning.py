"""Whose statement the cluster's driver plans next.

All that a driver plans at once share its cores alike: of a hundred statements, none is planned for
long, and no probe is answered. So it is given some at a time, and the others wait in line, where
the user comes first who has fewest. Whose tasks run, or whose rows come, is counted no more: how
long those take is no matter of the driver's.

A request that was given up is none of the driver's: that plans on, and only the driver can say that
it has ended. Until then its statement counts. So does one that takes very long, unless what it
waits for is not the driver: its table's storage, which must not keep others from theirs. Which of
both it is the probes tell: a driver that answers them quickly has cores to spare, and is given one
statement more each time. Where they are slow for other reasons nothing tells, and a minute must do.

A large statement takes up much of the driver's memory, too, and does so until its first rows are
there. So large ones wait for one another (`Room`), and nobody else for them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from haproc.config.line import Line
from haproc.config.shares import Shares
from haproc.engine.errors import EngineError, ErrorKind
from haproc.failure import RequestError, busy

PLANNED_S_MAX: Final = 10.0
"""Where a driver has some to plan at once, each takes a second or two. Chosen."""
QUICK_S: Final = 0.5
"""A probe on two cores takes a tenth of a second where the driver has nothing else to do, and five
where it plans dozens of statements. Chosen."""
LATE_S_MAX: Final = 60.0
"""Longer than almost any planning. Chosen."""
_OF_THE_TIMEOUT: Final = 0.9
"""Nobody waits longer than so much of a statement's own time, and so hears why."""
LARGE: Final = 32_768
"""Characters; fewer take a few dozen MB of a driver. Chosen."""


@dataclass(slots=True, eq=False)
class _Turn:
    user: str
    place: asyncio.Future[None]
    """Done once there is one."""
    over: bool = False
    timer: asyncio.TimerHandle | None = None


class Room:
    """The driver's memory, by the characters of the large statements that are under way in it."""

    def __init__(self, characters: Shares) -> None:
        self._characters = characters
        self._line = Line(characters)

    async def take(self, user: str, within_s: float, size: int) -> Callable[[], None]:
        """Wait for room, and return what gives it back, once. Raises RequestError if none comes.

        What is larger than a user's share has all of that to itself.
        """
        if size <= LARGE:
            return lambda: None
        amount = min(size, self._characters.user_max)
        turn = self._line.join(user, amount)
        leave = _once(partial(self._leave, user, turn, amount))
        try:
            self._line.serve()
            if not turn.done():
                await asyncio.wait({turn}, timeout=within_s)
            if not turn.done():
                raise busy(
                    f"no room for {user}'s statement of {size:,} characters came in {within_s:g} s "
                    "(limits.large_statements_max)"
                )
        except BaseException:
            leave()
            raise
        return leave

    def _leave(self, user: str, turn: asyncio.Future[None], amount: int) -> None:
        if turn.done():
            self._characters.give_back(user, amount)
        else:
            self._line.step_out(user, turn)
            turn.cancel()
        self._line.serve()


def _once(call: Callable[[], None]) -> Callable[[], None]:
    left = [call]
    return lambda: left.pop()() if left else None


class Planning:
    """Counts the statements that one cluster's driver is planning for clients."""

    def __init__(
        self,
        places: Shares,
        room: Room,
        *,
        wait_s: float = math.inf,
        departures: Callable[[], int] = lambda: 0,
        unavailable: Callable[[], RequestError] = lambda: busy("the cluster left service"),
    ) -> None:
        """``wait_s``: nobody waits longer.

        ``departures`` counts how often the cluster left service; ``unavailable`` is what those are
        told that waited meanwhile.
        """
        self._places = places
        self._room = room
        self._wait_s = wait_s
        self._departures = departures
        self._unavailable = unavailable
        self._left_behind: set[Callable[[], None]] = set()
        """What gives back the room of those that were given up."""
        self._line = Line(places)
        self._late: dict[_Turn, None] = {}
        """Those that take very long, or were given up, oldest first."""

    @property
    def waiting(self) -> int:
        """How many wait in line."""
        return self._line.length

    @asynccontextmanager
    async def turn(
        self, user: str, within_s: float, size: int = 0
    ) -> AsyncIterator[Callable[[], None]]:
        """Have a turn, once it comes; what is given tells that the driver is done with it.

        So does the end, unless the statement was given up. Who has a turn must not wait for
        another one, nor for the log. Raises RequestError if it does not come in time. ``size``: of
        the statement's text, whose room is held until the end.
        """
        loop = asyncio.get_running_loop()
        within_s = min(_OF_THE_TIMEOUT * within_s, self._wait_s)
        ends_at, departures = loop.time() + within_s, self._departures()
        leave = await self._room.take(user, within_s, size)
        given_up = begun = False

        def heard() -> None:
            planned()
            if given_up:
                leave()
                self._left_behind.discard(leave)

        try:
            async with self._place(user, ends_at - loop.time()) as planned:
                if self._departures() != departures:  # its tables may not be those any more
                    raise self._unavailable()
                begun = True
                yield heard
        except BaseException as error:
            given_up = begun and _given_up(error)
            if given_up:
                self._left_behind.add(leave)
                loop.call_later(LATE_S_MAX, heard)
            else:
                leave()
            raise
        leave()

    @asynccontextmanager
    async def _place(self, user: str, within_s: float) -> AsyncIterator[Callable[[], None]]:
        turn = _Turn(user, self._line.join(user))
        try:
            self._line.serve()
            if not turn.place.done():
                await asyncio.wait({turn.place}, timeout=within_s)
            if not turn.place.done():
                raise busy(f"{user} had no turn in {within_s:g} s (limits.planned_max)")
            turn.timer = asyncio.get_running_loop().call_later(PLANNED_S_MAX, self._is_late, turn)
        except BaseException:
            self._end(turn)
            raise
        try:
            yield partial(self._end, turn)
        except BaseException as error:
            if _given_up(error):
                self._is_late(turn)
            else:
                self._end(turn)
            raise
        self._end(turn)

    def probed(self, seconds: float) -> None:
        """The driver has answered a probe within these seconds."""
        if self._late and self._line.length and seconds <= QUICK_S:
            self._end(next(iter(self._late)))

    def driver_is_gone(self) -> None:
        """It has ended, and plans nothing any more."""
        for turn in list(self._late):
            self._end(turn)
        for leave in self._left_behind:
            leave()
        self._left_behind.clear()

    def _is_late(self, turn: _Turn) -> None:
        if turn.over or turn in self._late:
            return
        self._late[turn] = None
        if turn.timer is not None:
            turn.timer.cancel()
        turn.timer = asyncio.get_running_loop().call_later(LATE_S_MAX, self._end, turn)

    def _end(self, turn: _Turn) -> None:
        if turn.over:
            return
        turn.over = True
        self._late.pop(turn, None)
        if turn.timer is not None:
            turn.timer.cancel()
        if turn.place.done():
            self._places.give_back(turn.user)
            self._line.serve()
        else:
            self._line.step_out(turn.user, turn.place)
            turn.place.cancel()


def _given_up(error: BaseException) -> bool:
    """Whether nothing says that the driver has ended a statement that ended so here."""
    if isinstance(error, EngineError):
        return error.kind is ErrorKind.AVAILABILITY
    return isinstance(error, asyncio.CancelledError | GeneratorExit | TimeoutError)
