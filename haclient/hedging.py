"""When to ask a second server the same: never for writes, and only if the first one is slow.

A hedged read goes to the next server too if no answer has come after a while: a fixed time, or the
95th percentile of the recent queries' times (then at most one query in twenty is sent twice). The
first answer counts, the other attempt is cancelled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from haclient.statements import reads_only

RECENT = 100
"""So many queries' times are kept; chosen, not measured."""
RECENT_MIN = 20
"""With fewer there is no telling what is slow."""
P95 = "p95"


@dataclass(frozen=True, slots=True)
class Hedging:
    """The setting, and the recent times it needs."""

    after: float | str | None = None
    """Seconds, `P95`, or None: never."""
    recent_s: tuple[float, ...] = ()

    def took(self, seconds: float) -> Hedging:
        """Return the state with one more query's time."""
        if self.after != P95:
            return self
        return Hedging(self.after, (*self.recent_s, seconds)[-RECENT:])

    def after_s(self) -> float | None:
        """How long to wait for the first server; None: as long as it takes."""
        if not isinstance(self.after, str):
            return self.after
        if len(self.recent_s) < RECENT_MIN:
            return None
        return sorted(self.recent_s)[len(self.recent_s) * 95 // 100]


def is_hedgeable(statement: str, options: Mapping[str, str]) -> bool:
    """Whether sending this statement twice can do no more than cost time.

    What the caller calls a query is one (the servers refuse what is not); what the caller gave
    another class is not; else the text decides.
    """
    named = options.get("operation_class")
    return reads_only(statement) if named is None else named == "query"
