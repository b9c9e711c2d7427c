"""The interface of the key-value store: small values by name, beside the log.

One of the values is the origin of a log that was moved.

Contract (the suite in tests/contract runs it against every backend):

- All processes that open it share one store. Its changes have one order, and each change has a
  *revision*, its place in that order: revisions rise strictly, and need not be dense.
- ``put`` and ``delete`` return once the change would survive a kill of every process that holds
  the store. If they raise LogUnavailableError the change may be there, or may come later, even
  after a later change of the same key. So a value that must never return to an older state has a
  key of its own. If they raise any other error nothing was changed.
- ``get``, ``scan``, ``keys`` and ``revision`` see every change, of any process, that had returned
  before they were called: they ask the backend each time, which costs about a millisecond. Their
  result was in the store at one moment, between the call and the answer.
- A process that put a value, and must know which process was first, reads the others' keys after
  its own ``put`` returned, and compares revisions: all processes see the same ones.
- ``wait`` misses no change below its prefix after the given revision, but may return without one.
  So: take the ``revision``, read, wait after that revision, and begin again.
- A store that lost changes or was made anew under an open handle raises LogRegressedError, as the
  log does.

A key is text of 1 to KEY_BYTES_MAX bytes of UTF-8; keys are in the order of those bytes, which is
the order of their code points. A value is at most VALUE_BYTES_MAX bytes. The users of a prefix must
bound the data below it: ``scan`` holds all of it in memory at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from dmq.log import LogCorruptError, LogError, MovableLog, ValueTooLargeError

KEY_BYTES_MAX: Final = 1024
VALUE_BYTES_MAX: Final = 64 << 20
FIRST_REVISION: Final = 2
"""The lowest revision of a value. Revision 1 is left to the entry with which an import begins:
in a topic that entry needs a revision of its own, and every value keeps its revision."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A key's value, and the revision of the change that stored it."""

    value: bytes
    revision: int


class KeyValueStore(Protocol):
    """A durable map from keys to small values. Many tasks of one event loop may use it."""

    async def put(self, key: str, value: bytes) -> int:
        """Store a value under the key, durably; return the change's revision.

        Raises ValueTooLargeError for a value over the limit, and ValueError for an invalid key.
        """
        ...

    async def get(self, key: str) -> Kept | None:
        """Return the value under this key, with its revision; None if there is none."""
        ...

    async def delete(self, key: str) -> None:
        """Delete the key and its value, durably; harmless if there is none."""
        ...

    async def scan(self, prefix: str) -> dict[str, Kept]:
        """Return the values of all keys that begin with ``prefix``, in the keys' order."""
        ...

    async def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with ``prefix``, in order, without reading their values."""
        ...

    async def revision(self) -> int:
        """Return the revision of the newest change; 0 if there was none yet."""
        ...

    async def wait(self, prefix: str, after: int, timeout_s: float) -> bool:
        """Wait for a change after revision ``after`` of a key that begins with ``prefix``.

        Return True when there may have been one; False if the time is over first.
        """
        ...

    async def close(self) -> None:
        """Release the store's connections and files; unfinished changes finish first."""
        ...


@dataclass(frozen=True, slots=True)
class Placed:
    """A key's value, and the revision that it had in the store from which it is moved."""

    key: str
    value: bytes
    revision: int


class MovableStore(KeyValueStore, Protocol):
    """A store's handle that can also be filled with another store's values (`dmq.moving`).

    No other process may use the store meanwhile.
    """

    async def refill(self, values: Iterable[Placed], end: int) -> None:
        """Store another store's values at the revisions they had there, in rising order.

        They keep them because revisions order the store's users, and may be names (a job's id).
        ``end``: the newest revision of the other store: later changes here get higher ones. Raises
        LogError if a revision is used already.
        """
        ...


def check_key(key: str) -> None:
    """Raise ValueError for a key that is empty, too long, or not allowed."""
    size = len(key.encode())
    if not 1 <= size <= KEY_BYTES_MAX or "\0" in key:
        raise ValueError(
            f"a key is text of 1 to {KEY_BYTES_MAX} bytes without NUL, but this one has {size}: "
            f"{key[:80]!r}"
        )


def check_value(key: str, value: bytes) -> None:
    """Raise ValueTooLargeError if the value is larger than the store's limit."""
    if len(value) > VALUE_BYTES_MAX:
        raise ValueTooLargeError(
            f"the value of {key!r} has {len(value):,} bytes; the store takes {VALUE_BYTES_MAX:,} "
            "at most, so nothing was changed: split it"
        )


# The origin of a log that was moved, stored under the log's own id.
#
# A log that was moved has a new file or topic with a new id, but its readers know it by its earlier
# id: `Origin.identity`. An unfinished or finished move is stored, too, so that no process uses a
# log that is only partly filled, or one with records that continue elsewhere. A log that was made
# anew has another id, so the entry of the old one does not apply to it.


KEY_PREFIX: Final = "dmq/log/"
"""The prefix of keys about the log beside this store; a move of the log leaves them out."""


class MoveState(StrEnum):
    """Whether a log is whole, was filled only in part, or continues elsewhere."""

    WHOLE = "whole"
    HALF = "half"
    """A process is filling it with another log's records, or was killed while it did."""
    LEFT = "left"
    """It was exported: its records continue elsewhere."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a log's records come from, and if it can be used.

    ``identity``: the id that it has from an earlier log; empty: its own. ``by``: the command that
    filled it or exported it, as shown to people.
    """

    standing: MoveState = MoveState.WHOLE
    identity: str = ""
    by: str = ""


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Origin).decode


async def origin_of(log: MovableLog, store: KeyValueStore) -> Origin:
    """Return the stored origin of the log; that of a new log if none is stored."""
    kept = await store.get(await _key(log))
    if kept is None:
        return Origin()
    try:
        return _decode(kept.value)
    except msgspec.MsgspecError as error:
        raise LogCorruptError(f"what the store remembers of its log: {error}") from error


async def remember(log: MovableLog, store: KeyValueStore, origin: Origin) -> None:
    """Store the origin of the log in its key-value store."""
    await store.put(await _key(log), _encode(origin))


def check_usable(url: str, origin: Origin) -> None:
    """Raise LogError for a log that was filled only in part, or that continues elsewhere."""
    if origin.standing is MoveState.HALF:
        raise LogError(
            f"the log {url} is not whole: {origin.by} was cut off. Repeat that command; it says "
            "what to do"
        )
    if origin.standing is MoveState.LEFT:
        raise LogError(
            f"the log {url} was left: {origin.by}. Its ring goes on with the log that was imported "
            "from there: name that one in the configuration. To go on with this one, if no HAProc "
            "has used the other: haproc log reopen"
        )


async def _key(log: MovableLog) -> str:
    renamed, log.known_as = log.known_as, ""
    try:
        return KEY_PREFIX + await log.identity()
    finally:
        log.known_as = renamed
