"""Whether a write may be answered: enough clusters have applied it. Values in, decisions out.

Kafka's acknowledgements, brought to whole clusters. The write is in the log, and so durable, before
any of this matters: what is waited for is that clusters show it.

- ``one``: the cluster that received it has applied it.
- ``majority``: more than half of all the ring's clusters have, be they in sync or not.
- ``all``: every cluster that is in sync at this moment has. One that drops out meanwhile no longer
  counts; one that comes in does.

``min_insync`` bounds both from below: a write is refused before it is appended while fewer clusters
are in sync than it needs, and never answered before as many have applied it.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from haproc.classify.model import WriteConcern


@dataclass(frozen=True, slots=True)
class ConcernJudgement:
    """``waiting_for``: whose word may change it. ``possible``: with those in sync now it can be."""

    fulfilled: bool
    waiting_for: frozenset[str] = frozenset()
    possible: bool = True


@dataclass(frozen=True, slots=True)
class Requirement:
    """What a write concern comes to on a ring of so many clusters."""

    concern: WriteConcern
    clusters: int
    min_insync: int = 1

    @property
    def needed(self) -> int:
        """How many clusters must have applied a write, at least."""
        match self.concern:
            case WriteConcern.ONE:
                return 1
            case WriteConcern.MAJORITY:
                return max(self.clusters // 2 + 1, self.min_insync)
            case WriteConcern.ALL:
                return self.min_insync

    def permits(self, in_sync: Set[str]) -> bool:
        """Return whether a write may be appended while these are in sync."""
        return self.concern is WriteConcern.ONE or len(in_sync) >= self.needed

    def judge(self, in_sync: Set[str], applied: Set[str]) -> ConcernJudgement:
        """Judge a write that these clusters have applied, the one that received it among them."""
        missing = frozenset(in_sync - applied)
        enough = len(applied) >= self.needed
        if enough and (self.concern is not WriteConcern.ALL or not missing):
            return ConcernJudgement(True)
        return ConcernJudgement(False, missing, len(applied | missing) >= self.needed)
