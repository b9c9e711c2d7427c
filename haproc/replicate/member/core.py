"""The objects that all parts of one member share."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dmq import Log, LogError, LogRegressedError, TrimmedError
from haproc.backoff import Backoff
from haproc.config.model import LANES_MAX, Prefixes, Timeouts
from haproc.config.sections import Limits
from haproc.engine.errors import EngineError
from haproc.engine.interface import Engine
from haproc.membership.health import Health
from haproc.membership.peers import Peers
from haproc.membership.state import Divergence, State, Undecided
from haproc.replicate.log_state.members import RingMembers
from haproc.replicate.log_state.so_far import LogState
from haproc.replicate.member.condition import Identity, MemberCondition, News
from haproc.replicate.member.own_log import OwnLog
from haproc.replicate.member.steps import Trace, no_trace
from haproc.replicate.queue.facts import Notes
from haproc.replicate.queue.outcomes import Outcomes, Troubles
from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.queue.units import BatchLimits
from haproc.replicate.records.progress import Progress

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Watermarks:
    """Numbers that say how far this member is, besides the schedule of its queue.

    Offsets, two counts, and the lag; only the lag can fall.
    """

    def __init__(self, schedule: Schedule, news: News) -> None:
        self._schedule = schedule
        self._news = news
        self._log_end = self._looked_ahead_to = self._verified_below = 0
        self._exclusive_applied = self._definitions_applied = 0

    @property
    def log_end(self) -> int:
        """The highest end of the log that this HAProc knows of."""
        return max(self._log_end, self._schedule.read_to)

    def log_ends(self, end: int) -> None:
        """Note that the log ends at ``end``, or beyond it."""
        self._log_end = max(self._log_end, end)

    @property
    def lag(self) -> int:
        """The number of records that are not applied here: unread ones, unfinished operations.

        Operations that are applied already, ahead of one that takes long, are not counted.
        """
        unread = max(0, self.log_end - self._schedule.read_to)
        return min(unread + self._schedule.pending, self.log_end - self._schedule.low)

    @property
    def known_to(self) -> int:
        """The offset below which all control records of the log are read."""
        return max(self._schedule.read_to, self._looked_ahead_to)

    def looked_ahead(self, to: int) -> None:
        """Note the offset up to which `replicate.reader` has read the control records."""
        self._looked_ahead_to = to

    async def until_known(self, to: int) -> None:
        """Wait until all control records below the offset ``to`` are read."""
        await self._news.until(lambda: self.known_to >= to)

    @property
    def verified_below(self) -> int:
        """The offset of the newest verification that found this cluster's tables equal."""
        return self._verified_below

    def verified(self, marker: int) -> None:
        """Note that the verification at ``marker`` found this cluster's tables equal."""
        self._verified_below = max(self._verified_below, marker)

    @property
    def exclusive_applied(self) -> int:
        """How many exclusive operations (DDL) this process has applied.

        A session compares it with an earlier value to see if it is outdated.
        """
        return self._exclusive_applied

    @property
    def definitions_applied(self) -> int:
        """How many operations were applied that may have redefined something.

        If it has grown, remembered definitions are outdated.
        """
        return self._definitions_applied

    def defined(self) -> None:
        """Count an operation, now applied, that may have redefined something."""
        self._definitions_applied += 1

    def applied_exclusive(self) -> None:
        """Count an exclusive operation that is now applied."""
        self._exclusive_applied += 1


# Stores progress durably; all requests during a commit share the next one.


class Committer:
    """Stores the progress by ``commit`` when that is asked for, one call at a time.

    ``commit`` takes the newest progress when it starts; it retries by itself and returns only when
    the progress is durable.
    """

    def __init__(self, commit: Callable[[], Awaitable[None]]) -> None:
        self._commit = commit
        self._waiting: list[asyncio.Future[None]] = []
        self._wanted = asyncio.Event()

    async def __call__(self) -> None:
        """Wait until the progress of this moment, or newer progress, is durable."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self._wanted.set()
        await future

    def soon(self) -> None:
        """Ask for a commit, and do not wait for it."""
        self._wanted.set()

    async def run_forever(self) -> None:
        """Call ``commit`` whenever it is asked for, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            waiting, self._waiting = self._waiting, []
            await self._commit()
            for future in waiting:
                if not future.done():
                    future.set_result(None)


class Tasks:
    """The running tasks of one member.

    If one fails, the member ends by `broken`; after a LogError the state becomes TOO_FAR_BEHIND
    instead.
    """

    def __init__(self, condition: MemberCondition) -> None:
        self._condition = condition
        self._tasks: dict[asyncio.Task[None], None] = {}  # in their order, unlike a set
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start a task that may run as long as the member."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled() or task.exception() is None:
            return
        error = task.exception()
        if isinstance(error, LogError):
            # Reading on could skip or misread records: so the cluster stops here and reports it.
            advice = "nothing beyond is applied"
            if isinstance(error, TrimmedError):
                advice = "run haproc cluster rebuild"
            elif isinstance(error, LogRegressedError):
                advice = "stop all HAProcs, and bring the newest log back"
            self._condition.fell_behind(f"{error}; {advice}")
        elif not self._broken.done():
            assert error is not None
            self._broken.set_exception(error)

    async def broken(self) -> None:
        """Wait for ever; if a task fails, raise its error (but not a LogError)."""
        await asyncio.shield(self._broken)

    async def cancel(self) -> None:
        """Cancel every task and wait for its end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._broken.cancel()


@dataclass(frozen=True, slots=True)
class Reached:
    """What a member is connected to: the log, its Spark, the other members, the time.

    ``storage``: by cluster, how this Spark reaches the files of that cluster, as
    `haproc.engine.copies.located` takes it.
    """

    log: Log
    engine: Engine
    peers: Peers
    trace: Trace = no_trace
    storage: Mapping[str, Prefixes] = field(default_factory=dict)
    unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Listeners:
    """Functions that a member calls when something changes in it.

    ``send_progress`` sends its progress to the peers at once.
    """

    on_state: Callable[[State, str], None] = lambda state, reason: None
    on_applied: Callable[[str, int], None] = lambda outcome, operations: None
    send_progress: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """The objects that all parts of one member share; each value is changed only by its owner.

    No field is assigned again. The parts (`reader`, `apply`, `agree`, `trim`) are tasks of one
    event loop; nothing here is thread-safe or needs to be.
    """

    identity: Identity
    limits: Limits
    timeouts: Timeouts
    guard_always: bool
    """True if even the first attempt of an INSERT is guarded, see `config.model.Writes`."""

    log: Log
    engine: Engine
    peers: Peers
    trace: Trace
    storage: Mapping[str, Prefixes]
    send_progress: Callable[[], None]
    """Called to send this cluster's progress to the peers at once."""
    on_applied: Callable[[str, int], None]
    unix_ms: Callable[[], int]

    news: News
    condition: MemberCondition
    tasks: Tasks
    health: Health
    members: RingMembers
    log_state: LogState
    own_log: OwnLog
    schedule: Schedule
    notes: Notes
    outcomes: Outcomes
    troubles: Troubles
    watermarks: Watermarks
    store: Committer

    @classmethod
    def of(
        cls,
        identity: Identity,
        reached: Reached,
        limits: Limits,
        timeouts: Timeouts,
        listeners: Listeners | None = None,
        *,
        guard_always: bool = False,
    ) -> Core:
        """Make the shared objects of a member, in the state before it reads the log."""
        me, listeners = identity.cluster, listeners or Listeners()
        news = News()
        condition = MemberCondition(me, news, listeners.on_state)
        log_state = LogState.nothing(limits.window_records)
        members = RingMembers(me, identity.ring_order)
        schedule, notes = (
            Schedule(me, Progress(), 0, batch_limits(limits), log_state.peer_success),
            Notes(),
        )
        own_log = OwnLog(reached.log, identity, timeouts, condition, log_state.claims, schedule)

        def progress() -> Progress:
            found = notes.beside(schedule.progress)
            claims = log_state.claims.before(found.low)
            return dataclasses.replace(found, claims=claims, roster=members.enrolled.offset)

        async def commit() -> None:
            await own_log.commit(progress)
            log_state.forget(schedule.low - limits.window_records)

        health = Health(
            lambda: reached.engine.probe(timeout_s=timeouts.probe_timeout_s),
            interval_s=timeouts.probe_interval_s,
            missed_max=timeouts.probes_missed,
            on_change=condition.cluster_answers,
        )
        return cls(
            identity=identity,
            limits=limits,
            timeouts=timeouts,
            guard_always=guard_always,
            log=reached.log,
            engine=reached.engine,
            peers=reached.peers,
            trace=reached.trace,
            storage=reached.storage,
            send_progress=listeners.send_progress,
            on_applied=listeners.on_applied,
            unix_ms=reached.unix_ms,
            news=news,
            condition=condition,
            tasks=Tasks(condition),
            health=health,
            members=members,
            log_state=log_state,
            own_log=own_log,
            schedule=schedule,
            notes=notes,
            outcomes=Outcomes(limits.window_records, reached.unix_ms),
            troubles=Troubles(timeouts.stuck_after_attempts),
            watermarks=Watermarks(schedule, news),
            store=Committer(commit),
        )

    @property
    def me(self) -> str:
        """This cluster's name."""
        return self.identity.cluster

    def backoff(self) -> Backoff:
        """Return new pauses, for an action that is repeated until it succeeds."""
        return Backoff(self.timeouts.retry_first_s, self.timeouts.retry_max_s)

    # -- asking the cluster ------------------------------------------------------------------

    async def asking(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call the cluster's Spark again and again until it succeeds; return the result."""
        pauses = self.backoff()
        while True:
            await self.health.up.wait()
            try:
                return await call()
            except EngineError as error:
                logger.warning("%s: %s", self.me, error.message)
                self.health.suspect(f"{error.error_class or error.kind}: {error.message}")
            await asyncio.sleep(pauses.pause_s())

    async def fence(self) -> None:
        """Stop statements that earlier processes left running on this cluster, in all lanes."""
        lanes = [self.engine.lane(i, self.own_log.still_mine) for i in range(LANES_MAX)]
        await self.asking(lambda: asyncio.gather(*(lane.fence() for lane in lanes)))

    # -- several parts at once ---------------------------------------------------------------

    def update_stuck(self) -> None:
        """Set in the state the operation at which this cluster is stuck, or that there is none."""
        stuck = self.troubles.stuck()
        if stuck is None:
            self.condition.stuck(None)
        else:
            self.condition.stuck(stuck.version, stuck.error)

    def diverge(self, divergence: Divergence) -> None:
        """Make the cluster DIVERGED; it stays so after a restart once `store` has been called."""
        self.condition.differs(self.notes.mark_diverged(divergence))

    def undecided(self, undecided: Undecided) -> None:
        """Note that clusters differ and none is proven wrong.

        `store` makes it survive a restart.
        """
        self.condition.undecided(self.notes.mark_undecided(undecided))

    def decided(self, marker: int) -> None:
        """Note that the verification at ``marker`` has ended the undecided difference, if it can.

        `store` makes it survive a restart.
        """
        self.condition.undecided(self.notes.decide(marker))


def batch_limits(limits: Limits) -> BatchLimits:
    """Return the limits of a statement that combines several operations."""
    return BatchLimits(
        limits.batch_operations_max,
        limits.batch_rows_max,
        limits.batch_bytes_max,
        limits.batch_arrow_bytes_max,
        limits.statement_tokens_max,
    )
