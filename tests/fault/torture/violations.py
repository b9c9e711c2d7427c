"""The kinds of findings in a run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Wrong(StrEnum):
    """Kinds of broken promises, the gravest first."""

    LOST = "lost"
    """An acknowledged write is missing."""
    DOUBLED = "doubled"
    GHOST = "ghost"
    """There is a value that nobody wrote, or whose write certainly failed."""
    TORN = "torn"
    """There is a part of a write that is all or nothing."""
    DIFFERENT = "different"
    """Two clusters have different content."""
    ORDER = "order"
    """Writes are in another order than the one in which they were acknowledged."""
    CURSOR = "cursor"
    """A stored cursor is beyond the data or the log."""
    STALE = "stale"
    """A read lacks a write that its cluster had shown or acknowledged before."""
    LINEAR = "linear"
    """Linearizable reads and the writes of a key have no order that explains them."""
    LEVEL = "level"
    """A read is older than its read level allows, or its token is too small for its content."""
    REPLAY = "replay"
    """A table is not the result of the log's operations, one after another."""
    REFUSED = "refused"
    """A correct statement was rejected, or a wrong one accepted."""
    SESSION = "session"
    """A program's session has lost some of its content."""
    ERROR = "error"
    """A program saw an error that it should not have seen."""
    ENDED = "ended"
    """A process ended although nobody had killed it."""
    UNSETTLED = "unsettled"
    """The ring did not settle after all faults were over."""
    UNDECIDED = "undecided"
    """The search for an order was given up."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise; the message names table, cluster and write."""

    wrong: Wrong
    message: str

    def __str__(self) -> str:
        return f"{self.wrong}: {self.message}"
