"""What Spark said, which holds until a definition changes on this cluster."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Remembered(Generic[K, V]):
    """See the module; the least recently used goes first. ``epoch`` counts definitions."""

    def __init__(self, epoch: Callable[[], int], entries_max: int) -> None:
        self._epoch = epoch
        self._entries_max = entries_max
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._as_of: int | None = None

    def find(self, key: K) -> V | None:
        """Return what was said, if it would be said again."""
        self._forget_outdated()
        found = self._entries.get(key)
        if found is not None:
            self._entries.move_to_end(key)
        return found

    def keep(self, key: K, value: V, epoch: int) -> None:
        """Keep what was said, unless a definition has changed since it was asked for."""
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
