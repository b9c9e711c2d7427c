"""The last minutes of a ring as one HAProc sees it, for people: lags, rates, changes of states.

Kept whether or not anybody watches: who opens the page wants to know what was before. Time is
given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dmq import Json
from haproc.membership.clusters import ClusterView
from haproc.metrics import LATENCY_BUCKETS_S, Totals

SAMPLES_MAX: Final = 180
"""One a second. Chosen: three minutes are seen at a glance, and are 30 kB."""
CHANGES_MAX: Final = 50
QUANTILES_S: Final = 60.0
"""Quantiles are those of the requests of so long a time, at most `SAMPLES_MAX` samples."""


@dataclass(frozen=True, slots=True)
class _Moment:
    at_s: float
    totals: Totals


class History:
    """See the module."""

    def __init__(self) -> None:
        self.samples: deque[dict[str, Json]] = deque(maxlen=SAMPLES_MAX)
        """``at``: Unix time in ms; ``lag``: records by cluster; the others: rates a second."""
        self.changes: deque[dict[str, Json]] = deque(maxlen=CHANGES_MAX)
        """``before`` and ``after`` are states; empty: not heard by anybody."""
        self._moments: deque[_Moment] = deque(maxlen=SAMPLES_MAX)
        self._states: dict[str, str] = {}

    def sample(
        self, lags: Mapping[str, int | None], totals: Totals, now_s: float, unix_s: float
    ) -> None:
        """Note how it is now; ``now_s`` is of a clock that never steps back."""
        before = self._moments[-1] if self._moments else _Moment(now_s, totals)
        self._moments.append(_Moment(now_s, totals))
        while now_s - self._moments[0].at_s > QUANTILES_S:
            self._moments.popleft()
        passed_s = max(now_s - before.at_s, 1e-3)

        def rate(now: int, then: int) -> float:
            return round((now - then) / passed_s, 2)

        then = before.totals.by_class
        requests = {name: rate(n, then.get(name, 0)) for name, n in totals.by_class.items()}
        took = _since(totals.within, self._moments[0].totals.within)
        self.samples.append(
            {
                "at": round(unix_s * 1000),
                "lag": dict(lags),
                "applied": rate(totals.applied, before.totals.applied),
                "requests": dict(requests),
                "failed": rate(totals.failed, before.totals.failed),
                "p50_s": quantile(took, 0.5),
                "p99_s": quantile(took, 0.99),
            }
        )

    def look(self, views: Iterable[ClusterView], at: str) -> bool:
        """Note whose state is another one; ``at`` is now, as text. Returns whether any is."""
        found = {view.name: view.state for view in views}
        changes: list[dict[str, Json]] = [
            {"at": at, "cluster": name, "before": self._states[name], "after": state}
            for name, state in found.items()
            if self._states.get(name, state) != state
        ]
        self._states = found
        self.changes.extend(changes)
        return bool(changes)


def _since(now: tuple[int, ...], then: tuple[int, ...]) -> list[int]:
    return [n - t for n, t in zip(now, then or (0,) * len(now), strict=True)]


def quantile(within: list[int], share: float) -> float | None:
    """Return the time, in seconds, in which a share of requests was answered; None: there are none.

    ``within`` are `Totals.within`. Between two bounds it is interpolated, as Prometheus does; the
    largest bound stands for all that is slower.
    """
    if not within or not within[-1]:
        return None
    rank, lower, below = share * within[-1], 0.0, 0
    for bound, count in zip(LATENCY_BUCKETS_S, within, strict=False):
        if count >= rank:
            return round(lower + (bound - lower) * (rank - below) / max(count - below, 1), 4)
        lower, below = bound, count
    return LATENCY_BUCKETS_S[-1]
