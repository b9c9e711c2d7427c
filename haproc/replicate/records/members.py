"""Records that say which clusters the ring has.

``members``: an operator has added a cluster, or removed one for good; or nothing changed, and it is
said anew before the record that said it is trimmed away.

Each of them holds all members there are after it, so the newest is enough. And each names the
record that it *replaces*: it counts only if that is the one that counted before it. So of two
changes made at the same time the first in the log counts, and the other is void, on every HAProc
alike; the one that appended that one sees it and makes the change anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from haproc.membership.peers import Member


class Change(StrEnum):
    """What a record says."""

    JOIN = "join"
    LEAVE = "leave"
    MEMBERS = "members"
    """Nothing changed."""


@dataclass(frozen=True, slots=True)
class Roster:
    """``members``: all there are from here on. ``replaces``: offset of the record before, or -1.

    ``cluster``: who joins or leaves, else empty. ``by``: the HAProc that was asked.
    """

    change: Change
    cluster: str
    members: tuple[Member, ...]
    replaces: int
    by: str

    def __post_init__(self) -> None:
        if len({each.name for each in self.members}) != len(self.members):
            raise ValueError("a cluster is named twice")
