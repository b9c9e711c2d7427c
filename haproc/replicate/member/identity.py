"""Who this replica is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from haproc.membership.roster import Member


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this replica is. ``ring_order`` holds all clusters' names, this one's included."""

    ring: str
    cluster: str
    incarnation: str
    ring_order: tuple[str, ...]
    founders: tuple[Member, ...] = ()
    """The ring's members, unless the log says otherwise."""

    @property
    def peers(self) -> Sequence[str]:
        """The other clusters, beginning with the next one in ring order."""
        at = self.ring_order.index(self.cluster)
        return self.ring_order[at + 1 :] + self.ring_order[:at]
