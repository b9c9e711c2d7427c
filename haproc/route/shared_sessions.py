"""Spark sessions for requests without a session of their own: one for all of the same settings.

Of one user, where a user's statements have a pool of their own.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Final

from haproc.engine.interface import Session, Settings

GIVEN_UP_S: Final = 60.0
"""How long a session that is not given out any more is kept for those who were given it. Chosen:
as long as its settings may take."""


class SharedSessions:
    """Sessions for requests without one of their own, by settings.

    Each is given up behind DDL, because Spark goes on with what a session has looked up before, and
    when there are more than ``sessions_max``, the least recently used first. It is closed a while
    later, once nothing runs in it any more; who was given it has begun by then.
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
