"""Clients' sessions: what USE, SET and temporary views left behind, per named session.

A session lives on this HAProc's cluster only. The client keeps the journal of its session
statements and opens the session anew wherever it fails over to; so nothing here is durable.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from haproc.classify.model import Kind
from haproc.config.shares import Shares
from haproc.engine.interface import Session, Settings
from haproc.failure import ErrorClass, FailureKind, RequestError

GIVEN_UP_S: Final = 60.0
"""How long a session that is not given out any more is kept for those who were given it. Chosen:
as long as its settings may take."""


@dataclass(slots=True)
class ClientSession:
    """One client's session on this cluster."""

    id: str
    user: str
    spark: Session
    settings: Settings
    holds_temporaries: bool = False
    """A temporary view, function or variable was made: names may mean something else here."""
    used_at: float = 0.0


class SharedSessions:
    """Sessions for requests without one of their own, by settings.

    Each is given up behind DDL, because Spark goes on with what a session has looked up before, and
    when there are more than ``sessions_max``, the least recently used first. It is closed a while
    later, once nothing runs in it any more; who was given it has begun by then.
    """

    def __init__(self, make: Callable[[str], Session], sessions_max: int) -> None:
        self._make = make
        self._sessions_max = sessions_max
        self._sessions: OrderedDict[Settings, Session] = OrderedDict()
        self._given_up: list[tuple[Session, float]] = []
        self._made = self._epoch = 0

    async def get(self, settings: Settings, epoch: int, now: float) -> Session:
        """Return the session of these settings; ``epoch`` counts DDL."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._given_up += [(session, now) for session in self._sessions.values()]
            self._sessions.clear()
        session = self._sessions.get(settings)
        if session is None:
            self._made += 1
            key = f"shared/{self._made}/{settings.catalog}/{settings.schema}"
            session = self._sessions[settings] = self._make(key)
            if len(self._sessions) > self._sessions_max:
                self._given_up.append((self._sessions.popitem(last=False)[1], now))
        self._sessions.move_to_end(settings)
        await self._close_given_up(now)
        return session

    async def _close_given_up(self, now: float) -> None:
        idle = [e for e in self._given_up if now - e[1] >= GIVEN_UP_S and not e[0].busy]
        self._given_up = [each for each in self._given_up if each not in idle]
        for session, _ in idle:
            await session.aclose()


class Sessions:
    """The sessions of all clients, the least recently used first."""

    def __init__(
        self,
        make: Callable[[str], Session],
        defaults: Settings,
        shares: Shares,
        idle_s: float = 3600.0,
    ) -> None:
        self._make = make
        self._defaults = defaults
        self._shares = shares
        self._idle_s = idle_s
        self._sessions: OrderedDict[tuple[str, str], ClientSession] = OrderedDict()
        self._opened = 0

    def __len__(self) -> int:
        return len(self._sessions)

    async def open(self, session_id: str, user: str, now: float) -> ClientSession:
        """Return a fresh session of this id."""
        await self.close(session_id, user)
        await self._expire(now)
        if self._shares.take(user):
            raise RequestError(
                FailureKind.REFUSED,
                f"{len(self._sessions)} sessions are open, {self._shares.of_user(user)} of them of "
                f"{user}; no more are allowed",
                error_class=ErrorClass.TOO_MANY_SESSIONS,
                hint="close sessions that are not needed, or raise limits.sessions_max, user_share",
            )
        self._opened += 1
        spark = self._make(f"client/{self._opened}/{session_id}")
        session = ClientSession(session_id, user, spark, self._defaults, used_at=now)
        self._sessions[user, session_id] = session
        return session

    def get(self, session_id: str, user: str, now: float) -> ClientSession:
        """Return the session; RequestError HAPROC_SESSION_UNKNOWN if it is not here."""
        session = self._sessions.get((user, session_id))
        if session is None:
            raise unknown(session_id)
        session.used_at = now
        self._sessions.move_to_end((user, session_id))
        return session

    async def close(self, session_id: str, user: str) -> None:
        """Forget the session and release it on the cluster."""
        session = self._sessions.pop((user, session_id), None)
        if session is None:
            return
        self._shares.give_back(user)
        await session.spark.aclose()

    async def _expire(self, now: float) -> None:
        for session in list(self._sessions.values()):
            if now - session.used_at < self._idle_s:
                return
            if session.spark.busy:
                session.used_at = now
                self._sessions.move_to_end((session.user, session.id))
            else:
                await self.close(session.id, session.user)


def unknown(session_id: str) -> RequestError:
    """Return the error that makes a client open its session anew."""
    return RequestError(
        FailureKind.REFUSED,
        f"this HAProc has no session {session_id!r}",
        error_class=ErrorClass.SESSION_UNKNOWN,
        hint="open it here with its journal of session statements, then ask again",
    )


def settings_after(
    before: Settings,
    found: Settings,
    kind: Kind,
    sql: str,
    rows: list[tuple[object, ...]],
    defaults: Settings,
) -> Settings:
    """Return the settings that a session must have after a session statement.

    ``found`` is what the cluster says now (catalog, schema, time zone, ANSI mode); ``rows`` is the
    statement's result: SET key=value answers with the key and its value. RESET goes back to the
    ring's ``defaults``, not to those of one cluster.
    """
    confs = dict(before.confs)
    if kind is Kind.SET and "=" in sql and len(rows) == 1 and len(rows[0]) == 2:
        confs[str(rows[0][0])] = str(rows[0][1])
    elif kind is Kind.RESET:
        words = sql.split(None, 1)
        key = words[1].strip(" `;").lower() if len(words) > 1 else ""
        confs = {name: value for name, value in confs.items() if key and name.lower() != key}
        found = dataclasses.replace(
            found,
            time_zone=defaults.time_zone if key in ("", _TIME_ZONE) else before.time_zone,
            ansi=defaults.ansi if key in ("", _ANSI) else before.ansi,
        )
    for name in (_TIME_ZONE, _ANSI):  # they have fields of their own
        confs = {other: value for other, value in confs.items() if other.lower() != name}
    return dataclasses.replace(found, confs=tuple(sorted(confs.items())))


_TIME_ZONE = "spark.sql.session.timezone"
_ANSI = "spark.sql.ansi.enabled"
