"""The sessions in which Spark is asked what it makes of statements.

They are HAProc's own, and hold no temporary views, variables or functions, just like the lanes in
which every cluster applies the statement.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final

from haproc.engine.errors import EngineError
from haproc.engine.interface import Engine, Session, Settings
from haproc.route.explain import Explaining
from haproc.route.offload import Inline, Texts
from haproc.route.planning import Planning
from haproc.route.readings import Readings
from haproc.route.shared_sessions import SharedSessions
from haproc.sessions.client import ClientSession

SESSIONS_MAX: Final = 16
"""Sessions for analyses, one for each distinct settings."""

_IN_FULL = (
    ("spark.sql.debug.maxToStringFields", "100000"),
    ("spark.sql.maxPlanStringLength", "100000000"),
    ("spark.sql.redaction.string.regex", "(?!)"),
)
"""Without these Spark leaves out parts of a plan, or shows something else in their place."""
HINT_COMPLETED: Final = "convert it in the query: to_timestamp(text, 'yyyy-MM-dd HH:mm:ss')"
OF_ONE_RUN: Final = re.compile(r"#\d+L?|@[0-9a-f]+|-?\d{12,}")
"""What Spark numbers anew in every plan."""


class Analysis:
    """See the module. ``epoch`` counts the definitions that changed here."""

    def __init__(
        self,
        engine: Engine,
        epoch: Callable[[], int],
        now: Callable[[], float],
        timeout_s: float,
        planning: Planning,
        texts: Texts | None = None,
    ) -> None:
        self._sessions = SharedSessions(
            lambda key, _: engine.session(f"analysis/{key}"), SESSIONS_MAX
        )
        self._parsing = SharedSessions(
            lambda key, _: engine.session(f"analysis/texts/{key}"), SESSIONS_MAX
        )
        """In which nothing is looked up, so DDL leaves them as they are."""
        self._setting = set[asyncio.Task[None]]()
        self._epoch = epoch
        self._now = now
        self._timeout_s = timeout_s
        self._planning = planning
        self._texts = texts or Inline()

    @property
    def epoch(self) -> int:
        """What was said is said again as long as this is the same."""
        return self._epoch()

    @asynccontextmanager
    async def in_place(
        self, settings: Settings, session: ClientSession | None
    ) -> AsyncIterator[Session]:
        """Give a session that reads a statement as the client's does, and shows plans in full."""
        if session is None or not session.holds_temporaries:
            yield await self._session(settings, self._sessions)
            return
        # Statements that change settings, and others that look, may be under way in it.
        session.shown_in_full += 1
        try:
            async with session.settling:
                await session.spark.configure(_in_full(session.settings))
            yield session.spark
        finally:
            session.shown_in_full -= 1
            # Not waited for: a statement that Spark is slow with may be setting something.
            setting = asyncio.create_task(self._set_back(session))
            self._setting.add(setting)
            setting.add_done_callback(self._setting.discard)

    @staticmethod
    async def _set_back(session: ClientSession) -> None:
        async with session.settling:
            if not session.shown_in_full:
                with suppress(EngineError):  # it is lost, and made anew from its own settings
                    await session.spark.configure(session.settings)

    def readings(self, paths: tuple[str, ...]) -> Readings:
        """Return what has Spark read statements; ``paths``: below which it may look at files."""
        return Readings(
            self._shared,
            self._for_texts,
            self._epoch,
            self._texts,
            self._planning,
            self._timeout_s,
            paths,
        )

    async def _shared(self, settings: Settings) -> Session:
        """Return a session of HAProc's own with these settings, in which nothing temporary is."""
        return await self._session(settings, self._sessions)

    async def _for_texts(self, settings: Settings) -> Session:
        """Return one with these settings to have texts parsed."""
        return await self._session(settings, self._parsing)

    async def clean(self, settings: Settings, user: str) -> Explaining:
        """Return how to ask a session of HAProc's own, in which nothing temporary is."""
        spark = await self._session(settings, self._sessions)
        return self.explaining(spark, user, settings)

    def explaining(self, spark: Session, user: str, settings: Settings | None = None) -> Explaining:
        """Return how to ask a session."""
        return Explaining(spark, self._texts, user, self._timeout_s, self._planning, settings)

    async def _session(self, settings: Settings, sessions: SharedSessions) -> Session:
        wanted = _in_full(settings)
        epoch = 0 if sessions is self._parsing else self._epoch()
        spark = await sessions.get(wanted, epoch, self._now())
        await spark.configure(wanted)
        return spark


def _in_full(settings: Settings) -> Settings:
    names = {name for name, _ in _IN_FULL}
    confs = [each for each in settings.confs if each[0] not in names]
    return replace(settings, confs=tuple(sorted([*confs, *_IN_FULL])))
