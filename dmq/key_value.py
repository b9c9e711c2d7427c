"""The key-value store as its users see it: small things by name, beside the log.

One of them is where the log came from, if it was moved.

Contract (the suite in tests/contract runs it against every backend):

- All processes that open it share one store. Its changes have one order, and each change has a
  *revision*, its place in that order: revisions rise strictly, and need not be dense.
- ``put`` and ``delete`` return once the change would survive a kill of every process that holds
  the store. If they raise LogUnavailableError the change may be there, or still come, even after
  a later change of the same key: what must never be taken back by its own past is put under a key
  of its own. If they raise anything else nothing was changed.
- ``get``, ``scan``, ``keys`` and ``revision`` see every change, of any process, that had returned
  before they were called: they ask the backend each time, which costs about a millisecond.
  What one of them returns was in the store at one moment, between its call and its answer.
- A process that put something, and must know which process was first, reads the others' keys after
  its own ``put`` returned, and compares revisions: all processes see the same ones.
- ``wait`` misses no change below its prefix after the revision it was given, but may return for
  nothing. So: take the ``revision``, look, wait after that revision, and begin anew.
- A store that lost changes or was made anew under an open handle raises LogRegressedError, as the
  log does.

A key is text of 1 to KEY_BYTES_MAX bytes of UTF-8; keys are in the order of those bytes, which is
the order of their code points. A value is at most VALUE_BYTES_MAX bytes. How much lies below a
prefix is its users' to bound: ``scan`` holds all of it in memory at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from dmq.log import LogCorruptError, LogError, MovableLog, ValueTooLargeError

KEY_BYTES_MAX: Final = 1024
VALUE_BYTES_MAX: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Kept:
    """A key's value, and the revision of the change that put it there."""

    value: bytes
    revision: int


class KeyValueStore(Protocol):
    """A durable map of small values. Safe for many tasks of one event loop."""

    async def put(self, key: str, value: bytes) -> int:
        """Make this the key's value, durably; return the change's revision.

        Raises ValueTooLargeError, and ValueError for what is no key.
        """
        ...

    async def get(self, key: str) -> Kept | None:
        """Return the value under this key, or None."""
        ...

    async def delete(self, key: str) -> None:
        """Keep nothing under this key any more, durably; harmless if nothing is."""
        ...

    async def scan(self, prefix: str) -> dict[str, Kept]:
        """Return all whose keys begin so, in the keys' order."""
        ...

    async def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin so, in order, without touching their values."""
        ...

    async def revision(self) -> int:
        """Return the revision of the newest change; 0 if there was none yet."""
        ...

    async def wait(self, prefix: str, after: int, timeout_s: float) -> bool:
        """Wait for a change below this prefix after this revision (True), or the time (False)."""
        ...

    async def close(self) -> None:
        """Release what the store holds; changes under way finish first."""
        ...


def check_key(key: str) -> None:
    """Raise ValueError for what no backend takes as a key."""
    size = len(key.encode())
    if not 1 <= size <= KEY_BYTES_MAX or "\0" in key:
        raise ValueError(
            f"a key is text of 1 to {KEY_BYTES_MAX} bytes without NUL, but this one has {size}: "
            f"{key[:80]!r}"
        )


def check_value(key: str, value: bytes) -> None:
    """Raise ValueTooLargeError for a value over the store's limit."""
    if len(value) > VALUE_BYTES_MAX:
        raise ValueTooLargeError(
            f"the value of {key!r} has {len(value):,} bytes; the store takes {VALUE_BYTES_MAX:,} "
            "at most, so nothing was changed: split it"
        )


# Where a log came from, if it was moved: what its store remembers under the log's own id.
#
# A log that was moved has a new file or topic, with an id of its own, but its readers know it by
# the id that it had before: `Origin.identity`. What is under way or over is remembered, too, so
# that nobody uses a log of which only a part has arrived, or one whose records go on elsewhere. A
# log that was made anew has another id: what is remembered of the one before it says nothing of it.


KEY_PREFIX: Final = "dmq/log/"
"""Keys of the store that say something of its own log; they are not moved with it."""


class Standing(StrEnum):
    """What a log is good for."""

    WHOLE = "whole"
    HALF = "half"
    """Somebody fills it, or was killed doing so."""
    LEFT = "left"
    """It was exported: its records go on elsewhere."""


@dataclass(frozen=True, slots=True)
class Origin:
    """See the module. ``by``: what has filled or left the log, for people."""

    standing: Standing = Standing.WHOLE
    identity: str = ""
    by: str = ""


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Origin).decode


async def origin_of(log: MovableLog, store: KeyValueStore) -> Origin:
    """Return what the store remembers of the log; the handle is not renamed yet."""
    kept = await store.get(await _key(log))
    if kept is None:
        return Origin()
    try:
        return _decode(kept.value)
    except msgspec.MsgspecError as error:
        raise LogCorruptError(f"what the store remembers of its log: {error}") from error


async def remember(log: MovableLog, store: KeyValueStore, origin: Origin) -> None:
    """Remember this of the log."""
    await store.put(await _key(log), _encode(origin))


def check_usable(url: str, origin: Origin) -> None:
    """Raise LogError for a log that nobody may go on with."""
    if origin.standing is Standing.HALF:
        raise LogError(
            f"the log {url} is not whole: {origin.by} was cut off. Repeat that command; it says "
            "what to do"
        )
    if origin.standing is Standing.LEFT:
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
