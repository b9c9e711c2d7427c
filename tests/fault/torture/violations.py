"""The kinds of findings in a run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Wrong(StrEnum):
    """Kinds of broken promises, the gravest first."""

    LOST = "lost"
    """An acknowledged write is not there."""
    DOUBLED = "doubled"
    GHOST = "ghost"
    """There is what nobody wrote, or what surely failed."""
    TORN = "torn"
    """A part of a write that is all or nothing."""
    DIFFERENT = "different"
    """Two clusters hold different things."""
    ORDER = "order"
    """Writes stand in another order than the one in which they were acknowledged."""
    CURSOR = "cursor"
    """A stored cursor is beyond the data or the log."""
    STALE = "stale"
    """A read lacks what its cluster had shown or acknowledged before."""
    LINEAR = "linear"
    """Linearizable reads and the writes of a key have no order that explains them."""
    LEVEL = "level"
    """A read is older than its read level allows, or its token is too small for what it shows."""
    REPLAY = "replay"
    """A table is not what the log's operations make, one after another."""
    REFUSED = "refused"
    """A right statement was rejected, or a wrong one accepted."""
    SESSION = "session"
    """A program's session does not hold what it held."""
    ERROR = "error"
    """A program saw an error that it was to be spared."""
    ENDED = "ended"
    """A process ended that nobody had killed."""
    UNSETTLED = "unsettled"
    """The ring did not come back to rest after all faults were over."""
    UNDECIDED = "undecided"
    """The search for an order was given up."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise; the message names table, cluster and write."""

    wrong: Wrong
    message: str

    def __str__(self) -> str:
        return f"{self.wrong}: {self.message}"
