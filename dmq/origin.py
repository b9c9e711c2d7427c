"""Where a log came from, if it was moved: what its store remembers under the log's own id.

A log that was moved has a new file or topic, with an id of its own, but its readers know it by the
id that it had before: `Origin.identity`. What is under way or over is remembered, too, so that
nobody uses a log of which only a part has arrived, or one whose records go on elsewhere. A log
that was made anew has another id: what is remembered of the one before it says nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from dmq.key_value import KeyValueStore
from dmq.log import LogCorruptError, LogError, MovableLog

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
