"""What became of an operation that somebody wanted taken back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Fate(StrEnum):
    """What became of an operation that somebody wanted taken back."""

    REVOKED = "revoked"
    """It has no effect on any cluster, now or later."""
    COMMITTED = "committed"
    """It was too late: a cluster has run it to its end, so it stands on all of them."""
    REJECTED = "rejected"
    """It was too late: it was rejected for another reason, or met an error."""
    UNDECIDED = "undecided"
    """Nobody has applied it as far as is known, but not all clusters have answered: it goes on."""


@dataclass(frozen=True, slots=True)
class Revoked:
    """``offset``: of the operation; ``text``: what there is to say beside the fate."""

    offset: int
    fate: Fate
    text: str = ""
