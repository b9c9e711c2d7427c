"""Kept answers: of queries, and of Spark about definitions."""

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
    """Answers of Spark that hold until a definition changes on this cluster.

    The least recently used one leaves first. ``epoch`` returns how many definitions changed.
    """

    def __init__(self, epoch: Callable[[], int], entries_max: int) -> None:
        self._epoch = epoch
        self._entries_max = entries_max
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._as_of: int | None = None

    def find(self, key: K) -> V | None:
        """Return the kept answer, if it would be given again."""
        self._forget_outdated()
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def keep(self, key: K, value: V, epoch: int) -> None:
        """Keep an answer, unless a definition has changed since the question."""
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


# Queries' answers that are kept, and when one may be given again.
#
# An answer is kept with an offset, ``since``: it shows all writes to its tables below, and none
# from there on. As long as the log, as far as it was read here, holds no write to one of them from
# there on, a query that starts now would give the same; and it would give one that has applied all
# that was read. So an answer may be given again at every level of consistency that this HAProc has
# read far enough for.


OVERHEAD_BYTES: Final = 1024
"""The bytes of an answer beside its rows; chosen, so that small ones are bounded too."""


Key: TypeAlias = bytes


def key_of(sql: str, settings: Settings) -> Key:
    """Return the key of a query: its text with its parameters, and its settings.

    Not its user, whom Spark never learns: rules have let him ask it, or this is not looked for.
    """
    return hashlib.blake2b(repr((settings, sql)).encode(), digest_size=32).digest()


@dataclass(frozen=True, slots=True)
class KeptAnswer:
    """The answer to one query. ``chunks`` are as the cluster gave them.

    ``departures``: how often this member had left service then; its tables may be other ones after
    that. ``after_offset``: of its report. ``at_s``: when its query began, by the loop's clock.
    """

    chunks: tuple[Chunk, ...]
    tables: frozenset[str]
    since: int
    departures: int
    after_offset: int
    at_s: float


class GivenUp(StrEnum):
    """The reason why an answer is kept no longer."""

    WRITTEN = "written"
    """One of its tables was, or this member was out of service."""
    ROOM = "room"


class KeptAnswers:
    """The answers that are kept; the least recently used one leaves first.

    Bytes of answers on their way count.
    """

    def __init__(self, written: Written, bytes_max: int) -> None:
        self._written = written
        self._bytes_max = bytes_max
        self._answers: OrderedDict[Key, KeptAnswer] = OrderedDict()
        self._bytes = 0
        self.given_up: Counter[str] = Counter()
        """The number of answers given up so far, by `GivenUp`."""

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def bytes_used(self) -> int:
        """The bytes of answers that are kept or on their way."""
        return self._bytes

    def find(self, key: Key, departures: int) -> KeptAnswer | None:
        """Return the answer, if it is still the one that its query would get."""
        answer = self._answers.get(key)
        if answer is None:
            return None
        if self.outdated(answer, departures):
            self._drop(key)
            self.given_up[GivenUp.WRITTEN] += 1
            return None
        self._answers.move_to_end(key)
        return answer

    def outdated(self, answer: KeptAnswer, departures: int) -> bool:
        """True if the query may get another answer now."""
        left = answer.departures != departures
        return left or self._written.changed(answer.tables, answer.since)

    def reserve(self, size: int) -> bool:
        """Make room for bytes of an answer on its way; False if there is none."""
        while self._bytes + size > self._bytes_max and self._answers:
            self._drop(next(iter(self._answers)))
            self.given_up[GivenUp.ROOM] += 1
        if self._bytes + size > self._bytes_max:
            return False
        self._bytes += size
        return True

    def give_back(self, size: int) -> None:
        """Take back what was reserved for an answer that is not kept."""
        self._bytes -= size

    def keep(self, key: Key, answer: KeptAnswer) -> None:
        """Keep an answer for which `weight` was reserved, in place of an earlier one."""
        if key in self._answers:
            self._drop(key)
        self._answers[key] = answer

    def _drop(self, key: Key) -> None:
        self._bytes -= weight(self._answers.pop(key).chunks)


def weight(chunks: tuple[Chunk, ...] = ()) -> int:
    """Return the bytes of an answer in memory."""
    return OVERHEAD_BYTES + sum(len(chunk.data) for chunk in chunks)
