"""Sessions in the ring's key-value store: which journal entries are valid, and pieces of files."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar
from urllib.parse import quote, unquote

from dmq import LogCorruptError, LogError
from dmq.key_value import Kept as Stored
from dmq.key_value import KeyValueStore
from dmq.log import Kinds
from haproc.failure import (
    ErrorClass,
    FailureKind,
    RequestError,
    WriteOutcome,
    log_unavailable,
    refused,
)
from haproc.sessions.journal import Kept

# The entries of a session in the store that count: one HAProc at a time may write its journal.
#
# A HAProc that takes a session over writes an *adoption* that names the one it replaces. The
# store's changes have one order, the same for every reader, so every reader finds the same chain:
# it begins with the first adoption that replaces nothing, and goes on with the first one that
# replaces the chain's last. Another adoption with the same predecessor came too late and does not
# count. An entry counts if its adoption is in the chain, and if it was written before the adoption
# that replaced that one.
#
# So a replaced owner finds this out by looking for adoptions *after* its entry is durable: one that
# it does not know may be before the entry. An adopter reads the journal after its own adoption
# is durable: so it has read every entry of earlier owners that can count. Nothing that was
# acknowledged is lost. An entry that was not acknowledged may count or not, the same for every
# reader.
#
# A closed session stays closed, whatever was written before or after that key.
#
# Keys below ``session/USER/ID/``, each written once (so no late write takes anything back):
# ``c/NUMBER.NAME`` an adoption, ``c/closed``, ``e/ORDINAL.NAME`` an entry of that adoption,
# ``b/SHA256`` a file's piece that the session needs, ``u/HOUR`` an hour of use (since 1970).


SESSIONS: Final = "session/"


@dataclass(frozen=True, slots=True)
class Key:
    """A session's user and id; its properties are keys in the key-value store."""

    user: str
    id: str

    @property
    def prefix(self) -> str:
        """The prefix of all keys that the store has about the session."""
        return f"{SESSIONS}{quote(self.user, safe='')}/{quote(self.id, safe='')}/"

    @property
    def control(self) -> str:
        """The prefix of the keys of its adoptions, and of the key that closes it."""
        return f"{self.prefix}c/"

    @property
    def closed(self) -> str:
        """The key that the store has if the session is closed."""
        return f"{self.prefix}c/closed"

    def adoption(self, number: int, name: str) -> str:
        """Return the key for the adoption with this number and unique name."""
        return f"{self.control}{number:06}.{name}"

    def used(self, hour: int) -> str:
        """Return the key that notes that the session was used in this hour."""
        return f"{self.prefix}u/{hour}"

    def needs(self, blob: str) -> str:
        """Return the key that notes that the session needs the piece with this SHA-256."""
        return f"{self.prefix}b/{blob}"

    def entry(self, ordinal: int, name: str) -> str:
        """Return the key of a journal entry; ``name``: the name of its writer's adoption."""
        return f"{self.prefix}e/{ordinal:06}.{name}"


def key_of(stored: str) -> Key | None:
    """Return the session that a key of the store belongs to; None if it is no session's key."""
    parts = stored.split("/")
    if len(parts) < 4 or f"{parts[0]}/" != SESSIONS:
        return None
    return Key(unquote(parts[1]), unquote(parts[2]))


@dataclass(frozen=True, slots=True)
class Adoption:
    """The record by which a HAProc takes a session over, or begins it; ``name`` is unique.

    ``number``: one more than that of the adoption before. ``replaces``: the name of the adoption
    before; empty if the session begins. ``afresh``: True if all earlier entries are not valid any
    more. ``owner``: the cluster of the HAProc; ``at_ms``: the time by its clock.
    """

    number: int
    name: str
    owner: str
    replaces: str = ""
    afresh: bool = False
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Written:
    """A journal entry as it is stored.

    ``request_ids``: the requests that led to it, so that no retry runs again. ``replaces``: the
    lowest ordinal of the entries that it replaces, which may be deleted; None: it replaces none.
    """

    entry: Kept
    request_ids: tuple[str, ...] = ()
    replaces: int | None = None


RECORDS: Final[Kinds[Written | Adoption]] = Kinds(
    {"session.entry": Written, "session.adoption": Adoption}
)


@dataclass(frozen=True, slots=True)
class Numbered:
    """A valid journal entry with its ordinal: ordinals rise, and may have gaps.

    ``adoption``: the name of the adoption whose HAProc wrote it. ``size``: its bytes in the store.
    ``request_ids``, ``replaces``: as in `Written`.
    """

    ordinal: int
    adoption: str
    entry: Kept
    size: int
    request_ids: tuple[str, ...] = ()
    replaces: int | None = None


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session as the store has it: its owner and its valid entries."""

    owner: Adoption
    entries: tuple[Numbered, ...] = ()
    closed: bool = False
    known: frozenset[str] = frozenset()
    """The control keys (adoptions, closing) that were in the store when this was read."""
    begun: str = ""
    """The name of the adoption with which the session began, or last began afresh: earlier entries
    are not valid."""

    @property
    def next_ordinal(self) -> int:
        """The ordinal of the next entry."""
        return self.entries[-1].ordinal + 1 if self.entries else 0


def stored_session(key: Key, kept: Mapping[str, Stored]) -> StoredSession | None:
    """Read a session from ``kept``, all keys and values below its prefix; None: no such session.

    Raises LogCorruptError if a value cannot be read.
    """
    known = frozenset(name for name in kept if name.startswith(key.control))
    chain = _chain({name: kept[name] for name in known if name != key.closed})
    if not chain:
        return None
    owner = chain[-1][0]
    if key.closed in known:
        return StoredSession(owner, closed=True, known=known)
    until = _counts_until(chain)
    found: list[tuple[int, int, str, bytes]] = []
    for name, stored in kept.items():
        ordinal, _, adoption = name.removeprefix(f"{key.prefix}e/").partition(".")
        if not name.startswith(f"{key.prefix}e/") or adoption not in until:
            continue
        place, end = until[adoption]
        if end is None or stored.revision < end:
            found.append((place, int(ordinal), adoption, stored.value))
    found.sort()
    ordered = []
    for _, place_, by, data in found:
        read = RECORDS.from_bytes(data)
        assert isinstance(read, Written)
        numbered = Numbered(place_, by, read.entry, len(data), read.request_ids, read.replaces)
        ordered.append(numbered)
    return StoredSession(owner, tuple(ordered), known=known, begun=next(iter(until)))


def _chain(adoptions: Mapping[str, Stored]) -> list[tuple[Adoption, int]]:
    """Return the valid adoptions in order, each with its revision in the store.

    An adoption is valid if it replaces the last valid one before it; the first one replaces none.
    """
    chain: list[tuple[Adoption, int]] = []
    for found in sorted(adoptions.values(), key=lambda kept: kept.revision):
        adoption = RECORDS.from_bytes(found.value)
        assert isinstance(adoption, Adoption)
        if adoption.replaces == (chain[-1][0].name if chain else ""):
            chain.append((adoption, found.revision))
    return chain


def _counts_until(chain: list[tuple[Adoption, int]]) -> dict[str, tuple[int, int | None]]:
    """Return for each valid adoption its place, and the revision at which it was replaced.

    That is None for the present owner. The first one is that with which the session began, or began
    afresh.
    """
    ends = [*(revision for _, revision in chain[1:]), None]
    found: dict[str, tuple[int, int | None]] = {}
    for place, ((adoption, _), end) in enumerate(zip(chain, ends, strict=True)):
        if adoption.afresh:
            found.clear()
        found[adoption.name] = place, end
    return found


# Sessions and pieces of their files in the ring's store: read, taken over, appended, closed.


BLOBS: Final = "blob/"
PIECE_BYTES_MAX: Final = 1 << 20
"""The most bytes of a piece of a file. Chosen: by default, a broker accepts such a message."""
GRACE_MS: Final = 3_600_000
"""How long a copy stays that no session needs. Chosen: far more than clocks differ."""
_LOOKS_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Copy:
    """One stored copy of a piece of a file; a piece may have several."""

    key: str
    sha256: str
    written_ms: int


def copy_of(key: str) -> Copy:
    """Return the copy that a key of the store describes."""
    _, sha256, written = key.split("/")
    return Copy(key, sha256, int(written.partition(".")[0]))


@dataclass(frozen=True, slots=True)
class Blobs:
    """Pieces of files in the key-value store, by SHA-256, once for all sessions that need them.

    A piece is stored in *copies*, each under a key with the time at which it was written:
    ``blob/SHA256/MILLISECONDS.NAME``. A HAProc that needs a piece first notes that (`Key.needs`).
    Then it relies on a copy only if the copy is younger than half of `GRACE_MS`; otherwise it
    writes a new one. A copy is deleted when it is older than `GRACE_MS` and no session needs it, or
    a newer copy is there. So a deletion never takes a copy that a HAProc relies on, even if the
    deletion is late, or was decided by an old reading.

    Methods raise RequestError.
    """

    store: KeyValueStore
    new_name: Callable[[], str]
    unix_ms: Callable[[], int]

    async def put(self, key: Key, data: bytes) -> str:
        """Store a piece of a file for the session; return its SHA-256 (hex) once it is durable."""
        sha256 = hashlib.sha256(data).hexdigest()
        await self.need(key, sha256)
        copies = await self._copies(sha256)
        fresh_from = self.unix_ms() - GRACE_MS // 2
        if not any(copy.written_ms >= fresh_from for copy in copies):
            name = f"{BLOBS}{sha256}/{self.unix_ms()}.{self.new_name()}"
            await reached(self.store.put(name, data))
        return sha256

    async def need(self, key: Key, sha256: str) -> None:
        """Note in the store that the session needs the piece."""
        await reached(self.store.put(key.needs(sha256), b""))

    async def get(self, sha256: str) -> bytes:
        """Return the bytes of a piece."""
        for _ in range(_LOOKS_MAX):
            copies = await self._copies(sha256)
            if not copies:
                break
            newest = max(copies, key=lambda copy: copy.written_ms)
            kept = await reached(self.store.get(newest.key))
            if kept is not None:
                return kept.value
        raise _gone(sha256)

    async def _copies(self, sha256: str) -> list[Copy]:
        return [copy_of(key) for key in await reached(self.store.keys(f"{BLOBS}{sha256}/"))]


def _gone(sha256: str) -> RequestError:
    return refused(
        ErrorClass.SESSION_NOT_REBUILT,
        f"a file of the session is gone from the ring's store (sha256 {sha256})",
        "go on in a new session, and add the file there",
    )


HOUR_MS: Final = 3_600_000
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class SessionStore:
    """Reads, adopts, changes and closes sessions in the ring's key-value store.

    The comment at the beginning of this module describes the keys, and which entries are valid.
    Every method raises RequestError of kind availability while the store cannot be reached.

    ``new_name`` returns a name that no adoption ever had.
    """

    store: KeyValueStore
    cluster: str
    new_name: Callable[[], str]
    unix_ms: Callable[[], int]

    async def load(self, key: Key) -> StoredSession | None:
        """Return the session as the store has it now; None if there is no such session."""
        kept = await reached(self.store.scan(key.prefix))
        try:
            return stored_session(key, kept)
        except LogCorruptError as error:
            raise _unknown_version(key, error) from error

    async def known(self, key: Key) -> frozenset[str]:
        """Return the session's control keys: its adoptions, and the key that closes it."""
        return frozenset(await reached(self.store.keys(key.control)))

    async def adopt(
        self,
        key: Key,
        found: StoredSession | None,
        *,
        afresh: bool = False,
        begins_with: Sequence[Kept] = (),
    ) -> StoredSession | None:
        """Take a session over, or begin it if ``found`` is None; return it.

        None if another HAProc was first, or the session was closed. ``found``: what `load`
        returned. ``begins_with``: the first entries of this adoption; all of them become valid with
        it, or none.
        """
        number = found.owner.number + 1 if found is not None else 1
        name, replaces = self.new_name(), found.owner.name if found is not None else ""
        adoption = Adoption(number, name, self.cluster, replaces, afresh, self.unix_ms())
        ordinal = found.next_ordinal if found is not None else 0
        for place, entry in enumerate(begins_with, ordinal):
            await self._put(key.entry(place, name), RECORDS.to_bytes(Written(entry)))
        if found is None or afresh:
            await self.used(key, None)
        await self._put(key.adoption(number, name), RECORDS.to_bytes(adoption))
        now = await self.load(key)
        return now if now is not None and now.owner.name == name and not now.closed else None

    async def append(
        self,
        key: Key,
        owner: Adoption,
        ordinal: int,
        entry: Kept,
        request_ids: tuple[str, ...] = (),
        replaces: int | None = None,
    ) -> Numbered:
        """Write a journal entry to the store; return it once it is durable.

        If another HAProc has adopted the session before, the entry is not valid: `known` shows
        that.
        """
        data = RECORDS.to_bytes(Written(entry, request_ids, replaces))
        await self._put(key.entry(ordinal, owner.name), data)
        return Numbered(ordinal, owner.name, entry, len(data), request_ids, replaces)

    async def drop(self, key: Key, numbered: Numbered) -> None:
        """Delete an entry that a later entry replaces."""
        await reached(self.store.delete(key.entry(numbered.ordinal, numbered.adoption)))

    async def used(self, key: Key, before: int | None) -> int:
        """Note in the store in which hour the session was used last; return that hour.

        ``before``: the hour that this HAProc noted last; None: none.
        """
        hour = self.unix_ms() // HOUR_MS
        if hour != before:
            await self._put(key.used(hour), b"")
            if before is not None:
                await reached(self.store.delete(key.used(before)))
        return hour

    async def close(self, key: Key) -> None:
        """Close a session for good, for all HAProcs."""
        await self._put(key.closed, str(self.unix_ms()).encode())

    async def _put(self, key: str, value: bytes) -> None:
        await reached(self.store.put(key, value))


async def reached(call: Awaitable[_Result]) -> _Result:
    """Await a call of the key-value store; raise RequestError if the store cannot be reached."""
    try:
        return await call
    except LogError as error:
        what = "the ring's key-value store cannot be reached"
        hint = "try the next HAProc, or again a little later"
        raise log_unavailable(what, error, hint, WriteOutcome.NOT_SENT) from error


def _unknown_version(key: Key, error: LogCorruptError) -> RequestError:
    return RequestError(
        FailureKind.AVAILABILITY,
        f"session {key.id!r} holds what this HAProc cannot read, perhaps of a later version: "
        f"{error}",
        error_class=ErrorClass.SESSION_VERSION,
        hint="upgrade this HAProc; until then the others serve the session",
    )
