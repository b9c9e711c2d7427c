"""What HAProcs tell each other unasked: that they live, and how far they are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dmq import Json
from haproc.membership.state import State


@dataclass(frozen=True, slots=True)
class Beat:
    """A heartbeat. ``hears``: whom the sender hears. ``log_up``: the log answered it a moment ago.

    ``epoch``: one more than the log offset of the sender's claim; 0 before it has one.
    """

    cluster: str
    incarnation: str
    epoch: int
    hears: tuple[str, ...]
    log_up: bool
    state: State

    def body(self) -> dict[str, Json]:
        """Return the body of ``POST /heartbeat``."""
        return {
            "cluster": self.cluster,
            "incarnation": self.incarnation,
            "epoch": self.epoch,
            "hears": list(self.hears),
            "log_up": self.log_up,
            "state": self.state.value,
        }


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """State and progress. ``since`` is when the state began, as text (ISO 8601).

    ``lag``: how many records below ``log_end`` are not applied; None: all from ``cursor`` on.
    """

    cluster: str
    incarnation: str
    epoch: int
    state: State
    since: str
    cursor: int
    log_end: int
    lag: int | None = None

    def lag_at(self, end: int) -> int:
        """Return how many records below an end of the log it lacks, as far as it told."""
        lag = self.log_end - self.cursor if self.lag is None else self.lag
        return max(0, lag + end - self.log_end)

    def body(self) -> dict[str, Json]:
        """Return the body of ``POST /reportlag``."""
        lag: dict[str, Json] = {} if self.lag is None else {"lag": self.lag}
        return lag | {
            "cluster": self.cluster,
            "incarnation": self.incarnation,
            "epoch": self.epoch,
            "state": self.state.value,
            "since": self.since,
            "cursor": self.cursor,
            "log_end": self.log_end,
        }


@dataclass(frozen=True, slots=True)
class Own:
    """What a HAProc tells of itself; see `Beat` and `ClusterReport`.

    ``lag``: how many records below ``log_end`` are not applied. ``log_lost``: the log has not
    answered for longer than that could go unnoticed by a peer.
    """

    state: State
    since: str
    epoch: int = 0
    cursor: int = 0
    log_end: int = 0
    lag: int = 0
    log_up: bool = False
    log_lost: bool = False


def time_text(at: datetime) -> str:
    """Return a time (UTC) as reports and answers show it."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
