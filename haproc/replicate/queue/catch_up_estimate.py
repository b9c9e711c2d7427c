"""Estimates whether replaying a backlog takes longer than copying the tables that it touches.

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


@dataclass(frozen=True, slots=True)
class Sample:
    """The offsets of a cluster and of the log's end at a moment, by the loop's clock."""

    at_s: float
    low: int
    log_end: int


@dataclass(frozen=True, slots=True)
class CatchUpEstimate:
    """``replay_s``: None: at this rate it never catches up. ``copy_s``: None: it is not known."""

    replay_s: float | None = 0.0
    copy_s: float | None = None
    tables: int = 0
    bytes: int = 0

    @property
    def long(self) -> bool:
        """True if the replay takes so long that a copy may be better."""
        return self.replay_s is None or self.replay_s > WORTH_S

    @property
    def copy_is_faster(self) -> bool:
        """True if copying would take less time than the replay."""
        if self.copy_s is None or not self.long:
            return False
        return self.replay_s is None or self.copy_s < self.replay_s


def replay_s(earlier: Sample, now: Sample) -> float | None:
    """Return the time of the replay at the rate between two moments; None: for ever."""
    if now.log_end <= now.low:
        return 0.0
    gained = (earlier.log_end - earlier.low) - (now.log_end - now.low)
    if gained <= 0:
        return None
    return (now.log_end - now.low) * (now.at_s - earlier.at_s) / gained


def estimate(
    earlier: Sample,
    now: Sample,
    sizes: Collection[int | None],
    copy_bytes_per_s: int = COPY_BYTES_PER_S,
) -> CatchUpEstimate:
    """Return the estimate; ``sizes`` in bytes of the tables, None: it is not known."""
    known = [size for size in sizes if size is not None]
    whole = bool(sizes) and len(known) == len(sizes)
    copy_s = sum(known) / copy_bytes_per_s if whole else None
    return CatchUpEstimate(replay_s(earlier, now), copy_s, len(sizes), sum(known))
