"""Estimates whether replaying a backlog takes longer than copying tables that it touches.

Values in, values out. The rate is that of lately, less what is written meanwhile: a cluster that
falls behind faster than it drains never comes back.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

WORTH_S: Final = 60.0
"""A replay shorter than this needs no other way. Chosen."""
COPY_BYTES_PER_S: Final = 50 << 20
"""From one cluster to another. Chosen: half of a line of 1 Gbit/s."""
COPY_TABLE_S: Final = 3.0
"""What a table takes beside its bytes. Chosen: 8 small tables took 57 s with all around them."""
FOREVER_S: Final = 3600.0
"""What a replay counts as that comes no nearer to its end: one long statement may be the reason, so
not everything is worth a copy then. Chosen."""
FACTOR: Final = 2.0
"""A copy is made if it takes less than the replay by this factor: both are estimates. Chosen."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The offsets of a cluster and of the log's end at a moment, by the loop's clock."""

    at_s: float
    low: int
    log_end: int


@dataclass(frozen=True, slots=True)
class CatchUpEstimate:
    """``replay_s``: None: at this rate it never catches up. ``copy_s``: None: it is not known.

    ``tables`` and ``bytes``: of what would be copied. ``rate_per_s``: operations done lately.
    """

    replay_s: float | None = 0.0
    rate_per_s: float = 0.0
    copy_s: float | None = None
    tables: int = 0
    bytes: int = 0

    @property
    def long(self) -> bool:
        """True if the replay takes so long that a copy may be better."""
        return self.replay_s is None or self.replay_s > WORTH_S

    @property
    def copy_is_faster(self) -> bool:
        """Whether copying would take less time than the replay, by `FACTOR`."""
        return self.copy_s is not None and self.long and FACTOR * self.copy_s < self.bounded_s

    @property
    def bounded_s(self) -> float:
        """How long the replay takes, as far as it counts."""
        return FOREVER_S if self.replay_s is None else self.replay_s

    def __str__(self) -> str:
        replay = "never ends" if self.replay_s is None else f"takes {self.replay_s:.0f} s"
        told = f"the replay {replay} at {self.rate_per_s:.1f} operations/s"
        if self.copy_s is None:
            return told
        size = f"{self.tables} tables, {self.bytes / 2**20:.1f} MiB"
        rate = f"{COPY_BYTES_PER_S >> 20} MiB/s and {COPY_TABLE_S:g} s each"
        return f"{told}, a copy {self.copy_s:.0f} s ({size}, at {rate})"


def replay_s(earlier: Sample, now: Sample) -> float | None:
    """Return the time of the replay at the rate between two moments; None: for ever."""
    if now.log_end <= now.low:
        return 0.0
    gained = (earlier.log_end - earlier.low) - (now.log_end - now.low)
    if gained <= 0:
        return None
    return (now.log_end - now.low) * (now.at_s - earlier.at_s) / gained


def rate_per_s(earlier: Sample, now: Sample) -> float:
    """Return how many operations were done between two moments, each second."""
    return (now.low - earlier.low) / (now.at_s - earlier.at_s)


def copy_s(sizes: Collection[int]) -> float:
    """Return how long it takes to copy tables of so many bytes."""
    return COPY_TABLE_S * len(sizes) + sum(sizes) / COPY_BYTES_PER_S
