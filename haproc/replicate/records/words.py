"""Records about operations that a cluster cannot apply: ``unable``, ``able``, ``abandon``.

`haproc.replicate.heard.words` says what they mean and when they count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from dmq import Json, Record
from haproc.replicate.records.fields import number, offsets, text

KINDS: Final = frozenset({"unable", "able", "abandon"})
ERROR_CHARACTERS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class Unable:
    """``cluster`` has not committed the operation at ``offset``, and does not run it any more.

    ``epoch`` is the offset of the writer's claim; ``error``: what it met, in words.
    """

    offset: int
    operation_id: str
    cluster: str
    epoch: int
    error: str


@dataclass(frozen=True, slots=True)
class Able:
    """``cluster`` takes back its word on the operation at ``offset``."""

    offset: int
    operation_id: str
    cluster: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Abandon:
    """The ring gives up the operation at ``offset``; see the module.

    ``words``: by cluster the offset of its ``unable``. ``absent``: by cluster the offset of its
    newest claim, -1 for none. ``error``: what clients are told.
    """

    offset: int
    operation_id: str
    by: str
    epoch: int
    read_to: int
    words: Mapping[str, int]
    absent: Mapping[str, int]
    error: str


Word: TypeAlias = Unable | Able | Abandon


def word_record(word: Word) -> Record:
    """Return the log record of a message."""
    headers: dict[str, Json] = {"offset": word.offset, "epoch": word.epoch}
    match word:
        case Unable():
            headers |= {"cluster": word.cluster, "error": word.error}
            return Record("unable", word.operation_id, headers)
        case Able():
            return Record("able", word.operation_id, headers | {"cluster": word.cluster})
        case Abandon():
            headers |= {
                "by": word.by,
                "read_to": word.read_to,
                "words": dict(sorted(word.words.items())),
                "absent": dict(sorted(word.absent.items())),
                "error": word.error,
            }
            return Record("abandon", word.operation_id, headers)


def word_message(record: Record) -> Word:
    """Return the message of a record of these kinds; KeyError, TypeError or ValueError."""
    h: Mapping[str, Any] = record.headers
    offset, epoch = number(h["offset"]), number(h["epoch"])
    match record.kind:
        case "unable":
            return Unable(offset, record.key, text(h["cluster"]), epoch, text(h["error"]))
        case "able":
            return Able(offset, record.key, text(h["cluster"]), epoch)
        case _:
            return Abandon(
                offset,
                record.key,
                text(h["by"]),
                epoch,
                number(h["read_to"]),
                offsets(h["words"]),
                offsets(h["absent"]),
                text(h["error"]),
            )
