"""Whether a peer is heard, from the times at which its heartbeats came.

The last ``window_s`` are cut into intervals of the length at which heartbeats are sent, the newest
one ending now. Each either holds a heartbeat or missed one. At a check the window is walked from
its oldest interval to its newest: ``missed_in_a_row`` empty ones at its end mean that the peer is
not heard; ``received_in_a_row`` full ones with no such silence after them mean that it is;
otherwise it is as it was at the last check.

HAProcs tick together, so a heartbeat is mostly a moment short of whole intervals old when it is
judged. Therefore the newest interval ends a little after now (`_EARLY_INTERVALS`): three intervals
after the last heartbeat the check finds three that are empty, not two.

Nobody is judged for a time in which nobody listened: when checks stop for a while (this process
was frozen, or its event loop was busy), the intervals before the next one count as not watched.
Time is an argument; it never goes back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from haproc.config.model import Membership

_EARLY_INTERVALS = 0.2
"""Chosen: of the usual 100 ms, more than a heartbeat takes to arrive on a busy machine."""


class Detector:
    """One peer's heartbeats and the judgement on them; begins with a peer that is not heard."""

    __slots__ = ("_heard_at", "_rules", "_watched_since", "up")

    def __init__(self, rules: Membership, now_s: float) -> None:
        self._rules = rules
        self._heard_at: deque[float] = deque(maxlen=4 * _intervals(rules))
        self._watched_since = now_s
        self.up = False
        """Whether the peer is heard, by the last check."""

    def heard(self, now_s: float) -> None:
        """A heartbeat came."""
        self._heard_at.append(now_s)

    def resumed(self, now_s: float) -> None:
        """Nobody listened for a while until now."""
        self._watched_since = now_s

    def check(self, now_s: float) -> bool:
        """Walk the window; return whether the peer is heard."""
        if self.hears(now_s):
            return True  # the walk could say nothing else, and is dearer
        ahead_s = now_s + _EARLY_INTERVALS * self._rules.heartbeat_interval_s
        was_up = self.up
        self.up = judged(was_up, self._heard_at, self._watched_since, ahead_s, self._rules)
        if was_up and not self.up:
            # What came before the silence is no sign that it is over; the last tells its length.
            last = self._heard_at[-1]
            self._heard_at.clear()
            self._heard_at.append(last)
        return self.up

    def hears(self, now_s: float) -> bool:
        """Return whether the peer is heard this very moment: fresher than the last check."""
        rules = self._rules
        limit_s = (rules.missed_in_a_row - _EARLY_INTERVALS) * rules.heartbeat_interval_s
        return self.up and self.silent_s(now_s) < limit_s

    def watched_s(self, now_s: float) -> float:
        """Return for how long somebody has listened without a break."""
        return now_s - self._watched_since

    def silent_s(self, now_s: float) -> float:
        """Return for how long the peer has been silent while somebody listened."""
        last = self._heard_at[-1] if self._heard_at else self._watched_since
        return now_s - max(last, self._watched_since)


def judged(
    up: bool, heard_at: Iterable[float], watched_since: float, now_s: float, rules: Membership
) -> bool:
    """Return whether a peer is heard, given whether it was and when heartbeats came."""
    interval_s, count = rules.heartbeat_interval_s, _intervals(rules)
    full = bytearray(count)
    for at in heard_at:
        age = int(max(0.0, now_s - at) / interval_s)
        if age < count:
            full[age] = 1
    missed = received = best = 0
    for age in range(count - 1, -1, -1):
        if full[age]:
            missed, received = 0, received + 1
            best = max(best, received)
        elif (age + 1) * interval_s <= now_s - watched_since + interval_s * 1e-6:
            missed, received = missed + 1, 0
            if missed >= rules.missed_in_a_row:
                best = 0
    if missed >= rules.missed_in_a_row:
        return False
    return up or best >= rules.received_in_a_row


def _intervals(rules: Membership) -> int:
    return max(1, round(rules.window_s / rules.heartbeat_interval_s))
