"""Who the ring's members are by what the log has said. Values in, values out."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from haproc.membership.roster import Enrolled
from haproc.replicate.records.members import Roster


def heard(enrolled: Enrolled, offset: int, roster: Roster) -> Enrolled:
    """Return what counts after a record; hearing of one again changes nothing."""
    if offset <= enrolled.offset or roster.replaces != enrolled.offset:
        return enrolled
    return Enrolled(offset, roster.members)


class RingMembers:
    """The members as of the log so far; until it names them, those of the configuration."""

    def __init__(self, me: str, configured: tuple[str, ...]) -> None:
        self._me = me
        self._order = configured
        self._enrolled = Enrolled()

    @property
    def enrolled(self) -> Enrolled:
        """What the log says."""
        return self._enrolled

    @property
    def order(self) -> tuple[str, ...]:
        """All members' names in ring order; this cluster's is there even if it was removed."""
        return self._order

    @property
    def peers(self) -> Sequence[str]:
        """The other clusters, beginning with the next one in ring order."""
        at = self._order.index(self._me)
        return self._order[at + 1 :] + self._order[:at]

    def enrol(self, enrolled: Enrolled) -> None:
        """Go by what the log says now."""
        self._enrolled = enrolled
        if enrolled.members is not None:
            names = tuple(member.name for member in enrolled.members)
            self._order = names if self._me in names else (self._me, *names)


def names_needed(
    enrolled: Collection[str] | None,
    configured: Collection[str],
    with_cursor: Collection[str],
    with_claim: Collection[str],
) -> frozenset[str]:
    """Return the clusters without whose consent nothing is trimmed or given up.

    As long as the log does not say who the members are, a configuration may lack one: so whoever
    ever took part counts.
    """
    if enrolled is not None:
        return frozenset(enrolled)
    return frozenset(configured) | frozenset(with_cursor) | frozenset(with_claim)
