"""Who this member is, what is known of it, and so its state; tasks wait for changes."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

from haproc.failure import log_away
from haproc.membership.peers import Member
from haproc.membership.state import (
    HOPELESS,
    SERVING,
    Condition,
    Divergence,
    State,
    Undecided,
    beneath,
    state_of,
)

# Who this member of the ring is.


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this member is, by its configuration. ``ring_order`` holds all clusters' names."""

    ring: str
    cluster: str
    incarnation: str
    ring_order: tuple[str, ...]
    founders: tuple[Member, ...] = ()
    """The ring's members, unless the log says otherwise."""


# What is known of this member, and so its state; tasks are woken when it may have changed.


class News:
    """Wakes the tasks of one member when what they wait for may have become true."""

    def __init__(self) -> None:
        self._moved = asyncio.Event()
        self._startable = asyncio.Event()

    def moved(self) -> None:
        """Say that something that is waited for may be true now."""
        self._moved.set()

    def changed(self) -> None:
        """Say so, and that something in the queue may be ready to start."""
        self._moved.set()
        self._startable.set()

    async def until(self, predicate: Callable[[], object]) -> None:
        """Return once the predicate holds; it is asked again whenever there are news."""
        while not predicate():
            self._moved.clear()
            await self._moved.wait()

    async def startable(self) -> None:
        """Wait until something may be ready to start; for one task alone."""
        await self._startable.wait()
        self._startable.clear()


logger = logging.getLogger(__name__)

_OUT_OF_SERVICE: Final = HOPELESS | {State.DOWN, State.STUCK, State.ISOLATED, State.STOPPED}


class OutOfServiceError(Exception):
    """What was waited for will not come soon."""


class MemberCondition:
    """What is known of this member, and so its state: each method is one thing that can happen to
    it.

    Nothing else changes the condition, and the state follows from it
    (`haproc.membership.state`).

    ``on_state`` hears of each new state, and why."""

    def __init__(self, me: str, news: News, on_state: Callable[[State, str], None]) -> None:
        self._me = me
        self._news = news
        self._on_state = on_state
        self._now = Condition()
        self._state: tuple[State, str] = state_of(self._now)
        self._allowed = asyncio.Event()
        self._out_of_service = False
        self._waits: dict[asyncio.Timeout, None] = {}  # in their order, unlike a set
        self._departures = 0
        self.on_departure: Callable[[], None] = lambda: None

    # -- what is known ---------------------------------------------------------------------

    @property
    def now(self) -> Condition:
        """All that is known."""
        return self._now

    @property
    def state(self) -> State:
        """The state that follows from it."""
        return self._state[0]

    @property
    def reason(self) -> str:
        """Why, for people."""
        return self._state[1]

    @property
    def takes_writes(self) -> bool:
        """Whether a write that was let in may be appended: a drain does not stop it half-way."""
        return self._beneath() is State.READY

    @property
    def may_apply(self) -> bool:
        """Whether new statements may be started on the cluster."""
        c = self._now
        differs = c.diverged is not None and not c.diverged.applies
        blocked = c.stopped or c.fenced_by or c.removed or c.behind or differs
        return c.started and c.cluster_up and not blocked

    @property
    def applying(self) -> bool:
        """Whether the queue goes on, as far as is known."""
        return self.may_apply and self._now.stuck_at is None

    @property
    def out_of_service(self) -> bool:
        """Whether what is under way here will not be finished soon."""
        return self._out_of_service

    @property
    def departures(self) -> int:
        """How often it has left service: its tables may have been mended by hand since."""
        return self._departures

    async def allowed(self) -> None:
        """Wait until new statements may be started on the cluster."""
        await self._allowed.wait()

    @asynccontextmanager
    async def in_service(self, timeout_s: float | None = None) -> AsyncIterator[None]:
        """Wait for something for so long at most, and only while this member is in service.

        Raises TimeoutError, or OutOfServiceError.
        """
        scope = asyncio.timeout(0 if self._out_of_service else timeout_s)
        if not self._out_of_service:
            self._waits[scope] = None
        try:
            async with scope:
                yield
        except TimeoutError as error:
            if scope in self._waits:
                raise
            raise OutOfServiceError from error
        finally:
            self._waits.pop(scope, None)

    def _beneath(self) -> State:
        return beneath(self._now) if self.state is State.DRAINING else self.state

    # -- the process -----------------------------------------------------------------------

    def started(self) -> None:
        """It knows what earlier processes left behind, and may go on."""
        self._update(started=True)

    def caught_up(self) -> None:
        """It has applied all that others wrote meanwhile."""
        self._update(caught_up=True)

    def stopping(self) -> None:
        """The process ends once what is under way has."""
        self._update(draining=True)

    def stopped(self) -> None:
        """Nothing is under way any more."""
        self._update(stopped=True)

    def drain(self, *, drained: bool) -> None:
        """An operator takes this cluster from its clients, or gives it back.

        Given back, it first makes sure that it has applied what the others wrote.
        """
        if drained != self._now.drained:
            self._update(drained=drained, caught_up=self._now.caught_up and drained)

    def replaced(self, by: str) -> None:
        """Another incarnation has taken over the cluster."""
        self._update(fenced_by=by)

    # -- the cluster -----------------------------------------------------------------------

    def cluster_answers(self, up: bool, error: str) -> None:
        """The cluster answers, or does not any more.

        What others wrote meanwhile comes first, before it serves again.
        """
        self._update(cluster_up=up, cluster_error=error, caught_up=False)

    def stuck(self, at: int | None, error: str = "") -> None:
        """One operation keeps failing; None: none does any more."""
        if at is not None or self._now.stuck_at is not None:
            self._update(stuck_at=at, cluster_error=error)

    def differs(self, divergence: Divergence | None) -> None:
        """The cluster is known to differ from the others; None: it was not before."""
        self._update(diverged=divergence)

    def mended(self, divergence: Divergence | None) -> None:
        """The cluster was found equal to the others; what is left of its divergence."""
        self._update(diverged=divergence, caught_up=False)

    def undecided(self, undecided: Undecided | None) -> None:
        """Clusters differ, and nothing proves which of them is wrong; None: not any more."""
        if undecided != self._now.undecided:
            self._update(undecided=undecided)

    # -- the ring and its log --------------------------------------------------------------

    def fell_behind(self, why: str) -> None:
        """The log cannot bring this cluster up to date."""
        self._update(behind=why)

    def copying(self, how_far: str) -> None:
        """The cluster takes tables from another one; empty: it does not any more.

        What others wrote meanwhile comes first, before it serves again.
        """
        self._update(copying=how_far, caught_up=False)

    def isolate(self, why: str) -> None:
        """This HAProc is cut off (why), or is not any more (empty); then it catches up first."""
        self._update(isolated=why, caught_up=False)

    def removed(self, why: str) -> None:
        """The ring does not have this cluster (why), or has it (empty).

        One that is taken back applies what it missed before it serves again.
        """
        if why != self._now.removed:
            self._update(removed=why, caught_up=False)

    def log_answered(self) -> None:
        """The log took a write."""
        if not self._now.log_up:
            self._update(log_up=True, log_error="")

    def log_failed(self, error: Exception) -> None:
        """The log is away."""
        self._update(log_up=False, log_error=log_away(error))

    # -- what follows ----------------------------------------------------------------------

    def _update(self, **changes: Any) -> None:
        self._now = dataclasses.replace(self._now, **changes)
        before, self._state = self._state, state_of(self._now)
        if self.may_apply:
            self._allowed.set()
        else:
            self._allowed.clear()
        self._news.changed()
        self._out_of_service = self._beneath() in _OUT_OF_SERVICE
        if self._out_of_service:
            self._end_waits()
        leaves = before[0] in SERVING and self._state[0] not in SERVING
        self._departures += leaves
        if before[0] is not self._state[0]:
            logger.info("%s: %s -> %s %s", self._me, before[0], *self._state)
            self._on_state(*self._state)
        if leaves:
            self.on_departure()

    def _end_waits(self) -> None:
        ended = [scope for scope in self._waits if not scope.expired()]
        for scope in ended:
            del self._waits[scope]
        for scope in ended:
            scope.reschedule(asyncio.get_running_loop().time())
