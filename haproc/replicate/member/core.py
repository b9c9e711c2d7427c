"""What the parts of one replica share: its schedule, its outcomes, its condition, its log.

The parts (`reader`, `applier`, `synchronous`, `divergence`) are tasks of one event loop; nothing
here is thread-safe or needs to be.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from dmq import (
    Cursor,
    Entry,
    FencedError,
    Log,
    LogError,
    LogRegressedError,
    LogUnavailableError,
    TrimmedError,
)
from haproc.config.model import Limits, Timeouts
from haproc.engine.interface import Engine
from haproc.failure import log_away
from haproc.membership.health import Health
from haproc.membership.peers import Peers
from haproc.membership.roster import Enrolled
from haproc.membership.state import HOPELESS, Condition, Divergence, State, beneath, state_of
from haproc.replicate.heard.claims import Claims
from haproc.replicate.heard.computations import Computations
from haproc.replicate.heard.definitions import Definitions
from haproc.replicate.heard.past import Past
from haproc.replicate.heard.verdicts import Verdicts
from haproc.replicate.heard.words import Words
from haproc.replicate.member.identity import Identity
from haproc.replicate.member.steps import Trace, no_trace
from haproc.replicate.member.store import Committer
from haproc.replicate.queue.coalesce import BatchLimits
from haproc.replicate.queue.outcomes import Outcomes
from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.queue.trouble import Troubles
from haproc.replicate.records.operation import (
    Claim,
    Decision,
    Failure,
    FailureReport,
    Message,
    Verdict,
    from_record,
    to_record,
)
from haproc.replicate.records.progress import Progress, to_cursor

logger = logging.getLogger(__name__)
T = TypeVar("T")
_LOG_SEEN_PROBES = 2
"""So many probes ago, at most, the log must have answered whoever vouches for it."""
_LOG_LOST_PROBES = 4
"""So many probes the log must have been silent to count as lost; more, so that a peer's word is
about a later moment, and its heartbeat has the time of a probe to come here."""
_OUT_OF_SERVICE = HOPELESS | {State.DOWN, State.STUCK, State.ISOLATED, State.STOPPED}


class Core:
    """See the module."""

    def __init__(
        self,
        identity: Identity,
        log: Log,
        engine: Engine,
        peers: Peers,
        limits: Limits,
        timeouts: Timeouts,
        *,
        guard_always: bool = False,
        trace: Trace = no_trace,
        on_state: Callable[[State, str], None] = lambda state, reason: None,
        on_applied: Callable[[str, int], None] = lambda outcome, operations: None,
        tell: Callable[[], None] = lambda: None,
        unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.identity = identity
        self.me = identity.cluster
        self.log = log
        self.engine = engine
        self.peers = peers
        self.limits = limits
        self.timeouts = timeouts
        self.guard_always = guard_always
        """See config.model.Writes."""
        self.trace = trace
        self.on_applied = on_applied
        self.tell = tell
        """Tells the peers at once how far this cluster is."""
        self.condition = Condition()
        self.outcomes = Outcomes(limits.window_records)
        self.past = Past(limits.window_records)
        self.definitions = Definitions(limits.window_records)
        """What the log, as far as it was read, defined anew."""
        self.unix_ms = unix_ms
        self.verdicts = Verdicts()
        self.computations = Computations()
        self.troubles = Troubles(timeouts.stuck_after_attempts)
        self.words = Words()
        """What the log says of operations that clusters cannot apply."""
        self.claims = Claims()
        self.enrolled = Enrolled()
        """What the log says so far of who the ring's members are."""
        self.application = identity.ring
        """What this ring's marks are known by on tables: the ring and its log. A log made anew
        begins at offset 0 again, and its marks must not be taken for the old one's."""
        self.epoch = -1
        """The offset of this incarnation's claim; -1 before it has one."""
        self.looked_ahead_to = 0
        """How far the log was read for its control records alone, see `reader`."""
        self._claims_read_to = 0
        self.schedule = self.new_schedule(Progress(), 0)
        self.store = Committer(self._commit)
        self.health = Health(
            engine,
            interval_s=timeouts.probe_interval_s,
            timeout_s=timeouts.probe_timeout_s,
            missed_max=timeouts.probes_missed,
            on_change=self._health_changed,
        )
        self.wake = asyncio.Event()
        """Something may be ready to start."""
        self.moved = asyncio.Event()
        """The low watermark, or what is known of the log, may have moved."""
        self.out_of_service = asyncio.Event()
        """Set while what is under way here will not be finished soon."""
        self.allowed = asyncio.Event()
        """Set while new statements may be started on the cluster."""
        self.log_reached_at = asyncio.get_running_loop().time()
        """When the log answered last, by the loop's clock."""
        self.verified_below = 0
        """A verification found this cluster's tables equal to the others' here."""
        self.exclusive_applied = 0
        """How many exclusive operations (DDL) this process has applied; dates sessions."""
        self.definitions_applied = 0
        """These, and what may define something anew beside others; dates what is remembered of
        definitions."""
        self._on_state = on_state
        self._state: tuple[State, str] = state_of(self.condition)
        self._tasks: set[asyncio.Task[None]] = set()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # -- condition and state ---------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state now."""
        return self._state[0]

    @property
    def reason(self) -> str:
        """Why, for people."""
        return self._state[1]

    def update(self, **changes: Any) -> None:
        """Change the condition; tells whoever listens if that changes the state."""
        self.condition = dataclasses.replace(self.condition, **changes)
        before, self._state = self._state, state_of(self.condition)
        if self.may_apply:
            self.allowed.set()
        else:
            self.allowed.clear()
        self.wake.set()
        self.moved.set()
        if self._beneath() in _OUT_OF_SERVICE:
            self.out_of_service.set()
        else:
            self.out_of_service.clear()
        if before[0] is not self._state[0]:
            logger.info("%s: %s -> %s %s", self.me, before[0], *self._state)
            self._on_state(*self._state)

    def _beneath(self) -> State:
        return beneath(self.condition) if self.state is State.DRAINING else self.state

    @property
    def takes_writes(self) -> bool:
        """Whether a write that was let in may be appended: a drain does not stop it half-way."""
        return self._beneath() is State.READY

    def drain(self, *, drained: bool) -> None:
        """An operator takes this cluster from its clients, or gives it back.

        Given back, it first makes sure that it has applied what the others wrote.
        """
        if drained != self.condition.drained:
            caught_up = self.condition.caught_up and drained
            self.update(drained=drained, caught_up=caught_up)

    def _health_changed(self) -> None:
        up = self.health.up.is_set()
        # What others wrote meanwhile comes first, before this cluster serves again.
        self.update(cluster_up=up, cluster_error=self.health.error, caught_up=False)

    @property
    def may_apply(self) -> bool:
        """Whether new statements may be started on the cluster."""
        c = self.condition
        differs = c.diverged is not None and not c.diverged.applies
        blocked = c.stopped or c.fenced_by or c.removed or c.behind or differs
        return c.started and c.cluster_up and not blocked

    @property
    def applying(self) -> bool:
        """Whether the queue goes on, as far as is known."""
        return self.may_apply and self.condition.stuck_at is None

    def tell_stuck(self) -> None:
        """Make the state say where this cluster is stuck, if it is."""
        stuck = self.troubles.stuck()
        at = stuck.version if stuck is not None else None
        if at is not None or self.condition.stuck_at is not None:
            self.update(stuck_at=at, cluster_error=stuck.error if stuck is not None else "")

    def verified(self, marker: int) -> None:
        """Everything before a marker was found equal to the others'."""
        self.verified_below = max(self.verified_below, marker)
        undecided = self.condition.undecided_at
        if undecided is not None and undecided <= marker:
            self.update(undecided_at=None)

    def diverge(self, divergence: Divergence) -> None:
        """Take the cluster out of service because it differs; `store` makes that durable."""
        self.update(diverged=self.schedule.mark_diverged(divergence))

    # -- tasks -----------------------------------------------------------------------------

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a task for as long as the replica; its failure is the replica's."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or task.exception() is None:
            return
        error = task.exception()
        if isinstance(error, LogError):
            # Reading on could skip or misread something: stop here, lose nothing, say so.
            lost = isinstance(error, TrimmedError | LogRegressedError)
            advice = (
                "rebuild this cluster from another one" if lost else "nothing beyond is applied"
            )
            self.update(behind=f"{error}; {advice}")
        elif not self._broken.done():
            assert error is not None
            self._broken.set_exception(error)

    async def broken(self) -> None:
        """Wait for ever; raises what a task died of."""
        await asyncio.shield(self._broken)

    async def cancel_tasks(self) -> None:
        """Cancel every task and wait for its end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._broken.cancel()

    async def still_mine(self) -> None:
        """Return if no other incarnation had claimed the cluster when this was called.

        Never return if one had. Asked by each lane for each new session, see `haproc.engine.lane`.
        """
        end = await self.reaching(self.log.end)
        position = max(self.epoch + 1, self.schedule.read_to, self._claims_read_to)

        async def read_on() -> list[Entry]:
            try:
                return await self.log.read(position)
            except TrimmedError:
                await self.unless_replaced()
                raise

        while position < end and (entries := await self.reaching(read_on)):
            for entry in entries:
                message = from_record(entry.record) if entry.record.kind == "claim" else None
                if isinstance(message, Claim):
                    self.claimed(entry.offset, message)
            position = entries[-1].offset + 1
        self._claims_read_to = max(self._claims_read_to, position)
        if self.condition.fenced_by is not None:
            await asyncio.get_running_loop().create_future()

    def claimed(self, offset: int, claim: Claim) -> None:
        """Note a claim read from the log; one by another incarnation fences this one."""
        self.claims.see(offset, claim.cluster)
        mine = claim.incarnation == self.identity.incarnation
        if claim.cluster == self.me and not mine and offset > self.epoch:
            self.update(fenced_by=f"incarnation {claim.incarnation}")

    async def unless_replaced(self) -> Cursor | None:
        """Return the stored cursor; never return if a later incarnation has stored it.

        Asked where that may have been long ago: its claim may lie so far back that nobody reads it
        any more, or may be trimmed away with what this one wants to read.
        """
        cursor = await self.reaching(lambda: self.log.load_cursor(self.me))
        if cursor is not None and cursor.epoch > self.epoch:
            self.update(fenced_by=f"the incarnation of offset {cursor.epoch}")
            await asyncio.get_running_loop().create_future()
        return cursor

    # -- log -------------------------------------------------------------------------------

    @property
    def heard_to(self) -> int:
        """The offset up to which all control records are known."""
        return max(self.schedule.read_to, self.looked_ahead_to)

    def new_schedule(self, progress: Progress, doubtful_below: int) -> Schedule:
        """Return a schedule that goes on from a progress."""
        limits = BatchLimits(
            self.limits.batch_operations_max,
            self.limits.batch_rows_max,
            self.limits.batch_bytes_max,
        )
        return Schedule(self.me, progress, doubtful_below, limits)

    @property
    def log_seen(self) -> bool:
        """Whether the log answered a moment ago: this HAProc can vouch for it."""
        return self._log_silent_s() <= _LOG_SEEN_PROBES * self.timeouts.probe_interval_s

    @property
    def log_lost(self) -> bool:
        """Whether the log fails, and has not answered for longer than it could unnoticed.

        It is asked for its end at every probe, so a peer that sees it now asked it after it had
        begun to fail here. That only writes fail is nothing that a cut line would explain.
        """
        lost = self._log_silent_s() > _LOG_LOST_PROBES * self.timeouts.probe_interval_s
        return lost and not self.condition.log_up

    def _log_silent_s(self) -> float:
        return asyncio.get_running_loop().time() - self.log_reached_at

    def isolate(self, why: str) -> None:
        """This HAProc is cut off (why), or is not any more (empty); then it catches up first."""
        self.update(isolated=why, caught_up=False)

    def log_answered(self) -> None:
        """The log took a write."""
        if not self.condition.log_up:
            self.update(log_up=True, log_error="")

    def log_failed(self, error: Exception) -> None:
        """The log is away."""
        self.update(log_up=False, log_error=log_away(error))

    async def reaching(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call the log until it answers; other errors than its absence are raised.

        That it can be read does not mean that it can be written: only `append` and `store` say so.
        """
        delay = self.timeouts.retry_first_s
        while True:
            try:
                return await self.once(call)
            except LogUnavailableError:
                await asyncio.sleep(delay)
                delay = min(2 * delay, self.timeouts.retry_max_s)

    async def once(self, call: Callable[[], Awaitable[T]]) -> T:
        """Call the log and note whether it answered; raises LogError."""
        try:
            result = await call()
        except LogUnavailableError as error:
            self.log_failed(error)
            raise
        self.log_reached_at = asyncio.get_running_loop().time()
        return result

    async def append(self, message: Message) -> int:
        """Append a control record; tries until the log takes it. Copies are harmless."""
        (offset,) = await self.reaching(lambda: self.log.append([to_record(message)]))
        self.log_answered()
        return offset

    async def decide(
        self, offset: int, operation_id: str, verdict: Verdict, failure: Failure | None = None
    ) -> None:
        """Append a decision on a synchronous operation; the first one in the log counts."""
        await self.append(Decision(offset, operation_id, verdict, self.me, self.epoch, failure))

    async def report(self, offset: int, failure: Failure) -> None:
        """Append that an operation met an application error here."""
        await self.append(FailureReport(offset, self.me, self.epoch, failure))

    async def _commit(self) -> None:
        await self.reaching(self._commit_once)
        self.log_answered()
        for known in (self.verdicts, self.computations, self.words):
            known.forget(self.schedule.low - self.limits.window_records)

    async def _commit_once(self) -> None:
        progress = self.schedule.progress
        claims = self.claims.before(progress.low)
        progress = dataclasses.replace(progress, claims=claims, roster=self.enrolled.offset)
        cursor = to_cursor(progress, self.epoch)
        try:
            await self.log.commit_cursor(self.me, cursor)
        except FencedError as error:
            self.update(fenced_by=str(error))
            await asyncio.get_running_loop().create_future()  # nothing may follow
