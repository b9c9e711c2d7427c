"""When this cluster has caught up, how far it is from that, and whether a copy were quicker."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from dmq import LogUnavailableError
from haproc.replicate.member.core import Core
from haproc.replicate.queue.catch_up_estimate import CatchUpEstimate, Sample, rate_per_s, replay_s

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 10.0
SAMPLES_MIN, SAMPLES_MAX = 3, 12
"""Lately is two minutes."""
CONSIDER_EVERY_S: Final = 60.0
"""How often a copy is thought of."""
CONSIDER_SHARE: Final = 10
"""The backlog is read for that; so long as this many times what it took, it is not done again."""


class CatchUpEstimator:
    """Keeps the catch-up estimate: whether the replay takes longer than a copy of tables would.

    Looks seldom, beside the replay. While the replay is expected to take long, ``consider`` is
    given the estimate, and returns it with what a copy would take; it begins a copy if that is
    better.
    """

    def __init__(
        self, core: Core, consider: Callable[[CatchUpEstimate], Awaitable[CatchUpEstimate]]
    ) -> None:
        self._core = core
        self._consider = consider
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)
        self._consider_at_s = -math.inf
        self._considering = False
        self.catch_up_estimate = CatchUpEstimate()
        """What is to be expected, as of the last look."""

    def look(self) -> None:
        """Take in how far the replay is; for who passes here often."""
        core, now_s = self._core, asyncio.get_running_loop().time()
        if core.condition.now.caught_up or not core.condition.may_apply:
            if self._samples:
                self._samples.clear()
                self.catch_up_estimate = CatchUpEstimate()
            return
        if self._samples and now_s - self._samples[-1].at_s < LOOK_EVERY_S:
            return
        self._samples.append(Sample(now_s, core.schedule.low, core.watermarks.log_end))
        if len(self._samples) < SAMPLES_MIN:
            return
        first, last = self._samples[0], self._samples[-1]
        replay, rate = replay_s(first, last), rate_per_s(first, last)
        found = replace(self.catch_up_estimate, replay_s=replay, rate_per_s=rate)
        self.catch_up_estimate = found if found.long else CatchUpEstimate(replay, rate)
        if found.long and now_s >= self._consider_at_s and not self._considering:
            self._considering = True
            core.tasks.spawn(self._considered(found))

    async def _considered(self, found: CatchUpEstimate) -> None:
        clock = asyncio.get_running_loop().time
        began_s = clock()
        considered = await self._consider(found)
        if self._samples:  # else the replay is over
            self.catch_up_estimate = considered
        self._considering = False
        took_s = clock() - began_s
        self._consider_at_s = clock() + max(CONSIDER_EVERY_S, CONSIDER_SHARE * took_s)


FRESH_S: Final = 1.0
"""Caught up means: applied the end that the log had at most this long ago."""
STEADY_ROUNDS, STEADY_S = 3, 10.0
"""Or so many times in a row the end that it had at most this long ago: under a steady load of
statements that take a second each, a serving cluster is not closer to the end either."""
_TOLD_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """How far the replay of a queue has come."""

    applied: int = 0
    remaining: int = 0
    rate_per_s: float = 0.0
    seconds_left: float = 0.0


class CatchingUp:
    """When this cluster has caught up with the others, and how far it is from that."""

    def __init__(self, core: Core, catch_up_estimator: CatchUpEstimator) -> None:
        self._core = core
        self._catch_up_estimator = catch_up_estimator
        self._began: tuple[int, float] | None = None
        """With which cursor, and when."""

    @property
    def recovery(self) -> Recovery:
        """How far the replay has come; zeros when there is none."""
        if self._began is None:
            return Recovery()
        low, began = self._began
        schedule, log_end = self._core.schedule, self._core.watermarks.log_end
        seconds = max(asyncio.get_running_loop().time() - began, 1e-3)
        done, remaining = schedule.low - low, log_end - schedule.low
        rate = done / seconds
        return Recovery(done, remaining, rate, remaining / rate if rate else 0.0)

    async def know_the_end(self) -> None:
        """Keep what is known of the log's end fresh, for lag and recovery figures.

        Asks at a steady pace, also while the log fails: how long it has been silent is evidence.
        """
        core = self._core
        while True:
            with suppress(LogUnavailableError, TimeoutError):
                end = await core.own_log.once(core.log.end)
                core.watermarks.log_ends(end)
                core.log_state.past.observe(asyncio.get_running_loop().time(), end)
                if not core.condition.now.log_up:
                    async with asyncio.timeout(core.timeouts.probe_interval_s):
                        await core.store()  # does it take a write again?
            self._catch_up_estimator.look()
            await asyncio.sleep(core.timeouts.probe_interval_s)

    async def run(self) -> None:
        """Declare the cluster caught up whenever it has applied all that others wrote meanwhile."""
        core, clock = self._core, asyncio.get_running_loop().time
        while True:
            await core.news.until(self._behind)
            rounds, told = 0, False
            while self._behind():
                if self._began is None:
                    self._began = (core.schedule.low, clock())
                began = clock()
                # First tell, then read the end: a write that is acknowledged without this cluster
                # was appended before its origin was told, and so is below that end.
                core.tell()
                end = await core.own_log.reaching(core.log.end)
                core.watermarks.log_ends(end)
                await self._low_reaches(end)
                took_s = clock() - began
                rounds = rounds + 1 if took_s < STEADY_S else 0
                fresh = took_s < FRESH_S or rounds >= STEADY_ROUNDS
                if told and fresh and core.condition.now.cluster_up:
                    self._began = None
                    core.condition.caught_up()
                told = True  # at the next round: that it is near the end

    def _behind(self) -> bool:
        now = self._core.condition.now
        return now.cluster_up and not now.caught_up

    async def _low_reaches(self, end: int) -> None:
        """Wait until all below the end is applied, or the cluster is away."""
        core = self._core

        def reached() -> bool:
            return core.schedule.low >= end or not core.condition.now.cluster_up

        while not reached():
            with suppress(TimeoutError):
                async with asyncio.timeout(_TOLD_EVERY_S):
                    await core.news.until(reached)
                    return
            logger.info("%s recovers: %s", core.me, self.recovery)
