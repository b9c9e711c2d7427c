"""Takes over the cluster from earlier processes, and finds out when it has caught up."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from dmq import LogUnavailableError
from haproc.replicate.agree.admission import Admission
from haproc.replicate.agree.poison_rejection import PoisonRejection
from haproc.replicate.copying import Receiver
from haproc.replicate.copying_ahead import copied_ahead
from haproc.replicate.member.core import Core
from haproc.replicate.queue.backlog import CatchUpEstimate, Sample, rate_per_s, replay_s
from haproc.replicate.queue.outcomes import DONE_BEFORE
from haproc.replicate.reader import Reader
from haproc.replicate.records.progress import Progress, from_cursor
from haproc.replicate.restoring import Restorer

# Taking over after earlier processes of the same cluster.


T = TypeVar("T")


class Beginning:
    """Takes over this cluster for a new process.

    It claims the cluster, goes back to the stored cursor, and stops statements that an earlier
    process left running. The tables' transaction markers show which operations in doubt after a
    crash were committed.
    """

    def __init__(
        self,
        core: Core,
        reader: Reader,
        admission: Admission,
        poison_rejection: PoisonRejection,
        receiver: Receiver,
        restorer: Restorer,
    ) -> None:
        self._core = core
        self._receiver = receiver
        self._restorer = restorer
        self._reader = reader
        self._admission = admission
        self._poison_rejection = poison_rejection

    async def begin(self) -> bool:
        """Take over the cluster and begin to follow the log; return True.

        False if that is impossible; then the state says why.
        """
        core = self._core
        await core.own_log.claim()
        stored = await self._load()
        is_restore = stored.copying is not None and stored.copying.source
        makes = self._restorer.restored if is_restore else self._receiver.needed
        progress = await makes(stored)
        if progress is None:
            return False
        end = await core.own_log.reaching(core.log.end)
        if progress.low > end:
            core.condition.fell_behind(
                f"the log ends at {end}, before this cluster's cursor {progress.low}: it lost its "
                "newest records, or is an older copy: stop all HAProcs, and bring the newest one "
                "back"
            )
            return False
        core.log_state.past.observe(asyncio.get_running_loop().time(), end)
        core.schedule.resume(progress, end)
        core.schedule.copied(await copied_ahead(core, progress))
        core.notes.resume(progress)
        core.log_state.claims.restore(progress.claims)
        await self._admission.restore(progress.roster)
        await self._reader.rebuild(progress.low)
        core.condition.differs(progress.diverged)
        core.condition.undecided(progress.undecided)
        await self._poison_rejection.replay_votes(end)
        core.tasks.spawn(self._reader.run())
        core.tasks.spawn(self._when_all_known(end))
        await core.fence()
        await self._know_the_storage()
        await self._read_up_to(end)
        await self._restore(end)
        core.condition.started()
        return True

    async def _when_all_known(self, end: int) -> None:
        """When the log is read to ``end``, set the outcomes that no record shows to "applied".

        These are operations that earlier processes of this cluster had done.
        """
        await self._core.watermarks.until_known(end)
        self._core.outcomes.presumed_applied()

    async def _load(self) -> Progress:
        log = self._core.own_log
        cursor = await log.unless_replaced()
        return Progress(born=log.epoch) if cursor is None else from_cursor(cursor)

    async def _know_the_storage(self) -> None:
        """Wait until the cluster has the storage that its stored progress belongs to.

        If the progress names none yet, store the id of the storage that the cluster has.
        """
        core, known = self._core, self._core.notes.storage
        found = await core.asking(lambda: core.engine.storage(known))
        if found != known:
            core.notes.belongs_to(found)
            await core.store()

    async def _read_up_to(self, offset: int) -> None:
        """Wait until the log is read up to the offset, or the reader must stop before it."""
        core = self._core
        await core.news.until(
            lambda: (
                core.schedule.read_to >= offset or core.condition.now.behind or self._reader.full
            )
        )

    async def _restore(self, log_end: int) -> None:
        """Find by transaction markers the operations that are committed, but not stored as done.

        Stores them as done. If tables have markers beyond ``log_end``, the log is an older copy:
        then the state becomes TOO_FAR_BEHIND.
        """
        core, application = self._core, self._core.own_log.application
        read_to, waiting = core.schedule.read_to, core.schedule.unfinished()
        begun = [each.op for each in waiting if each.offset < log_end and not each.op.unmarked]
        tables = sorted({table for op in begun for table in op.writes})
        if not tables:
            core.schedule.looked_up(read_to)
            return
        applied = await core.asking(lambda: core.engine.offsets_applied(tables, application))
        if any(offset >= log_end for offset in applied.values()):
            core.condition.fell_behind(
                f"tables hold offsets that the log (end {log_end}) does not have; it is an "
                "older copy: bring the newest one back"
            )
            return
        core.schedule.looked_up(read_to)
        found = core.schedule.restore(applied)
        self._poison_rejection.applied(found)
        for offset in found:
            known = core.outcomes.at(offset)
            if known is not None and known.outcome is None:
                core.outcomes.resolve(offset, DONE_BEFORE)
        # Stored before any later operation starts, as always: a second crash may follow.
        await core.store()


# The end of a recovery: the cluster's progress to it, and whether a copy would be faster.


logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 10.0
SAMPLES_MIN, SAMPLES_MAX = 3, 12
"""The fewest and the most samples of the replay's rate: they reach back two minutes at most."""
CONSIDER_EVERY_S: Final = 60.0
"""The shortest time between two checks whether a copy would be faster than the replay."""
CONSIDER_SHARE: Final = 10
"""A check reads the whole backlog, so the pause behind it is at least so many times as long as
it."""


class CatchUpEstimator:
    """Keeps the catch-up estimate: the expected times of the replay and of a copy of tables.

    While the replay is expected to take long, ``consider`` is called now and then with the
    estimate. It returns the estimate with the time of a copy added, and begins a copy if that is
    faster.
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
        """The newest estimate; empty while no replay runs."""

    def look(self) -> None:
        """Update the estimate, unless that was done in the last LOOK_EVERY_S seconds."""
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
"""The cluster has caught up when it has applied all up to an end of the log that was read at most
so many seconds before."""
STEADY_ROUNDS, STEADY_S = 3, 10.0
"""Or when this took less than STEADY_S seconds, STEADY_ROUNDS times in a row: under a steady load
of statements that take a second each, a serving cluster is not closer to the end either."""
_PROGRESS_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Recovery:
    """The progress of a replay: records applied and remaining, records a second, seconds left."""

    applied: int = 0
    remaining: int = 0
    rate_per_s: float = 0.0
    seconds_left: float = 0.0


class CatchingUp:
    """Finds out when this cluster has caught up with the log, and measures the replay."""

    def __init__(self, core: Core, catch_up_estimator: CatchUpEstimator) -> None:
        self._core = core
        self._catch_up_estimator = catch_up_estimator
        self._began: tuple[int, float] | None = None
        """The cursor and the event loop's time when the replay began; None: there is none."""

    @property
    def recovery(self) -> Recovery:
        """The progress of the replay; all zero without one."""
        if self._began is None:
            return Recovery()
        low, began = self._began
        schedule, log_end = self._core.schedule, self._core.watermarks.log_end
        seconds = max(asyncio.get_running_loop().time() - began, 1e-3)
        done, remaining = schedule.low - low, log_end - schedule.low
        rate = done / seconds
        return Recovery(done, remaining, rate, remaining / rate if rate else 0.0)

    async def know_the_end(self) -> None:
        """Ask for the log's end every ``probe_interval_s``, until cancelled.

        It is needed for lag and the estimate, also while the log fails: how long it fails tells
        whether this HAProc is isolated.
        """
        core = self._core
        while True:
            with suppress(LogUnavailableError, TimeoutError):
                end = await core.own_log.once(core.log.end)
                core.watermarks.log_ends(end)
                core.log_state.past.observe(asyncio.get_running_loop().time(), end)
                if not core.condition.now.log_up:
                    async with asyncio.timeout(core.timeouts.probe_interval_s):
                        await core.store()  # a test: does the log take writes again?
            self._catch_up_estimator.look()
            await asyncio.sleep(core.timeouts.probe_interval_s)

    async def run_forever(self) -> None:
        """Whenever the cluster is behind and comes near the log's end, set it to caught up."""
        core, clock = self._core, asyncio.get_running_loop().time
        while True:
            await core.news.until(self._behind)
            rounds, reported = 0, False
            while self._behind():
                if self._began is None:
                    self._began = (core.schedule.low, clock())
                began = clock()
                # First report the progress, then read the end. A write that is acknowledged without
                # this cluster was appended before its origin got the report, so below the end.
                core.send_progress()
                end = await core.own_log.reaching(core.log.end)
                core.watermarks.log_ends(end)
                await self._low_reaches(end)
                took_s = clock() - began
                rounds = rounds + 1 if took_s < STEADY_S else 0
                fresh = took_s < FRESH_S or rounds >= STEADY_ROUNDS
                if reported and fresh and core.condition.now.cluster_up:
                    self._began = None
                    core.condition.caught_up()
                reported = True  # the next round reports that the cluster is near the end

    def _behind(self) -> bool:
        now = self._core.condition.now
        return now.cluster_up and not now.caught_up

    async def _low_reaches(self, end: int) -> None:
        """Wait until everything below the offset ``end`` is applied, or the cluster is DOWN."""
        core = self._core

        def reached() -> bool:
            return core.schedule.low >= end or not core.condition.now.cluster_up

        while not reached():
            with suppress(TimeoutError):
                async with asyncio.timeout(_PROGRESS_EVERY_S):
                    await core.news.until(reached)
                    return
            logger.info("%s recovers: %s", core.me, self.recovery)
