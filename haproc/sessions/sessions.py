"""Clients' sessions: entered, changed and closed, by any door, on any HAProc.

A session belongs to the ring. One HAProc at a time *owns* it: only this one has it in a Spark
session of its cluster, and writes its journal (`durable`). A HAProc that gets a request for a
session that it does not own adopts the session. An owner reads the store at each request for a
session, and after each entry that it wrote; an owner that was replaced drops its copy and adopts
the session anew.

The Spark session is restored from the journal at its first use, and again whenever Spark has lost
it: after all records of the log are applied, so that a program sees its own writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from weakref import WeakValueDictionary

from haproc.config.sections import Limits
from haproc.config.shares import Shares
from haproc.engine.confs import pool_of
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Fresh, Restore, Session, Settings
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome, refused
from haproc.sessions.adoption import restore
from haproc.sessions.client import REQUESTS_REMEMBERED, ClientSession, state_of
from haproc.sessions.durable import (
    RECORDS,
    Blobs,
    Key,
    Numbered,
    SessionStore,
    StoredSession,
    Written,
)
from haproc.sessions.effects import superseded
from haproc.sessions.journal import (
    ArtifactEntry,
    ConfEntry,
    Entry,
    Kept,
    SettingsEntry,
    StateEntry,
    holds_temporaries,
    with_settings,
)

_LOG = logging.getLogger(__name__)

ADOPTIONS_MAX: Final = 5
"""The most attempts of one request to adopt a session that other HAProcs keep taking over."""
_NAMES: Final = uuid.UUID("6f3b1c1e-1a1f-4c61-9d58-0c6b8d3b7f0e")


class SparkSessions(Protocol):
    """Makes Spark sessions; an `Engine` does."""

    def session(self, key: str, restore: Restore | None = None, pool: str = "") -> Session:
        """See `Engine`."""
        ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The parts of a HAProc that its sessions need.

    ``caught_up`` returns when all records of the log are applied here; ``now``: the event loop's
    clock.
    """

    ring: str
    engine: SparkSessions
    defaults: Settings
    limits: Limits
    statement_s: float
    caught_up: Callable[[], Awaitable[None]]
    now: Callable[[], float]


class Sessions:
    """The clients' sessions on this HAProc. Methods raise RequestError."""

    def __init__(
        self, around: Surroundings, store: SessionStore, blobs: Blobs, room: Shares
    ) -> None:
        self._around = around
        self._store = store
        self._blobs = blobs
        self.room = room
        """Limits the number of the ring's sessions, and of each user's; see
        `haproc.sessions.upkeep`."""
        self._here: OrderedDict[Key, ClientSession] = OrderedDict()
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._left: list[Session] = []
        self._made = 0
        self.adopted = 0
        """How many sessions this HAProc has taken over from others."""

    def __len__(self) -> int:
        return len(self._here)

    def all(self) -> list[ClientSession]:
        """Return the sessions that this HAProc owns, as far as it knows; the store is not asked."""
        return list(self._here.values())

    # -- entering ----------------------------------------------------------------------------

    async def enter(self, user: str, session_id: str, *, create: bool) -> ClientSession:
        """Return the session; this HAProc adopts it if another one owns it.

        ``create``: True to begin it if there is none. Raises RequestError: SESSION_UNKNOWN,
        SESSION_CLOSED, TOO_MANY_SESSIONS, or one of kind availability.
        """
        key = Key(user, session_id)
        session = self._here.get(key)
        if session is None or not await self._still_mine(session):
            session = await self._settle(key, create=create)
        await self._used(session)
        return session

    async def begin_afresh(self, user: str, session_id: str) -> ClientSession:
        """Return the session as an empty one, whatever it had before; begin it if there is none."""
        key = Key(user, session_id)
        async with self._lock(key):
            self._drop(key)
            return await self._adopt(key, create=True, afresh=True)

    async def _settle(self, key: Key, *, create: bool) -> ClientSession:
        async with self._lock(key):
            session = self._here.get(key)  # a call that waited here before may have adopted it
            if session is not None and await self._still_mine(session):
                return session
            self._drop(key)
            return await self._adopt(key, create=create)

    async def _still_mine(self, session: ClientSession) -> bool:
        """Ask the store; return False if another HAProc adopted the session, or it is closed."""
        known = await self._store.known(session.key)
        if known == session.known:
            return True
        found = await self._store.load(session.key)
        if found is None or found.closed or found.owner.name != session.owner.name:
            return False
        session.known = found.known  # another adoption came too late
        return True

    async def _adopt(self, key: Key, *, create: bool, afresh: bool = False) -> ClientSession:
        for _ in range(ADOPTIONS_MAX):
            found = await self._store.load(key)
            if found is not None and found.closed:
                raise closed(key)
            if found is None:
                if not create:
                    raise unknown(key.id)
                self._take_room(key)
            try:
                stored = await self._store.adopt(key, found, afresh=afresh)
            except Exception:
                # The session may exist all the same: the next count finds it. A client that leaves
                # in between keeps its room until then: else each attempt would be a free session.
                if found is None:
                    self.room.give_back(key.user)
                raise
            if stored is not None:
                if found is not None:
                    self.adopted += 1
                    _LOG.info("session %s of %s is taken over", key.id, key.user)
                return self._arrived(key, stored, waits=found is not None)
            if found is None:
                self.room.give_back(key.user)
        raise RequestError(
            FailureKind.AVAILABILITY,
            f"other HAProcs keep taking session {key.id!r} over",
            error_class=ErrorClass.SESSION_MOVED,
            hint="use one HAProc at a time for a session",
        )

    def _arrived(self, key: Key, stored: StoredSession, *, waits: bool) -> ClientSession:
        """Make this HAProc's copy of a session that it owns; Spark rebuilds it at its first use."""
        self._make_room()

        async def restored(fresh: Fresh) -> None:
            session.handles.clear()
            if waits or session.holds_temporaries:  # settings and files rest on no table
                await self._around.caught_up()
            await self._restore(fresh, [each.entry for each in session.entries])

        self._made += 1
        name = f"client/{self._made}/{key.id}"
        spark = self._around.engine.session(name, restored, pool_of(key.user))
        entries = [each.entry for each in stored.entries]
        session = ClientSession(
            key,
            self.server_id(key),
            spark,
            stored.owner,
            stored.known,
            state_of(entries, self._around.defaults),
            list(stored.entries),
            holds_temporaries(entries),
            begun=stored.begun,
        )
        self._here[key] = session
        return session

    async def _restore(self, fresh: Fresh, entries: list[Kept]) -> None:
        around = self._around
        await restore(fresh, around.defaults, entries, self.get_blob, around.statement_s)

    def server_id(self, key: Key) -> str:
        """Return the server's own id of a session, for clients: every HAProc returns the same."""
        if (here := self._here.get(key)) is not None:
            return here.server_id
        return str(uuid.uuid5(_NAMES, "\0".join((self._around.ring, key.user, key.id))))

    # -- changing ----------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def changing(self, session: ClientSession) -> AsyncIterator[None]:
        """Lock the session while a statement changes it, until its entry is recorded.

        After any error but an application error of Spark, Spark's session may have changed: it is
        rebuilt from the journal before its next statement.
        """
        async with session.changing:
            session.changes += 1
            epoch = session.spark.epoch
            try:
                yield
            except EngineError as error:
                if error.kind is not ErrorKind.APPLICATION:
                    session.spark.outdate()
                raise
            except BaseException:
                session.spark.outdate()
                raise
            if session.spark.epoch != epoch:
                session.spark.outdate()  # it may have been restored before the entry was recorded

    async def record(self, session: ClientSession, entry: Entry, request_id: str = "") -> None:
        """Write the entry for a change of the session to the journal; return once it is durable.

        ``request_id``: see `ClientSession.has_recorded`. An own setting with its default value is
        left out. Raises RequestError SESSION_MOVED (availability: the client asks again) if another
        HAProc has taken the session over, SESSION_CLOSED, SESSION_TOO_LARGE; and EngineError.
        """
        if isinstance(entry, SettingsEntry | ConfEntry):
            entry = await session.state_after(entry, self._around.defaults)
        async with session.recording:
            if self._here.get(session.key) is not session:
                raise moved(session.key)
            kept = with_settings(entry, session.settings)
            gone = superseded(session.entries, kept)
            self._check_bounds(session, kept, gone)
            try:
                await self._record(session, kept, gone, request_id)
            except BaseException:
                self._leave(session)  # it is unknown here whether the entry counts
                raise

    async def _record(
        self, session: ClientSession, entry: Kept, gone: Sequence[Numbered], request_id: str
    ) -> None:
        """Append an entry that replaces the entries ``gone``, and check that it is valid."""
        key, owner, ordinal = session.key, session.owner, session.next_ordinal
        ids = [each for one in gone for each in one.request_ids] + ([request_id] * bool(request_id))
        replaces = _lowest(gone)
        numbered = await self._store.append(
            key, owner, ordinal, entry, tuple(ids[-REQUESTS_REMEMBERED:]), replaces
        )
        known = await self._store.known(key)
        if known != session.known:
            found = await self._store.load(key)
            if found is None or found.closed:
                raise closed(key)
            if not any(n.ordinal == ordinal and n.adoption == owner.name for n in found.entries):
                raise moved(key)
            if found.owner.name != owner.name:
                self._leave(session)  # the entry counts, and the new owner has it
                return
            session.known = found.known
        session.took(numbered, gone)
        with contextlib.suppress(RequestError):
            await self._clear(session)

    async def _clear(self, session: ClientSession) -> None:
        """Delete replaced entries from the store, the oldest first.

        So an entry that makes an object is deleted before the one that drops it: after a failure in
        between, the rest leads to the same session.
        """
        while session.superseded:
            await self._store.drop(session.key, session.superseded[0])
            del session.superseded[0]

    def _check_bounds(self, session: ClientSession, entry: Kept, gone: Sequence[Numbered]) -> None:
        limits = self._around.limits
        if isinstance(entry, ArtifactEntry):
            have, more, bound = session.files_bytes, entry.size, "session_files_bytes_max"
            gone = []
        else:
            more = len(RECORDS.to_bytes(Written(entry))) - sum(each.size for each in gone)
            have, bound = session.journal_bytes, "session_bytes_max"
        if have + more > (most := getattr(limits, bound)):
            raise _too_large(session, f"{have + more:,} bytes, over limits.{bound} ({most:,})")
        most = limits.session_entries_max
        if len(session.entries) - len(gone) >= most:
            raise _too_large(
                session, f"{most:,} names and files, which is limits.session_entries_max"
            )

    async def put_blob(self, session: ClientSession, data: bytes) -> str:
        """Store a piece of a file, at most PIECE_BYTES_MAX bytes; return its SHA-256.

        To be called before the ArtifactEntry with this piece is recorded.
        """
        return await self._blobs.put(session.key, data)

    async def get_blob(self, sha256: str) -> bytes:
        """Return the bytes of a piece of a file."""
        return await self._blobs.get(sha256)

    # -- ending, copying, rebuilding ---------------------------------------------------------

    async def close(self, user: str, session_id: str) -> bool:
        """Close the session for good, for all HAProcs; False if there is none."""
        key = Key(user, session_id)
        self._drop(key)
        async with self._lock(key):  # of two calls at once, one gives its room back
            found = await self._store.load(key)
            if found is None or found.closed:
                return False
            await self._store.close(key)
            self.room.give_back(user)
        await self.sweep()
        return True

    async def clone(self, session: ClientSession, new_id: str) -> ClientSession:
        """Return a new session with the same content; SESSION_EXISTS if ``new_id`` is used."""
        key = Key(session.user, new_id)
        async with self._lock(key):
            found = await self._store.load(key)
            if found is not None:
                raise refused(
                    ErrorClass.SESSION_EXISTS,
                    f"there is a session {new_id!r} already",
                    "choose another id",
                )
            self._take_room(key)
            try:
                entries = [each.entry for each in session.entries]
                for entry in entries:
                    if isinstance(entry, ArtifactEntry):
                        for sha256 in entry.blobs:
                            await self._blobs.need(key, sha256)
                stored = await self._store.adopt(key, None, begins_with=entries)
                if stored is None:
                    raise moved(key)
            except Exception:  # as in `_adopt`
                self.room.give_back(key.user)
                raise
            copy = self._arrived(key, stored, waits=False)
        await self._used(copy)
        return copy

    async def rebuild(self, user: str, session_id: str, entries: int, begun: str) -> Session:
        """Return a new Spark session with a session's first entries, to compute rows in it.

        ``entries``: an ordinal; lower ones are taken. ``begun``: see `StoredSession`; RequestError
        if the session began afresh since, or those entries were replaced. The caller closes the
        result. Raises EngineError, too.
        """
        key = Key(user, session_id)
        found = await self._store.load(key)
        if found is None or found.closed or found.begun != begun:
            raise unknown(session_id)
        if any(
            each.replaces is not None and each.replaces < entries
            for each in found.entries
            if each.ordinal >= entries
        ):
            raise unknown(session_id)  # its content at that ordinal was replaced since
        begin = [each.entry for each in found.entries if each.ordinal < entries]

        async def restored(fresh: Fresh) -> None:
            await self._restore(fresh, begin)

        self._made += 1
        name = f"rebuilt/{self._made}/{session_id}"
        made = self._around.engine.session(name, restored, pool_of(user))
        try:
            await made.ready()
        except BaseException:
            await made.aclose()
            raise
        return made

    # -- what is here ------------------------------------------------------------------------

    async def sweep(self) -> None:
        """Give up this HAProc's copies of long unused sessions; close Spark sessions given up."""
        idle_from = self._around.now() - self._around.limits.session_here_s
        for session in list(self._here.values()):
            if session.used_at < idle_from and not session.spark.busy:
                self._leave(session)
        done = [spark for spark in self._left if not spark.busy]
        self._left = [spark for spark in self._left if spark.busy]
        for spark in done:
            await spark.aclose()

    async def _used(self, session: ClientSession) -> None:
        session.used_at = self._around.now()
        if session.key in self._here:
            self._here.move_to_end(session.key)
        session.used_hour = await self._store.used(session.key, session.used_hour)

    def _take_room(self, key: Key) -> None:
        if self.room.take(key.user):
            raise refused(
                ErrorClass.TOO_MANY_SESSIONS,
                f"the ring has {self.room.taken} sessions, {self.room.of_user(key.user)} of them "
                f"of {key.user}; no more are allowed",
                "close sessions that are not needed, or raise limits.sessions_max, user_share",
            )

    def _make_room(self) -> None:
        """If this HAProc has too many sessions, give up its copy of the least recently used one."""
        if len(self._here) < self._around.limits.sessions_max:
            return
        for session in self._here.values():
            if not session.spark.busy:
                self._leave(session)
                return

    def _drop(self, key: Key) -> None:
        session = self._here.get(key)
        if session is not None:
            self._leave(session)

    def _leave(self, session: ClientSession) -> None:
        """Forget this HAProc's copy of a session; `sweep` closes its Spark session when idle."""
        if self._here.get(session.key) is session:
            del self._here[session.key]
            self._left.append(session.spark)

    def _lock(self, key: Key) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())


def _lowest(gone: Sequence[Numbered]) -> int | None:
    """Return the lowest ordinal of these entries, settings aside, and of those they replaced."""
    ordinals = [each.ordinal for each in gone if not isinstance(each.entry, StateEntry)]
    ordinals += [each.replaces for each in gone if each.replaces is not None]
    return min(ordinals, default=None)


def unknown(session_id: str) -> RequestError:
    """Return the error for a session that the ring does not have."""
    return refused(
        ErrorClass.SESSION_UNKNOWN,
        f"the ring has no session {session_id!r}",
        "open a new session, and run there what the program needs of the old one",
    )


def closed(key: Key) -> RequestError:
    """Return the error for a session that was closed."""
    return refused(
        ErrorClass.SESSION_CLOSED,
        f"session {key.id!r} was closed",
        "open a session under another id",
    )


def moved(key: Key) -> RequestError:
    """Return the error for a change of a session that another HAProc had adopted before."""
    return RequestError(
        FailureKind.AVAILABILITY,
        f"another HAProc has taken session {key.id!r} over; the step has no effect",
        error_class=ErrorClass.SESSION_MOVED,
        outcome=WriteOutcome.NOT_SENT,
        hint="ask again: it is taken back then",
    )


def _too_large(session: ClientSession, what: str) -> RequestError:
    return refused(
        ErrorClass.SESSION_TOO_LARGE,
        f"session {session.id!r} would have {what}: it could not be taken over in time",
        "go on in a new session, or raise the limit",
    )
