"""Spark sessions that no client owns: those that requests share, and those for reading alone."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Final

from haproc.engine.confs import READING_POOL
from haproc.engine.interface import Engine, Session, Settings

SESSIONS_MAX: Final = 16
"""The most sessions of a user, of those for analyses, and of those for parsing; each session has
other settings than the others."""


class ReadingSessions:
    """Spark sessions of HAProc's own in which Spark only reads statements.

    They hold no temporary views, variables or functions, just like the lanes in which every cluster
    applies operations. ``epoch`` counts the definitions that changed on this cluster.
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
        """Return a session with these settings in which Spark may analyze statements.

        After a definition has changed, it is a new session.
        """
        return await self._given(self._analyzing, settings, self._epoch())

    async def parsing(self, settings: Settings) -> Session:
        """Return a session with these settings in which Spark may parse statements.

        Parsing looks no tables up, so the session is the same after a definition has changed.
        """
        return await self._given(self._parsing, settings, 0)

    async def _given(self, sessions: SharedSessions, settings: Settings, epoch: int) -> Session:
        spark = await sessions.get(settings, epoch, self._now())
        await spark.configure(settings)
        return spark


# Spark sessions for requests without a session of their own: one for all with equal settings.
#
# They belong to one user if each user's statements have a pool of their own.


REPLACED_S: Final = 60.0
"""How long a session that was replaced stays open for the requests that were given it. Chosen:
setting its settings may take so long."""


class SharedSessions:
    """Spark sessions for requests without a client session: one for all with equal settings.

    They are replaced after DDL, because a Spark session keeps what it has looked up. If there are
    more than ``sessions_max``, the least recently used one is replaced. A replaced session is
    closed a while later, when its requests have begun and nothing runs in it any more.
    """

    def __init__(
        self, make: Callable[[str, str], Session], sessions_max: int = SESSIONS_MAX
    ) -> None:
        """``make`` makes a session from a new key and its user; an empty user means all users.

        ``sessions_max``: for each user, so that one user's settings replace no other user's
        sessions.
        """
        self._make = make
        self._sessions_max = sessions_max
        self._sessions = defaultdict[str, OrderedDict[Settings, Session]](OrderedDict)
        self._replaced: list[tuple[Session, float]] = []
        self._closing: set[asyncio.Future[None]] = set()
        self._made = self._epoch = 0

    async def get(self, settings: Settings, epoch: int, now: float, user: str = "") -> Session:
        """Return the session with these settings; ``user`` is empty if all users share it.

        ``epoch``: the number of applied DDL statements; if it has changed, all sessions are
        replaced.
        """
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
        """Close replaced sessions that are idle, in tasks: no request waits for that."""
        idle = [e for e in self._replaced if now - e[1] >= REPLACED_S and not e[0].busy]
        self._replaced = [each for each in self._replaced if each not in idle]
        for session, _ in idle:
            closing = asyncio.ensure_future(session.aclose())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
