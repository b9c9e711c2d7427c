"""Stores for kept answers: a client's query results, and Spark's answers about definitions."""

from __future__ import annotations

import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeAlias, TypeVar

from haproc.engine.interface import Chunk, Settings
from haproc.replicate.log_state.definitions import Written

K = TypeVar("K")
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """Keeps answers of Spark that are valid until a table, view or function is redefined here.

    ``epoch`` returns the number of redefinitions that this cluster has applied. If there are more
    than ``entries_max`` answers, the least recently used one is deleted.
    """

    def __init__(self, epoch: Callable[[], int], entries_max: int) -> None:
        self._epoch = epoch
        self._entries_max = entries_max
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._as_of: int | None = None

    def find(self, key: K) -> V | None:
        """Return the kept answer for ``key``; None if there is none, or it is outdated."""
        self._forget_outdated()
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def keep(self, key: K, value: V, epoch: int) -> None:
        """Keep an answer.

        Does nothing if a definition has changed since ``epoch``, the number when Spark was asked.
        """
        self._forget_outdated()
        if epoch != self._as_of:
            return
        self._entries[key] = value
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)

    def _forget_outdated(self) -> None:
        if (epoch := self._epoch()) != self._as_of:
            self._entries.clear()
            self._as_of = epoch


# Kept answers of queries, and the time for which they are valid.
#
# An answer is kept with an offset, ``since``: it shows all writes to its tables below, and none
# from there on. It is valid as long as this HAProc has read no write to its tables from ``since``
# on: a query that starts now would get the same answer, even from a cluster that has applied all
# records read here. So it serves every consistency level for which this HAProc has read enough.


OVERHEAD_BYTES: Final = 1024
"""Bytes that each answer counts beside its rows. Chosen, so that the number of small answers has a
limit, too."""


Key: TypeAlias = bytes


def key_of(sql: str, settings: Settings) -> Key:
    """Return the key under which the answer to a query is kept: a hash of its text and settings.

    ``sql`` has its parameters in it. The user is not part of the key: Spark does not know users,
    and operators' rules are asked before the answer is looked up.
    """
    return hashlib.blake2b(repr((settings, sql)).encode(), digest_size=32).digest()


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """A kept answer to one query.

    ``chunks``: the rows, as the cluster gave them. ``tables``: those that the query read.
    ``since``: the answer shows all writes to them below this offset, and none from there on.
    ``departures``: how often this member had left service; after the next time its tables may
    differ. ``after_offset``: the one in the answer's HaReport. ``at_s``: the event loop's clock
    when the query began.
    """

    chunks: tuple[Chunk, ...]
    tables: frozenset[str]
    since: int
    departures: int
    after_offset: int
    at_s: float


class Eviction(StrEnum):
    """The reason why a kept answer was deleted."""

    WRITTEN = "written"
    """One of its tables was written, or this member was out of service."""
    ROOM = "room"


class KeptAnswers:
    """The kept answers of queries; if there is no room, the least recently used one is deleted.

    Bytes reserved for answers that are still being read count as used.
    """

    def __init__(self, written: Written, bytes_max: int) -> None:
        self._written = written
        self._bytes_max = bytes_max
        self._answers: OrderedDict[Key, KeptAnswer] = OrderedDict()
        self._bytes = 0
        self.evicted: Counter[str] = Counter()
        """The number of answers evicted so far, by `Eviction`."""

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def bytes_used(self) -> int:
        """The bytes of kept answers, and those reserved for answers that are still being read."""
        return self._bytes

    def find(self, key: Key, departures: int) -> KeptAnswer | None:
        """Return the kept answer for ``key`` if its query would give the same answer now.

        Otherwise None. ``departures``: how often this member has left service by now.
        """
        answer = self._answers.get(key)
        if answer is None:
            return None
        if self.outdated(answer, departures):
            self._drop(key)
            self.evicted[Eviction.WRITTEN] += 1
            return None
        self._answers.move_to_end(key)
        return answer

    def outdated(self, answer: KeptAnswer, departures: int) -> bool:
        """True if the answer's query may give another answer now.

        That is so if one of its tables was written, or this member has left service meanwhile.
        """
        left = answer.departures != departures
        return left or self._written.changed(answer.tables, answer.since)

    def reserve(self, size: int) -> bool:
        """Reserve bytes for an answer that is being read, deleting kept answers if needed.

        False, with nothing reserved, if there is not enough room even then.
        """
        while self._bytes + size > self._bytes_max and self._answers:
            self._drop(next(iter(self._answers)))
            self.evicted[Eviction.ROOM] += 1
        if self._bytes + size > self._bytes_max:
            return False
        self._bytes += size
        return True

    def give_back(self, size: int) -> None:
        """Release bytes that were reserved for an answer that is not kept."""
        self._bytes -= size

    def keep(self, key: Key, answer: KeptAnswer) -> None:
        """Keep an answer, in place of the one that ``key`` had; its `weight` must be reserved."""
        if key in self._answers:
            self._drop(key)
        self._answers[key] = answer

    def _drop(self, key: Key) -> None:
        self._bytes -= weight(self._answers.pop(key).chunks)


def weight(chunks: tuple[Chunk, ...] = ()) -> int:
    """Return the bytes that an answer with these chunks takes in memory."""
    return OVERHEAD_BYTES + sum(len(chunk.data) for chunk in chunks)
