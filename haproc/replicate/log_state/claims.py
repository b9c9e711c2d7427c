"""Which incarnation of a HAProc spoke for its cluster at which point of the log.

A process that was frozen and replaced may wake up and append what it was about to say. Its
decisions and reports carry its *epoch*, the offset of its own claim; one that stands behind a
newer claim of the same cluster is void, on every cluster alike, because only offsets are compared.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable


class Claims:
    """The claims read so far; ``newest`` are those that the stored progress remembers."""

    def __init__(self, newest: Iterable[tuple[str, int]] = ()) -> None:
        self._offsets: dict[str, list[int]] = {}
        self.restore(newest)

    def restore(self, newest: Iterable[tuple[str, int]]) -> None:
        """Begin with what the stored progress remembers, and nothing else."""
        self._offsets = {cluster: [offset] for cluster, offset in newest}

    @property
    def clusters(self) -> frozenset[str]:
        """The clusters that were ever claimed, as far as is known."""
        return frozenset(self._offsets)

    def see(self, offset: int, cluster: str) -> None:
        """Note a claim."""
        offsets = self._offsets.setdefault(cluster, [])
        if offset not in offsets[-64:]:
            insort(offsets, offset)

    def void(self, offset: int, cluster: str, epoch: int) -> bool:
        """Whether a record at ``offset`` was written by an incarnation replaced before it."""
        offsets = self._offsets.get(cluster, [])
        newest = bisect_left(offsets, offset) - 1
        return newest >= 0 and offsets[newest] > epoch

    def before(self, offset: int) -> tuple[tuple[str, int], ...]:
        """Return each cluster's newest claim below the offset."""
        found = []
        for cluster, offsets in sorted(self._offsets.items()):
            newest = bisect_left(offsets, offset) - 1
            if newest >= 0:
                found.append((cluster, offsets[newest]))
        return tuple(found)
