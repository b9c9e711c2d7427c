"""Sessions in the ring's key-value store: reading, taking over, appending, closing.

`haproc.sessions.ownership` says what the keys mean and which of them count; here they are read and
written. Every method raises RequestError of kind availability while the store cannot be reached.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from dmq import LogError
from dmq.key_value import KeyValueStore
from haproc.engine.interface import Settings
from haproc.failure import ErrorClass, FailureKind, RequestError, message_of
from haproc.sessions import journal
from haproc.sessions.earlier import as_now
from haproc.sessions.journal import Kept, UnknownEntryError
from haproc.sessions.ownership import (
    Adoption,
    Key,
    Numbered,
    StoredSession,
    stored_session,
    to_bytes,
)

HOUR_MS: Final = 3_600_000
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class SessionStore:
    """See the module. ``new_name`` returns a name that no adoption ever had."""

    store: KeyValueStore
    cluster: str
    new_name: Callable[[], str]
    unix_ms: Callable[[], int]
    defaults: Settings
    """What settings go back to that are unset."""

    async def standing(self, key: Key) -> StoredSession | None:
        """Return what counts of a session now; None: there is none."""
        kept = await reached(self.store.scan(key.prefix))
        try:
            return stored_session(key, kept, lambda entries: as_now(entries, self.defaults))
        except UnknownEntryError as error:
            raise _unknown_version(key, error) from error

    async def known(self, key: Key) -> frozenset[str]:
        """Return what is there now of adoptions, and of the session's end."""
        return frozenset(await reached(self.store.keys(key.control)))

    async def adopt(
        self,
        key: Key,
        found: StoredSession | None,
        *,
        afresh: bool = False,
        begins_with: Sequence[Kept] = (),
    ) -> StoredSession | None:
        """Take a session over, or begin it; None if somebody else was first.

        ``begins_with`` are its first entries then, which count from the moment on at which the
        session is taken over, all of them or none.
        """
        number = found.owner.number + 1 if found is not None else 1
        name, replaces = self.new_name(), found.owner.name if found is not None else ""
        adoption = Adoption(number, name, self.cluster, replaces, afresh, self.unix_ms())
        ordinal = found.next_ordinal if found is not None else 0
        for place, entry in enumerate(begins_with, ordinal):
            await self._put(key.entry(place, name), journal.to_bytes(entry))
        if found is None or afresh:
            await self.used(key, None)
        await self._put(key.adoption(number, name), to_bytes(adoption))
        now = await self.standing(key)
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
        """Make an entry durable. Whether it counts, `known` tells afterwards."""
        data = journal.to_bytes(entry, request_ids, replaces)
        await self._put(key.entry(ordinal, owner.name), data)
        return Numbered(ordinal, owner.name, entry, len(data), request_ids, replaces)

    async def drop(self, key: Key, numbered: Numbered) -> None:
        """Delete an entry that a later one stands for."""
        await reached(self.store.delete(key.entry(numbered.ordinal, numbered.adoption)))

    async def used(self, key: Key, before: int | None) -> int:
        """Note the hour in which the session was used; return it. ``before``: the one noted."""
        hour = self.unix_ms() // HOUR_MS
        if hour != before:
            await self._put(key.used(hour), b"")
            if before is not None:
                await reached(self.store.delete(key.used(before)))
        return hour

    async def close(self, key: Key) -> None:
        """Close a session for good, whoever has it."""
        await self._put(key.closed, str(self.unix_ms()).encode())

    async def _put(self, key: str, value: bytes) -> None:
        await reached(self.store.put(key, value))


async def reached(call: Awaitable[_Result]) -> _Result:
    """Return what a call of the store returns; RequestError if it can't be reached."""
    try:
        return await call
    except LogError as error:
        raise RequestError(
            FailureKind.AVAILABILITY,
            f"the ring's keyed store cannot be reached: {message_of(error)}",
            error_class=ErrorClass.LOG_UNAVAILABLE,
            hint="try the next HAProc, or again a little later",
        ) from error


def _unknown_version(key: Key, error: UnknownEntryError) -> RequestError:
    return RequestError(
        FailureKind.AVAILABILITY,
        f"session {key.id!r} holds an entry of kind {str(error)!r}, which this HAProc does not "
        "know: a later version wrote it",
        error_class=ErrorClass.SESSION_VERSION,
        hint="upgrade this HAProc; until then the others serve the session",
    )
