"""What became of an operation that somebody wanted taken back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Fate(StrEnum):
    """What became of an operation that somebody wanted taken back.

    For clients, who do not know whether their statement is one, also: of a statement.
    """

    CANCELED = "canceled"
    """It was stopped before anything of it was in the log."""
    ENDED = "ended"
    """It was over: its state says what came of it."""

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

    offset: int | None
    fate: Fate
    text: str = ""
