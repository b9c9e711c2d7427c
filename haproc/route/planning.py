"""The order in which the cluster's driver plans statements.

Statements that a driver plans at the same time share its cores equally. With a hundred, each takes
very long, and no probe is answered. So the driver gets some at a time. The others wait in a queue;
the user with the fewest statements at the driver comes first. A statement whose tasks run or whose
rows arrive does not count any more: the driver has planned it.

The driver goes on planning for a request that was abandoned, and only the driver can report the
end. Until then the statement counts. A statement that takes very long counts, too, unless it waits
for something other than the driver: its table's storage, which must not block others. The probes
tell the two apart: a driver that answers them quickly has free cores, and gets one statement more
each time. If the probes are slow for another reason, nothing shows it. Then such a statement counts
for a minute at most.

A large statement needs much of the driver's memory until its first rows arrive. So large ones wait
for one another, and no other statement waits for them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from haproc.config.shares import Shares
from haproc.config.wait_queue import WaitQueue
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.tasks import Phase, Planned
from haproc.failure import RequestError, busy

PLANNED_S_MAX: Final = 10.0
"""A statement that is not planned after so many seconds is late. Beside a few others, planning
takes a second or two. Chosen."""
QUICK_S: Final = 0.5
"""A probe that is answered within so many seconds shows free cores of the driver. On two cores it
takes a tenth of a second if the driver has nothing else to do, and five seconds if it plans dozens
of statements. Chosen."""
LATE_S_MAX: Final = 60.0
"""A late statement counts among those being planned for so many more seconds: longer than almost
any planning. Chosen."""
OF_THE_TIMEOUT: Final = 0.9
"""The part of a request's timeout for which it may wait here, so that its client still gets the
reason."""
LARGE: Final = 32_768
"""A statement with more characters is large. Smaller ones take a few dozen MB of the driver.
Chosen."""


@dataclass(slots=True, eq=False)
class _Turn:
    permit: Callable[[], None]
    """Returns the permit to be planned; a second call does nothing."""
    room: Callable[[], None]
    """Returns the room in the driver's memory; a second call does nothing."""
    timer: asyncio.TimerHandle
    planned: bool = False


class Planning:
    """Limits how many statements the driver plans at a time, and the characters of large ones."""

    def __init__(
        self,
        shares: Shares,
        characters: Shares,
        *,
        wait_s: float = math.inf,
        departures: Callable[[], int] = lambda: 0,
        unavailable: Callable[[], RequestError] = lambda: busy("the cluster left service"),
    ) -> None:
        """``shares``: how many statements may be planned at a time, in all and for each user.

        ``characters``: how many characters all large statements may have. ``wait_s``: the longest
        wait. ``departures`` returns how often the cluster left service; ``unavailable`` the error
        for requests that wait when it leaves.
        """
        self._permits = WaitQueue(shares)
        self._room = WaitQueue(characters)
        self._characters_max = characters.user_max
        self._wait_s = wait_s
        self.departures = departures
        self._unavailable = unavailable
        self._late: dict[_Turn, None] = {}
        """Turns that have held their permit for very long, or whose request was abandoned, oldest
        first."""
        self._abandoned: set[_Turn] = set()

    @property
    def waiting(self) -> int:
        """The number of statements that wait for their turn."""
        return self._permits.length + self._room.length

    @asynccontextmanager
    async def turn(
        self, user: str, within_s: float, size: int = 0, departures: int | None = None
    ) -> AsyncIterator[Planned]:
        """Wait until the driver may plan a statement; yield a function that receives its phases.

        When the context ends, the turn is over, unless the driver may still be planning the
        statement. Inside the context, do not wait for another turn, nor for the log. ``size``: the
        length of the statement's text. A large one keeps its room in memory until its first rows,
        or its end. Raises RequestError if no turn comes in time, or if ``departures`` is not the
        present number any more: the cluster has left service.
        """
        departures = self.departures() if departures is None else departures
        turn = await self._come(user, min(OF_THE_TIMEOUT * within_s, self._wait_s), size)
        try:
            if self.departures() != departures:  # its tables may not be those any more
                raise self._unavailable()
            yield partial(self._reported, turn)
        except BaseException as error:
            if _abandoned(error):
                self._abandon(turn)
            else:
                self._end(turn)
            raise
        self._end(turn)

    def probed(self, seconds: float) -> None:
        """Note that the driver answered a probe after ``seconds``.

        If that was quick, the oldest late statement stops counting, so that one more may be
        planned.
        """
        if self._late and self._permits.length and seconds <= QUICK_S:
            self._planned(next(iter(self._late)))

    def driver_is_gone(self) -> None:
        """Free the turns of late and abandoned statements.

        The driver has ended, so it does not plan them any more.
        """
        for turn in [*self._late, *self._abandoned]:
            self._end(turn)

    def cluster_left(self) -> None:
        """Raise an availability error in all waiting requests: this cluster has left service."""
        self._permits.send_away(self._unavailable)
        self._room.send_away(self._unavailable)

    async def _come(self, user: str, within_s: float, size: int) -> _Turn:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + within_s
        room: Callable[[], None] = _nothing
        limit = "large_statements_max"
        try:
            if size > LARGE:  # a statement larger than a user's share takes the whole share
                room = await self._room.take(user, within_s, min(size, self._characters_max))
            limit = "planned_max"
            permit = await self._permits.take(user, ends_at - loop.time())
        except BaseException as error:
            room()
            if isinstance(error, TimeoutError):
                raise busy(f"{user} had no turn in {within_s:g} s (limits.{limit})") from error
            raise
        turn: _Turn = _Turn(
            permit, room, loop.call_later(PLANNED_S_MAX, lambda: self._is_late(turn))
        )
        return turn

    def _is_late(self, turn: _Turn) -> None:
        if not turn.planned:
            self._late[turn] = None
            turn.timer = asyncio.get_running_loop().call_later(LATE_S_MAX, self._planned, turn)

    def _abandon(self, turn: _Turn) -> None:
        self._abandoned.add(turn)
        if not turn.planned:
            self._late[turn] = None
        turn.timer.cancel()
        turn.timer = asyncio.get_running_loop().call_later(LATE_S_MAX, self._end, turn)

    def _reported(self, turn: _Turn, phase: Phase) -> None:
        if phase is Phase.ENDED:
            self._end(turn)
        self._planned(turn)
        if phase is Phase.ROWS:
            turn.room()

    def _planned(self, turn: _Turn) -> None:
        turn.planned = True
        self._late.pop(turn, None)
        turn.permit()

    def _end(self, turn: _Turn) -> None:
        self._planned(turn)
        self._abandoned.discard(turn)
        turn.timer.cancel()
        turn.room()


def _nothing() -> None:
    pass


def _abandoned(error: BaseException) -> bool:
    """True if the driver may go on with a statement whose request ended with this error."""
    if isinstance(error, EngineError):
        return error.kind is ErrorKind.AVAILABILITY
    return isinstance(error, asyncio.CancelledError | GeneratorExit | TimeoutError)
