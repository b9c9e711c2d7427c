"""The identity of this member, the facts known of it, and its state; tasks wait for changes."""

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

# The identity of this member of the ring.


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of this member by its configuration. ``ring_order``: all clusters' names."""

    ring: str
    cluster: str
    incarnation: str
    ring_order: tuple[str, ...]
    founders: tuple[Member, ...] = ()
    """The ring's members, unless the log says otherwise."""


# The facts known of this member, and its state; tasks are woken when they may have changed.


class News:
    """Wakes the tasks of one member when their conditions may have become true."""

    def __init__(self) -> None:
        self._moved = asyncio.Event()
        self._startable = asyncio.Event()

    def moved(self) -> None:
        """Wake the tasks that wait in `until`."""
        self._moved.set()

    def changed(self) -> None:
        """Wake the tasks that wait in `until`, and the one in `startable`."""
        self._moved.set()
        self._startable.set()

    async def until(self, predicate: Callable[[], object]) -> None:
        """Wait until the predicate is true; it is tested again after each news."""
        while not predicate():
            self._moved.clear()
            await self._moved.wait()

    async def startable(self) -> None:
        """Wait until a unit may be ready to start; only one task may wait here."""
        await self._startable.wait()
        self._startable.clear()


logger = logging.getLogger(__name__)

_OUT_OF_SERVICE: Final = HOPELESS | {State.DOWN, State.STUCK, State.ISOLATED, State.STOPPED}


class OutOfServiceError(Exception):
    """This member is out of service: the awaited event will not come soon."""


class MemberCondition:
    """The facts known of this member, and its state: each event has a method that notes it.

    Nothing else changes the facts. The state follows from them (`haproc.membership.state`).

    ``on_state`` is called with each new state and its reason."""

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

    # -- facts -----------------------------------------------------------------------------

    @property
    def now(self) -> Condition:
        """The known facts."""
        return self._now

    @property
    def state(self) -> State:
        """The state that follows from the facts."""
        return self._state[0]

    @property
    def reason(self) -> str:
        """The reason of the state, for people."""
        return self._state[1]

    @property
    def takes_writes(self) -> bool:
        """True if an accepted write may be appended: a drain does not stop it half-way."""
        return self._beneath() is State.READY

    @property
    def may_apply(self) -> bool:
        """True if new statements may be started on the cluster."""
        c = self._now
        differs = c.diverged is not None and not c.diverged.applies
        blocked = c.stopped or c.fenced_by or c.removed or c.behind or differs
        return c.started and c.cluster_up and not blocked

    @property
    def applying(self) -> bool:
        """True if this cluster applies its queue and is not stuck."""
        return self.may_apply and self._now.stuck_at is None

    @property
    def out_of_service(self) -> bool:
        """True if running work will not be finished soon here."""
        return self._out_of_service

    @property
    def departures(self) -> int:
        """The number of times that it left service: its tables may have been repaired since."""
        return self._departures

    async def allowed(self) -> None:
        """Wait until new statements may be started on the cluster."""
        await self._allowed.wait()

    @asynccontextmanager
    async def in_service(self, timeout_s: float | None = None) -> AsyncIterator[None]:
        """Limit the wait in this context: to the time, and to the service of this member.

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
        """Note that the start is over: the remains of earlier processes are known."""
        self._update(started=True)

    def caught_up(self) -> None:
        """Note that this cluster has applied all writes that it missed."""
        self._update(caught_up=True)

    def stopping(self) -> None:
        """Note that the process ends when its accepted requests have ended."""
        self._update(draining=True)

    def stopped(self) -> None:
        """Note that no work runs any more."""
        self._update(stopped=True)

    def drain(self, *, drained: bool) -> None:
        """Note that an operator drains this cluster, or ends its drain.

        After a drain it catches up before it serves again.
        """
        if drained != self._now.drained:
            self._update(drained=drained, caught_up=self._now.caught_up and drained)

    def replaced(self, by: str) -> None:
        """Note that another incarnation has taken over the cluster."""
        self._update(fenced_by=by)

    # -- the cluster -----------------------------------------------------------------------

    def cluster_answers(self, up: bool, error: str) -> None:
        """Note that the cluster answers its probes, or does not any more.

        It catches up before it serves again.
        """
        self._update(cluster_up=up, cluster_error=error, caught_up=False)

    def stuck(self, at: int | None, error: str = "") -> None:
        """Note the operation that keeps failing; None: none does any more."""
        if at is not None or self._now.stuck_at is not None:
            self._update(stuck_at=at, cluster_error=error)

    def differs(self, divergence: Divergence | None) -> None:
        """Note that the cluster differs from the others; None: nothing is known of that."""
        self._update(diverged=divergence)

    def mended(self, divergence: Divergence | None) -> None:
        """Note that the cluster was found equal to the others; a later divergence may remain."""
        self._update(diverged=divergence, caught_up=False)

    def undecided(self, undecided: Undecided | None) -> None:
        """Note that clusters differ and none is proven wrong; None: that is over."""
        if undecided != self._now.undecided:
            self._update(undecided=undecided)

    # -- the ring and its log --------------------------------------------------------------

    def fell_behind(self, why: str) -> None:
        """Note that the log cannot bring this cluster up to date."""
        self._update(behind=why)

    def copying(self, how_far: str) -> None:
        """Note that the cluster copies tables, and how far it is; empty: it does not any more.

        It catches up before it serves again.
        """
        self._update(copying=how_far, caught_up=False)

    def isolate(self, why: str) -> None:
        """Note why this HAProc is cut off; empty: it is not any more, and catches up first."""
        self._update(isolated=why, caught_up=False)

    def removed(self, why: str) -> None:
        """Note why the ring does not have this cluster; empty: the ring has it.

        A cluster that is added again catches up before it serves again.
        """
        if why != self._now.removed:
            self._update(removed=why, caught_up=False)

    def log_answered(self) -> None:
        """Note that the log took a write."""
        if not self._now.log_up:
            self._update(log_up=True, log_error="")

    def log_failed(self, error: Exception) -> None:
        """Note that the log cannot be reached."""
        self._update(log_up=False, log_error=log_away(error))

    # -- the state -------------------------------------------------------------------------

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
