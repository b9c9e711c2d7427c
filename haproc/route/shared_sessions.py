"""Spark sessions that no client owns: those that requests share, and those for reading alone."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Final

from haproc.engine.confs import READING_POOL
from haproc.engine.interface import Engine, Session, Settings

SESSIONS_MAX: Final = 16
"""Of each of the two, one for each distinct settings."""


class ReadingSessions:
    """Spark sessions of HAProc's own in which statements are read, and can do nothing else.

    They hold no temporary views, variables or functions, just like the lanes in which every
    cluster applies the statement.

    ``epoch`` counts the definitions that changed here.
    """

    def __init__(self, engine: Engine, epoch: Callable[[], int], now: Callable[[], float]) -> None:
        def session(key: str, _: str) -> Session:
            return engine.session(f"reading/{key}", pool=READING_POOL)

        self._analyzing = SharedSessions(session, SESSIONS_MAX)
        self._parsing = SharedSessions(
            lambda key, user: session(f"parsing/{key}", user), SESSIONS_MAX
        )
        self._epoch = epoch
        self._now = now

    async def shared(self, settings: Settings) -> Session:
        """Return one with these settings that has looked nothing up before."""
        return await self._given(self._analyzing, settings, self._epoch())

    async def parsing(self, settings: Settings) -> Session:
        """Return one in which nothing is looked up, so that DDL leaves it as it is."""
        return await self._given(self._parsing, settings, 0)

    async def _given(self, sessions: SharedSessions, settings: Settings, epoch: int) -> Session:
        spark = await sessions.get(settings, epoch, self._now())
        await spark.configure(settings)
        return spark


# Spark sessions for requests without a session of their own: one for all of the same settings.
#
# Of one user, where a user's statements have a pool of their own.


GIVEN_UP_S: Final = 60.0
"""A replaced session is kept so long for its users. Chosen: as long as its settings may take."""


class SharedSessions:
    """Sessions for requests without one of their own, by settings.

    Each is given up behind DDL, because Spark goes on with what a session has looked up before, and
    when there are more than ``sessions_max``, the least recently used first. It is closed a while
    later, once nothing runs in it any more; its users have begun by then.
    """

    def __init__(self, make: Callable[[str, str], Session], sessions_max: int) -> None:
        """``make`` gets a key and the user whose session it is; empty: everybody's.

        ``sessions_max``: of each user, so that nobody's settings push out another's.
        """
        self._make = make
        self._sessions_max = sessions_max
        self._sessions = defaultdict[str, OrderedDict[Settings, Session]](OrderedDict)
        self._given_up: list[tuple[Session, float]] = []
        self._closing: set[asyncio.Future[None]] = set()
        self._made = self._epoch = 0

    async def get(self, settings: Settings, epoch: int, now: float, user: str = "") -> Session:
        """Return the user's session of these settings; ``epoch`` counts DDL."""
        if epoch != self._epoch:
            self._epoch = epoch
            for sessions in self._sessions.values():
                self._given_up += [(session, now) for session in sessions.values()]
            self._sessions.clear()
        of_user = self._sessions[user]
        session = of_user.get(settings)
        if session is None:
            self._made += 1
            key = f"shared/{self._made}/{settings.catalog}/{settings.schema}"
            session = of_user[settings] = self._make(key, user)
            if len(of_user) > self._sessions_max:
                self._given_up.append((of_user.popitem(last=False)[1], now))
        of_user.move_to_end(settings)
        self._close_given_up(now)
        return session

    def _close_given_up(self, now: float) -> None:
        """Have those closed that are idle; nobody's request waits for that, or ends it."""
        idle = [e for e in self._given_up if now - e[1] >= GIVEN_UP_S and not e[0].busy]
        self._given_up = [each for each in self._given_up if each not in idle]
        for session, _ in idle:
            closing = asyncio.ensure_future(session.aclose())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
