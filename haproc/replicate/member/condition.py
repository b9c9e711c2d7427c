"""Who this member is, what is known of it, and the state that follows.

Tasks can wait for changes.
"""

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
    """Which member this is: ring, cluster, and incarnation.

    ``ring_order``: the names of all configured clusters.
    """

    ring: str
    cluster: str
    incarnation: str
    ring_order: tuple[str, ...]
    founders: tuple[Member, ...] = ()
    """The ring's members by the configuration; they are right unless the log names others."""


# The facts known of this member, and its state; tasks are woken when they may have changed.


class News:
    """Wakes the tasks of one member when what they wait for may have happened."""

    def __init__(self) -> None:
        self._moved = asyncio.Event()
        self._startable = asyncio.Event()

    def moved(self) -> None:
        """Wake the tasks that wait in `until`."""
        self._moved.set()

    def changed(self) -> None:
        """Wake the tasks that wait in `until`, and the task that waits in `startable`."""
        self._moved.set()
        self._startable.set()

    async def until(self, predicate: Callable[[], object]) -> None:
        """Wait until ``predicate`` returns a true value; it is called again after each wake-up."""
        while not predicate():
            self._moved.clear()
            await self._moved.wait()

    async def startable(self) -> None:
        """Wait until an operation may have become ready to start; only one task may call this."""
        await self._startable.wait()
        self._startable.clear()


logger = logging.getLogger(__name__)

_OUT_OF_SERVICE: Final = HOPELESS | {State.DOWN, State.STUCK, State.ISOLATED, State.STOPPED}


class OutOfServiceError(Exception):
    """This member is out of service, so what the caller waits for will not happen soon."""


class MemberCondition:
    """The known facts about this member, and its state, which follows from them.

    Each method from `started` on notes an event; nothing else changes the facts. The rules for the
    state are in `haproc.membership.state`. ``on_state`` is called with each new state and its
    reason.
    """

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
        """The facts known now."""
        return self._now

    @property
    def state(self) -> State:
        """The state that follows from the facts."""
        return self._state[0]

    @property
    def reason(self) -> str:
        """The reason of the state, for people; may be empty."""
        return self._state[1]

    @property
    def takes_writes(self) -> bool:
        """True if a write that was accepted may be appended.

        True also while a drain lets accepted requests end, if the state would be READY without it.
        """
        return self._beneath() is State.READY

    @property
    def may_apply(self) -> bool:
        """True if operations, also new ones, may be run on the cluster."""
        c = self._now
        differs = c.diverged is not None and not c.diverged.applies
        blocked = c.stopped or c.fenced_by or c.removed or c.behind or differs
        return c.started and c.cluster_up and not blocked

    @property
    def applying(self) -> bool:
        """True if the cluster applies its queue and no operation keeps failing."""
        return self.may_apply and self._now.stuck_at is None

    @property
    def out_of_service(self) -> bool:
        """True if the state is one in which a waiting client should ask another HAProc."""
        return self._out_of_service

    @property
    def departures(self) -> int:
        """How often this process has left service; its tables may have been repaired since."""
        return self._departures

    async def allowed(self) -> None:
        """Wait until operations may be run on the cluster."""
        await self._allowed.wait()

    @asynccontextmanager
    async def in_service(self, timeout_s: float | None = None) -> AsyncIterator[None]:
        """Limit a wait within this context.

        Raises TimeoutError after ``timeout_s`` (None: never), and OutOfServiceError when this
        member is or goes out of service.
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
        """Note that the start is over, and that earlier processes' statements are stopped."""
        self._update(started=True)

    def caught_up(self) -> None:
        """Note that this cluster has applied what it missed."""
        self._update(caught_up=True)

    def stopping(self) -> None:
        """Note that this process will end once its accepted requests have ended."""
        self._update(draining=True)

    def stopped(self) -> None:
        """Note that this process does nothing more."""
        self._update(stopped=True)

    def drain(self, *, drained: bool) -> None:
        """Note that an operator has drained this cluster, or has ended the drain.

        After a drain it catches up before it serves again.
        """
        if drained != self._now.drained:
            self._update(drained=drained, caught_up=self._now.caught_up and drained)

    def replaced(self, by: str) -> None:
        """Note that another incarnation has taken over the cluster.

        ``by``: which one, for people.
        """
        self._update(fenced_by=by)

    # -- the cluster -----------------------------------------------------------------------

    def cluster_answers(self, up: bool, error: str) -> None:
        """Note that the cluster's Spark answers its probes (``up``), or does not any more.

        Either way it catches up before it serves again.
        """
        self._update(cluster_up=up, cluster_error=error, caught_up=False)

    def stuck(self, at: int | None, error: str = "") -> None:
        """Note the operation that keeps failing, by its offset, and its error.

        ``at`` None: no operation keeps failing.
        """
        if at is not None or self._now.stuck_at is not None:
            self._update(stuck_at=at, cluster_error=error)

    def differs(self, divergence: Divergence | None) -> None:
        """Note that the cluster differs from the others; None: no difference is known."""
        self._update(diverged=divergence)

    def mended(self, divergence: Divergence | None) -> None:
        """Note that a verification found the cluster equal.

        ``divergence``: a later difference, or None.
        """
        self._update(diverged=divergence, caught_up=False)

    def undecided(self, undecided: Undecided | None) -> None:
        """Note that clusters differ and none is proven wrong; None: that has ended."""
        if undecided != self._now.undecided:
            self._update(undecided=undecided)

    # -- the ring and its log --------------------------------------------------------------

    def fell_behind(self, why: str) -> None:
        """Note why the log cannot bring this cluster up to date.

        The state becomes TOO_FAR_BEHIND.
        """
        self._update(behind=why)

    def copying(self, how_far: str) -> None:
        """Note how far the copy of tables to this cluster is, for people; empty: there is none.

        Either way it catches up before it serves again.
        """
        self._update(copying=how_far, caught_up=False)

    def isolate(self, why: str) -> None:
        """Note why this HAProc is cut off from the ring; empty: it is not any more.

        Either way it catches up before it serves again.
        """
        self._update(isolated=why, caught_up=False)

    def removed(self, why: str) -> None:
        """Note why the ring does not have this cluster any more; empty: the ring has it.

        A cluster that is added again catches up before it serves again.
        """
        if why != self._now.removed:
            self._update(removed=why, caught_up=False)

    def log_answered(self) -> None:
        """Note that the log has accepted a write."""
        if not self._now.log_up:
            self._update(log_up=True, log_error="")

    def log_failed(self, error: Exception) -> None:
        """Note that the log could not be reached, and why."""
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
