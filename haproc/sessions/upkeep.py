"""What the store holds of sessions, looked through every minute: counted, closed, deleted.

Every HAProc does it, and none needs to know of the others: what one deletes is as good as gone for
all. What the keys say suffices (`ownership`), so no journal is read for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NoReturn

from dmq.key_value import KeyValueStore
from haproc.failure import RequestError
from haproc.sessions.blobs import BLOBS, GRACE_MS, Copy, copy_of
from haproc.sessions.durable import HOUR_MS, SessionStore, reached
from haproc.sessions.ownership import SESSIONS, Key, key_of
from haproc.sessions.sessions import Sessions

logger = logging.getLogger(__name__)

UPKEEP_S: Final = 60.0
CLOSED_KEPT_MS: Final = 3_600_000
"""How long it is known that a session was closed. Chosen: longer than clients retry."""
DELETIONS_MAX: Final = 2000
"""In one pass; what is left is for the next."""


@dataclass(slots=True)
class SessionKeys:
    """What the keys say of one session."""

    control: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    used_hour: int | None = None
    blobs: set[str] = field(default_factory=set)

    def closed(self, key: Key) -> bool:
        """Whether it is closed for good."""
        return key.closed in self.control

    def is_session(self, key: Key) -> bool:
        """Whether it is one, and open."""
        return bool(self.control) and not self.closed(key)


def found_in(keys: Iterable[str]) -> dict[Key, SessionKeys]:
    """Return what there is of each session."""
    found: dict[Key, SessionKeys] = defaultdict(SessionKeys)
    for stored in keys:
        key = key_of(stored)
        if key is None:
            continue
        sort, _, rest = stored.removeprefix(key.prefix).partition("/")
        (found[key].control if sort == "c" else found[key].others).add(stored)
        if sort == "u":
            found[key].used_hour = max(int(rest), found[key].used_hour or 0)
        elif sort == "b":
            found[key].blobs.add(rest)
    return dict(found)


def deletable(copies: Iterable[Copy], needed: frozenset[str], now_ms: int) -> list[str]:
    """Return the copies of files' pieces that nobody needs; see `blobs` for why that is safe."""
    newest: dict[str, Copy] = {}
    old: list[Copy] = []
    for copy in sorted(copies, key=lambda each: each.written_ms):
        if (before := newest.get(copy.sha256)) is not None:
            old.append(before)
        newest[copy.sha256] = copy
    old += [copy for copy in newest.values() if copy.sha256 not in needed]
    return [copy.key for copy in old if now_ms - copy.written_ms > GRACE_MS]


class Upkeep:
    """See the module."""

    def __init__(
        self,
        store: KeyValueStore,
        durable: SessionStore,
        sessions: Sessions,
        idle_s: float,
        unix_ms: Callable[[], int],
    ) -> None:
        self._store = store
        self._durable = durable
        self._sessions = sessions
        self._idle_hours = max(1, round(idle_s * 1000 / HOUR_MS))
        self._unix_ms = unix_ms
        self._without_use: dict[Key, int] = {}
        self.total = 0
        """Open sessions of the ring when it was looked last."""

    async def run(self) -> NoReturn:
        """Look through the store until cancelled."""
        while True:
            with contextlib.suppress(RequestError):  # the next pass will do
                await self.look()
            await self._sessions.sweep()
            await asyncio.sleep(UPKEEP_S)

    async def look(self) -> None:
        """Look through the store once; raises RequestError."""
        sessions = found_in(await reached(self._store.keys(SESSIONS)))
        now_ms = self._unix_ms()
        of_user: Counter[str] = Counter()
        doomed: list[str] = []
        for key, found in sessions.items():
            if found.is_session(key) and self._idle(key, found, now_ms):
                await self._durable.close(key)
                logger.info("session %s of %s was idle, and is closed", key.id, key.user)
            elif found.is_session(key):
                of_user[key.user] += 1
            elif found.closed(key):
                doomed += sorted(found.others)
                if not found.others and await self._long_closed(key, now_ms):
                    doomed += [*sorted(found.control - {key.closed}), key.closed]
            elif self._idle(key, found, now_ms):
                doomed += sorted(found.others)  # of a session that never came to be
        self._without_use = {key: at for key, at in self._without_use.items() if key in sessions}
        self._count(of_user)
        needed = frozenset(blob for found in sessions.values() for blob in found.blobs)
        copies = [copy_of(each) for each in await reached(self._store.keys(BLOBS))]
        doomed += deletable(copies, needed, now_ms)
        for each in doomed[:DELETIONS_MAX]:
            await reached(self._store.delete(each))

    def _count(self, of_user: Counter[str]) -> None:
        self.total = of_user.total()
        self._sessions.room.set(of_user)

    def _idle(self, key: Key, found: SessionKeys, now_ms: int) -> bool:
        """Whether nobody has used it for so long (where no key says when: since it was met)."""
        hour = now_ms // HOUR_MS
        used = found.used_hour
        if used is None:
            used = self._without_use.setdefault(key, hour)
        return hour - used > self._idle_hours

    async def _long_closed(self, key: Key, now_ms: int) -> bool:
        kept = await reached(self._store.get(key.closed))
        return kept is not None and now_ms - int(kept.value) > CLOSED_KEPT_MS
