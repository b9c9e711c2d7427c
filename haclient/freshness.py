"""What a connection has written and seen, so that a session read anywhere shows at least that.

Every answer names a place in the ring's log (``after_offset``): a cluster that has applied so many
records shows whatever the answer showed. Kept for each cluster apart, because a cluster never goes
back behind what it has shown itself: while a client stays with one, nothing has to be waited for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

LEVELS = ("any", "bounded", "session", "linearizable")


@dataclass(frozen=True, slots=True)
class SeenOffsets:
    """See the module. ``after_offset`` is what was handed over from another connection."""

    after_offset: int = 0
    by_cluster: Mapping[str, int] = field(default_factory=dict)

    def after(self, cluster: object, offset: object) -> SeenOffsets:
        """Return what was seen with one more answer; one that names nothing changes nothing."""
        if isinstance(offset, bool) or not isinstance(offset, int):
            return self
        if not isinstance(cluster, str) or not cluster:
            return replace(self, after_offset=max(self.after_offset, offset))
        if self.by_cluster.get(cluster, 0) >= offset:
            return self
        return replace(self, by_cluster={**self.by_cluster, cluster: offset})

    @property
    def token(self) -> int:
        """The number that stands for all of it, on any cluster."""
        return max([self.after_offset, *self.by_cluster.values()])

    def fields(self, consistency: str | None) -> dict[str, Any]:
        """Return what a request of this level carries; None: the level is the server's choice."""
        if consistency == "any":
            return {}
        # What a linearizable or bounded answer must show is measured from the log's end, but a
        # client that changes levels still never goes back.
        told: dict[str, Any] = {"after_offset": self.after_offset, "seen": dict(self.by_cluster)}
        return {name: value for name, value in told.items() if value}


NOTHING_SEEN = SeenOffsets()
