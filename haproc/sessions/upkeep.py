"""Counts, lists, closes, deletes and rebuilds the ring's sessions, besides clients' requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NoReturn

from dmq import Json
from dmq.key_value import KeyValueStore
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Session
from haproc.failure import FailureKind, RequestError
from haproc.replicate.apply.computing import Rebuild, session_gone
from haproc.replicate.records.rows import SessionRef
from haproc.sessions.durable import (
    BLOBS,
    GRACE_MS,
    HOUR_MS,
    SESSIONS,
    Copy,
    Key,
    SessionStore,
    StoredSession,
    copy_of,
    key_of,
    reached,
)
from haproc.sessions.journal import ArtifactEntry
from haproc.sessions.sessions import Sessions, unknown

LISTED_MAX: Final = 1000
"""The most sessions in one answer, because each is read from the store."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Lists and closes the ring's sessions for operators. Methods raise RequestError."""

    store: KeyValueStore
    durable: SessionStore
    sessions: Sessions

    async def listed(self, start: int, limit: int) -> Mapping[str, Json]:
        """Return a page of the open sessions, by user and id; ``total``: the number of all."""
        found = found_in(await reached(self.store.keys(SESSIONS)))
        keys = [key for key, each in found.items() if each.is_session(key)]
        keys.sort(key=lambda key: (key.user, key.id))
        page = keys[start : start + min(limit, LISTED_MAX)]
        found_sessions: list[Json] = []
        for key in page:
            stored = await self.durable.load(key)
            if stored is not None and not stored.closed:
                found_sessions.append(_described(key, found[key], stored))
        return {"sessions": found_sessions, "total": len(keys)}

    async def close(self, user: str, session_id: str) -> Mapping[str, Json]:
        """Close a session for good, for all HAProcs; RequestError if there is no open one."""
        if not await self.sessions.close(user, session_id):
            error = unknown(session_id)
            error.message = f"{user!r} has no open session {session_id!r}"
            error.hint = "haproc sessions list shows them"
            raise error
        return {"user": user, "session_id": session_id, "closed": True}


def _described(key: Key, found: SessionKeys, stored: StoredSession) -> Json:
    files = [each.entry for each in stored.entries if isinstance(each.entry, ArtifactEntry)]
    return {
        "user": key.user,
        "session_id": key.id,
        "owner": stored.owner.owner,
        "owned_since_ms": stored.owner.at_ms,
        "adoptions": stored.owner.number - 1,
        "steps": len(stored.entries),
        "bytes": sum(each.size for each in stored.entries),
        "files_bytes": sum(file.size for file in files),
        "used_ms": None if found.used_hour is None else found.used_hour * HOUR_MS,
    }


# Clients' sessions for a HAProc that computes the rows of a write in the place of its origin.


def rebuilding(sessions: Sessions) -> Rebuild:
    """Return a function that rebuilds a session from its journal, to compute a write's rows in it.

    If the session is closed, or was begun afresh, it is gone for good, and so is the write. If
    Spark refuses a journal entry, it does so on every cluster: another attempt would only delay the
    operations behind the write. If the store cannot be reached, HAProc tries again.
    """

    async def rebuild(ref: SessionRef) -> Session:
        try:
            return await sessions.rebuild(ref.user, ref.session_id, ref.entries, ref.begun)
        except RequestError as error:
            if error.kind is FailureKind.REFUSED:
                raise session_gone("every cluster: it was closed, or begun afresh") from error
            final = error.kind is FailureKind.APPLICATION
            raise EngineError(
                ErrorKind.APPLICATION if final else ErrorKind.ENVIRONMENT,
                error.message,
                error_class=error.error_class,
                sqlstate=error.sqlstate,
            ) from error

    return rebuild


logger = logging.getLogger(__name__)

UPKEEP_S: Final = 60.0
CLOSED_KEPT_MS: Final = 3_600_000
"""How long the store still has the key of a closed session. Chosen: longer than clients retry."""
DELETIONS_MAX: Final = 2000
"""The most keys that one check deletes; the next check deletes the rest."""


@dataclass(slots=True)
class SessionKeys:
    """What the keys of a session in the store show, without their values.

    ``control``: keys of adoptions and of closing. ``others``: all other keys. ``used_hour``: the
    last hour of use; None: not noted. ``blobs``: the SHA-256 of the pieces of files it needs.
    """

    control: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)
    used_hour: int | None = None
    blobs: set[str] = field(default_factory=set)

    def closed(self, key: Key) -> bool:
        """True if the session ``key`` is closed for good."""
        return key.closed in self.control

    def is_session(self, key: Key) -> bool:
        """True if the session ``key`` was begun and is not closed."""
        return bool(self.control) and not self.closed(key)


def found_in(keys: Iterable[str]) -> dict[Key, SessionKeys]:
    """Return, for each session that has keys in the store, what these show."""
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
    """Return the keys of the copies of files' pieces that may be deleted.

    These are old, and no session needs them, or there is a newer copy. `Blobs` says why this is
    safe.
    """
    newest: dict[str, Copy] = {}
    old: list[Copy] = []
    for copy in sorted(copies, key=lambda each: each.written_ms):
        if (before := newest.get(copy.sha256)) is not None:
            old.append(before)
        newest[copy.sha256] = copy
    old += [copy for copy in newest.values() if copy.sha256 not in needed]
    return [copy.key for copy in old if now_ms - copy.written_ms > GRACE_MS]


class Upkeep:
    """Checks the ring's sessions every minute: counts them, closes idle ones, deletes closed ones.

    Every HAProc does this by itself: a session that one deletes is gone for all. The keys in the
    store are enough, so no journal is read for it.
    """

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
        """The number of the ring's open sessions at the last check."""

    async def run_forever(self) -> NoReturn:
        """Check the store every minute, until cancelled."""
        while True:
            with contextlib.suppress(RequestError):  # the next pass will do
                await self.look()
            await self._sessions.sweep()
            await asyncio.sleep(UPKEEP_S)

    async def look(self) -> None:
        """Check the store once; raises RequestError."""
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
                doomed += sorted(found.others)  # of a session that was never begun
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
        """True if a session was not used for too long.

        Without a noted hour of use, the time counts from when this HAProc first saw its keys.
        """
        hour = now_ms // HOUR_MS
        used = found.used_hour
        if used is None:
            used = self._without_use.setdefault(key, hour)
        return hour - used > self._idle_hours

    async def _long_closed(self, key: Key, now_ms: int) -> bool:
        kept = await reached(self._store.get(key.closed))
        return kept is not None and now_ms - int(kept.value) > CLOSED_KEPT_MS
