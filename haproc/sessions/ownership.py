"""The entries of a session in the store that count: one HAProc at a time may write its journal.

A HAProc that takes a session over writes an *adoption* that names the one it replaces. The store's
changes have one order, the same for every reader, so every reader finds the same chain: it begins
with the first adoption that replaces nothing, and goes on with the first one that replaces the
chain's last. Another adoption with the same predecessor came too late and does not count. An entry
counts if its adoption is in the chain and it stands before the adoption that replaced that one.

So a replaced owner finds this out by looking for adoptions *after* its entry is durable: one that
it does not know may stand before the entry. An adopter reads the journal after its own adoption is
durable: no entry of those before it can count that it has not read. Nothing that was acknowledged
is lost. An entry that was not acknowledged may count or not, the same for every reader.

A closed session stays closed, wherever that key stands.

Keys below ``session/USER/ID/``, each written once (so no late write takes anything back):
``c/NUMBER.NAME`` an adoption, ``c/closed``, ``e/ORDINAL.NAME`` an entry of that adoption,
``b/SHA256`` a file's piece that the session needs, ``u/HOUR`` when it was used (since 1970).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from dmq.key_value import Kept as Stored
from dmq.log import Kinds
from haproc.sessions.journal import Kept

SESSIONS: Final = "session/"


@dataclass(frozen=True, slots=True)
class Key:
    """A session's user and id."""

    user: str
    id: str

    @property
    def prefix(self) -> str:
        """Below it is all that the store holds of the session."""
        return f"{SESSIONS}{quote(self.user, safe='')}/{quote(self.id, safe='')}/"

    @property
    def control(self) -> str:
        """Below it are its adoptions, and whether it is closed."""
        return f"{self.prefix}c/"

    @property
    def closed(self) -> str:
        """Is there once the session is closed."""
        return f"{self.prefix}c/closed"

    def adoption(self, number: int, name: str) -> str:
        """Return the key of an adoption."""
        return f"{self.control}{number:06}.{name}"

    def used(self, hour: int) -> str:
        """Return the key that notes the hour of its last use."""
        return f"{self.prefix}u/{hour}"

    def needs(self, blob: str) -> str:
        """Return the key that notes that the session needs a piece of a file."""
        return f"{self.prefix}b/{blob}"

    def entry(self, ordinal: int, name: str) -> str:
        """Return the key of an adoption's entry."""
        return f"{self.prefix}e/{ordinal:06}.{name}"


def key_of(stored: str) -> Key | None:
    """Return the session that a key of the store belongs to."""
    parts = stored.split("/")
    if len(parts) < 4 or f"{parts[0]}/" != SESSIONS:
        return None
    return Key(unquote(parts[1]), unquote(parts[2]))


@dataclass(frozen=True, slots=True)
class Adoption:
    """A HAProc takes a session over; ``name`` is that of no other adoption.

    ``replaces``: the adoption before, empty for a session that begins. ``afresh``: nothing of what
    was before counts any more. ``owner``: the cluster, and ``at_ms`` the time by its clock.
    """

    number: int
    name: str
    owner: str
    replaces: str = ""
    afresh: bool = False
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Written:
    """An entry with the ids of the requests that it stands for, so that no retry runs again.

    ``replaces``: the lowest ordinal of the entries that it stands for, which may be deleted.
    """

    entry: Kept
    request_ids: tuple[str, ...] = ()
    replaces: int | None = None


RECORDS: Final[Kinds[Written | Adoption]] = Kinds(
    {"session.entry": Written, "session.adoption": Adoption}
)


@dataclass(frozen=True, slots=True)
class Numbered:
    """An entry at its place: ordinals rise, and need not be dense. ``adoption`` wrote it.

    ``request_ids``, ``replaces``: as of `Written`.
    """

    ordinal: int
    adoption: str
    entry: Kept
    size: int
    request_ids: tuple[str, ...] = ()
    replaces: int | None = None


@dataclass(frozen=True, slots=True)
class StoredSession:
    """A session in the store, as far as it counts."""

    owner: Adoption
    entries: tuple[Numbered, ...] = ()
    closed: bool = False
    known: frozenset[str] = frozenset()
    """The control keys that this was read from."""
    begun: str = ""
    """The name of the adoption that it began with, or began afresh with: all that counts is of that
    one and those behind it."""

    @property
    def next_ordinal(self) -> int:
        """The ordinal of the next entry."""
        return self.entries[-1].ordinal + 1 if self.entries else 0


def stored_session(key: Key, kept: Mapping[str, Stored]) -> StoredSession | None:
    """Return the keys below a session's prefix that count; None: there is no session.

    Raises LogCorruptError.
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
    """Return the adoptions that count, each with its revision, in order."""
    chain: list[tuple[Adoption, int]] = []
    for found in sorted(adoptions.values(), key=lambda kept: kept.revision):
        adoption = RECORDS.from_bytes(found.value)
        assert isinstance(adoption, Adoption)
        if adoption.replaces == (chain[-1][0].name if chain else ""):
            chain.append((adoption, found.revision))
    return chain


def _counts_until(chain: list[tuple[Adoption, int]]) -> dict[str, tuple[int, int | None]]:
    """Return, for each adoption, its place and the revision from which on it counts no more.

    The one that the session began with, or began afresh with, is the first.
    """
    ends = [*(revision for _, revision in chain[1:]), None]
    found: dict[str, tuple[int, int | None]] = {}
    for place, ((adoption, _), end) in enumerate(zip(chain, ends, strict=True)):
        if adoption.afresh:
            found.clear()
        found[adoption.name] = place, end
    return found
