"""Who the ring's members are by what the log has said. Values in, values out."""

from __future__ import annotations

from collections.abc import Collection

from haproc.membership.roster import Enrolled
from haproc.replicate.records.members import Roster


def heard(enrolled: Enrolled, offset: int, roster: Roster) -> Enrolled:
    """Return what counts after a record; hearing of one again changes nothing."""
    if offset <= enrolled.offset or roster.replaces != enrolled.offset:
        return enrolled
    return Enrolled(offset, roster.members)


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
