"""Spark sessions of HAProc's own in which statements are read, and can do nothing else.

They hold no temporary views, variables or functions, just like the lanes in which every cluster
applies the statement.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from haproc.engine.interface import Engine, Session, Settings
from haproc.engine.pools import READING_POOL
from haproc.route.shared_sessions import SharedSessions

SESSIONS_MAX: Final = 16
"""Of each of the two, one for each distinct settings."""


class ReadingSessions:
    """See the module. ``epoch`` counts the definitions that changed here."""

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
