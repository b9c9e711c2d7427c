"""The ring's sessions as operators see and close them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from dmq import Json
from dmq.key_value import KeyValueStore
from haproc.failure import RequestError
from haproc.sessions.durable import HOUR_MS, SessionStore, reached
from haproc.sessions.journal import ArtifactEntry
from haproc.sessions.ownership import SESSIONS, Key, StoredSession
from haproc.sessions.sessions import Sessions, unknown
from haproc.sessions.upkeep import SessionKeys, found_in

LISTED_MAX: Final = 1000
"""In one answer; each is read from the store."""


@dataclass(frozen=True, slots=True)
class Listing:
    """See the module. Methods raise RequestError."""

    store: KeyValueStore
    durable: SessionStore
    sessions: Sessions

    async def listed(self, start: int, limit: int) -> Mapping[str, Json]:
        """Return the open sessions by user and id, some of them; ``total`` is of all."""
        found = found_in(await reached(self.store.keys(SESSIONS)))
        keys = [key for key, each in found.items() if each.is_session(key)]
        keys.sort(key=lambda key: (key.user, key.id))
        page = keys[start : start + min(limit, LISTED_MAX)]
        told: list[Json] = []
        for key in page:
            standing = await self.durable.standing(key)
            if standing is not None and not standing.closed:
                told.append(_told(key, found[key], standing))
        return {"sessions": told, "total": len(keys)}

    async def close(self, user: str, session_id: str) -> Mapping[str, Json]:
        """Close a session, whoever has it; RequestError if there is none."""
        if not await self.sessions.close(user, session_id):
            raise _none(user, session_id)
        return {"user": user, "session_id": session_id, "closed": True}


def _told(key: Key, found: SessionKeys, standing: StoredSession) -> Json:
    files = [each.entry for each in standing.entries if isinstance(each.entry, ArtifactEntry)]
    return {
        "user": key.user,
        "session_id": key.id,
        "owner": standing.owner.owner,
        "owned_since_ms": standing.owner.at_ms,
        "adoptions": standing.owner.number - 1,
        "steps": len(standing.entries),
        "bytes": sum(each.size for each in standing.entries),
        "files_bytes": sum(file.size for file in files),
        "used_ms": None if found.used_hour is None else found.used_hour * HOUR_MS,
    }


def _none(user: str, session_id: str) -> RequestError:
    error = unknown(session_id)
    error.message = f"{user!r} has no open session {session_id!r}"
    error.hint = "haproc sessions list shows them"
    return error
