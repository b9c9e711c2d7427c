"""Spark sessions that no client owns: those that requests share, and those for reading alone."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Final

from haproc.engine.confs import READING_POOL
from haproc.engine.interface import Engine, Session, Settings

SESSIONS_MAX: Final = 16
"""The most sessions of a user, for analyses, and for parsing; each has settings of its own."""


class ReadingSessions:
    """Spark sessions of HAProc's own in which statements are read, and can do nothing else.

    They hold no temporary views, variables or functions, just like the lanes in which every
    cluster applies the statement.

    ``epoch`` counts the definitions that changed here.
    """

    def __init__(self, engine: Engine, epoch: Callable[[], int], now: Callable[[], float]) -> None:
        def sessions(prefix: str) -> SharedSessions:
            return SharedSessions(
                lambda key, _: engine.session(f"{prefix}/{key}", pool=READING_POOL)
            )

        self._analyzing, self._parsing = sessions("reading"), sessions("reading/parsing")
        self._epoch = epoch
        self._now = now

    async def shared(self, settings: Settings) -> Session:
        """Return a session for analyses with these settings; new after a changed definition."""
        return await self._given(self._analyzing, settings, self._epoch())

    async def parsing(self, settings: Settings) -> Session:
        """Return a session for parsing: it looks nothing up, so it outlives changed definitions."""
        return await self._given(self._parsing, settings, 0)

    async def _given(self, sessions: SharedSessions, settings: Settings, epoch: int) -> Session:
        spark = await sessions.get(settings, epoch, self._now())
        await spark.configure(settings)
        return spark


# Spark sessions for requests without a session of their own: one for all with equal settings.
#
# They belong to one user if each user's statements have a pool of their own.


REPLACED_S: Final = 60.0
"""The time that a replaced session is kept for its users. Chosen: its settings may take so long."""


class SharedSessions:
    """Sessions for requests without one of their own, by settings.

    They are given up after DDL, because a Spark session keeps what it has looked up. If there are
    more than ``sessions_max``, the least recently used one is given up. It is closed a while later,
    when its users have begun and nothing runs in it any more.
    """

    def __init__(
        self, make: Callable[[str, str], Session], sessions_max: int = SESSIONS_MAX
    ) -> None:
        """``make`` gets a key and the user of the session; empty: all users.

        ``sessions_max``: for each user, so that a user's settings push out no other user's.
        """
        self._make = make
        self._sessions_max = sessions_max
        self._sessions = defaultdict[str, OrderedDict[Settings, Session]](OrderedDict)
        self._replaced: list[tuple[Session, float]] = []
        self._closing: set[asyncio.Future[None]] = set()
        self._made = self._epoch = 0

    async def get(self, settings: Settings, epoch: int, now: float, user: str = "") -> Session:
        """Return the user's session of these settings; ``epoch`` counts DDL."""
        if epoch != self._epoch:
            self._epoch = epoch
            for sessions in self._sessions.values():
                self._replaced += [(session, now) for session in sessions.values()]
            self._sessions.clear()
        of_user = self._sessions[user]
        session = of_user.get(settings)
        if session is None:
            self._made += 1
            key = f"shared/{self._made}/{settings.catalog}/{settings.schema}"
            session = of_user[settings] = self._make(key, user)
            if len(of_user) > self._sessions_max:
                self._replaced.append((of_user.popitem(last=False)[1], now))
        of_user.move_to_end(settings)
        self._close_replaced(now)
        return session

    def _close_replaced(self, now: float) -> None:
        """Close idle sessions in tasks: no request waits for that, or cancels it."""
        idle = [e for e in self._replaced if now - e[1] >= REPLACED_S and not e[0].busy]
        self._replaced = [each for each in self._replaced if each not in idle]
        for session, _ in idle:
            closing = asyncio.ensure_future(session.aclose())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
