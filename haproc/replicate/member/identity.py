"""Who this member of the ring is."""

from __future__ import annotations

from dataclasses import dataclass

from haproc.membership.peers import Member


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this member is, by its configuration. ``ring_order`` holds all clusters' names."""

    ring: str
    cluster: str
    incarnation: str
    ring_order: tuple[str, ...]
    founders: tuple[Member, ...] = ()
    """The ring's members, unless the log says otherwise."""
