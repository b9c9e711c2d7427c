"""Who is down, and whether it is oneself who is cut off. Values in, decisions out.

A peer is called down only if nobody hears it: neither this HAProc nor any that this one hears. So
a broken line between two of them takes nobody out, and one that is cut off does not talk others
into it.

Isolation needs evidence. Hearing nobody is none: two peers may be dead, and whoever reaches the log
has the ring's truth and serves on. Not reaching the log is none either: it may be away for all, and
then queries are still answered everywhere. Both together, or somebody else for whom the log is
there, are.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum


class PeerStatus(StrEnum):
    """What a HAProc knows of a peer."""

    HEARD = "heard"
    UNREACHABLE = "unreachable"
    """Not heard here, but by another one that is."""
    DOWN = "down"


def standing_of(
    peer: str, heard: Collection[str], hears: Mapping[str, Collection[str]]
) -> PeerStatus:
    """Return a peer's standing. ``heard``: by this HAProc; ``hears``: what peers say they hear."""
    if peer in heard:
        return PeerStatus.HEARD
    if any(peer in hears.get(other, ()) for other in heard):
        return PeerStatus.UNREACHABLE
    return PeerStatus.DOWN


@dataclass(frozen=True, slots=True)
class Evidence:
    """What speaks for being cut off."""

    log_lost: bool
    """The log has not answered for longer than it can have been away unnoticed by others."""
    heard: frozenset[str] = frozenset()
    """Peers that are heard."""
    log_seen_by: frozenset[str] = frozenset()
    """Peers to whom the log answers, by their own word."""
    silent: frozenset[str] = frozenset()
    """Peers that give no sign: they neither answer nor refuse connections."""
    unheard: frozenset[str] = frozenset()
    """Configured peers that are not heard."""


def isolated(evidence: Evidence) -> str:
    """Return why this HAProc counts as cut off, for people; empty if it does not."""
    e = evidence
    if not e.log_lost:
        return ""
    witnesses = sorted(e.heard & e.log_seen_by)
    if witnesses:
        return f"the log cannot be reached from here, but {_names(witnesses)} can reach it"
    if not e.heard and e.unheard and e.unheard <= e.silent:
        return f"neither the log nor {_names(sorted(e.unheard))} can be reached from here"
    return ""


def _names(names: list[str]) -> str:
    return ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else names[0]
