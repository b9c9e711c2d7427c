"""How much of the log may go. Values in, a plan out.

A record may be deleted when no member needs it any more. What a member needs begins
``records_needed`` below its *stored* cursor: where it would begin to read if it were started anew
at this moment, to know the request ids of the window, and which of its records are stale
(`haproc.replicate.log_state.definitions`). Beneath that it never reads again: what its
cursor's note remembers (intents, outcomes to be compared, claims) lies above the cursor or within
the window. A member that never stored a cursor needs everything.
An archive that is waited for needs as much below its position: it
reads on from there in the same way.

Stored cursors never go back, so a plan stays right for ever: carried out late, by a process that
slept, or by two at once, it deletes nothing that anybody needs. Only a member that is new, or back,
is not in it; one that then misses records says TOO_FAR_BEHIND.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

ARCHIVE: Final = "(archive)"
"""Who holds trimming back where it is no cluster; none may have such a name."""


@dataclass(frozen=True, slots=True)
class Need:
    """The lowest offset that a cluster still needs."""

    name: str
    offset: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What lies below ``point`` may be deleted.

    ``held_by`` is the one member that holds the trimming back: with its queue empty, or with it
    gone, ``held_records`` more could go. Empty where nobody does.
    """

    start: int
    end: int
    point: int
    held_by: str = ""
    held_records: int = 0


def needs(
    names: Collection[str], cursors: Mapping[str, int], records_needed: int
) -> tuple[Need, ...]:
    """Return what each cluster still needs, the lowest first."""
    found = (Need(name, max(0, cursors.get(name, 0) - records_needed)) for name in names)
    return tuple(sorted(found, key=lambda need: (need.offset, need.name)))


def with_archive(needed: tuple[Need, ...], position: int, records_needed: int) -> tuple[Need, ...]:
    """Return these needs and the archive's, which reads the log as a cluster does.

    ``position``: all below it is archived.
    """
    archive = Need(ARCHIVE, max(0, position - records_needed))
    return tuple(sorted((*needed, archive), key=lambda need: (need.offset, need.name)))


def plan(
    start: int, end: int, needed: tuple[Need, ...], records_needed: int, keep_from: int
) -> Plan:
    """Return what may be deleted. ``keep_from``: what an operator wants kept begins there."""
    lowest = needed[0].offset if needed else start
    point = max(start, min(lowest, keep_from))
    # What could go if everybody had applied everything.
    wanted = min(keep_from, max(0, end - records_needed))
    if not needed or lowest >= wanted:
        return Plan(start, end, point)
    without = min([need.offset for need in needed[1:]] + [wanted])
    return Plan(start, end, point, needed[0].name, max(0, without - max(start, lowest)))


def trims(me: str, ready_peers: Collection[str]) -> bool:
    """Whether this HAProc is the one that trims: of those that are READY the lowest by name."""
    return all(me < peer for peer in ready_peers)
