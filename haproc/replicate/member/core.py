"""What the parts of one member share: each value has one object that owns it, and its methods.

Nothing here is assigned to once it is made. The parts (`reader`, `apply`, `agree`, `trim`) are
tasks of one event loop; nothing here is thread-safe or needs to be.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

from dmq import Log
from haproc.backoff import Backoff
from haproc.config.limits import Limits
from haproc.config.model import Timeouts
from haproc.engine.interface import Engine
from haproc.membership.health import Health
from haproc.membership.peers import Peers
from haproc.membership.state import Divergence, State, Undecided
from haproc.replicate.log_state.members import RingMembers
from haproc.replicate.log_state.so_far import LogState
from haproc.replicate.member.condition import MemberCondition
from haproc.replicate.member.identity import Identity
from haproc.replicate.member.news import News
from haproc.replicate.member.own_log import OwnLog
from haproc.replicate.member.steps import Trace, no_trace
from haproc.replicate.member.store import Committer
from haproc.replicate.member.tasks import Tasks
from haproc.replicate.member.watermarks import Watermarks
from haproc.replicate.queue.coalesce import BatchLimits
from haproc.replicate.queue.notes import Notes
from haproc.replicate.queue.outcomes import Outcomes
from haproc.replicate.queue.schedule import Schedule
from haproc.replicate.queue.trouble import Troubles
from haproc.replicate.records.progress import Progress


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """See the module. What it is made of, what it reaches, and what its parts know."""

    identity: Identity
    limits: Limits
    timeouts: Timeouts
    guard_always: bool
    """See config.model.Writes."""

    log: Log
    engine: Engine
    peers: Peers
    trace: Trace
    tell: Callable[[], None]
    """Tells the peers at once how far this cluster is."""
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
    ) -> Core:
        """Put the parts of a member together that has read nothing of the log yet."""
        me = identity.cluster
        news = News()
        condition = MemberCondition(me, news, on_state)
        log_state = LogState.nothing(limits.window_records)
        members = RingMembers(me, identity.ring_order)
        schedule, notes = (
            Schedule(me, Progress(), 0, batch_limits(limits), log_state.peer_success),
            Notes(),
        )
        own_log = OwnLog(log, identity, timeouts, condition, log_state.claims, schedule)

        def progress() -> Progress:
            found = notes.beside(schedule.progress)
            claims = log_state.claims.before(found.low)
            return dataclasses.replace(found, claims=claims, roster=members.enrolled.offset)

        async def commit() -> None:
            await own_log.commit(progress)
            log_state.forget(schedule.low - limits.window_records)

        health = Health(
            engine,
            interval_s=timeouts.probe_interval_s,
            timeout_s=timeouts.probe_timeout_s,
            missed_max=timeouts.probes_missed,
            on_change=condition.cluster_answers,
        )
        return cls(
            identity=identity,
            limits=limits,
            timeouts=timeouts,
            guard_always=guard_always,
            log=log,
            engine=engine,
            peers=peers,
            trace=trace,
            tell=tell,
            on_applied=on_applied,
            unix_ms=unix_ms,
            news=news,
            condition=condition,
            tasks=Tasks(condition),
            health=health,
            members=members,
            log_state=log_state,
            own_log=own_log,
            schedule=schedule,
            notes=notes,
            outcomes=Outcomes(limits.window_records, unix_ms),
            troubles=Troubles(timeouts.stuck_after_attempts),
            watermarks=Watermarks(schedule, news),
            store=Committer(commit),
        )

    @property
    def me(self) -> str:
        """This cluster's name."""
        return self.identity.cluster

    def backoff(self) -> Backoff:
        """Return pauses between attempts at something that has to succeed some time."""
        return Backoff(self.timeouts.retry_first_s, self.timeouts.retry_max_s)

    # -- what concerns more than one of them -------------------------------------------------

    def tell_stuck(self) -> None:
        """Make the state say where this cluster is stuck, if it is."""
        stuck = self.troubles.stuck()
        if stuck is None:
            self.condition.stuck(None)
        else:
            self.condition.stuck(stuck.version, stuck.error)

    def diverge(self, divergence: Divergence) -> None:
        """Take the cluster out of service because it differs; `store` makes that durable."""
        self.condition.differs(self.notes.mark_diverged(divergence))

    def undecided(self, undecided: Undecided) -> None:
        """Say that clusters differ and nobody is proven wrong; `store` makes that durable."""
        self.condition.undecided(self.notes.mark_undecided(undecided))

    def decided(self, marker: int) -> None:
        """A verification says of this cluster whether it is right; `store` makes that durable."""
        self.condition.undecided(self.notes.decide(marker))


def batch_limits(limits: Limits) -> BatchLimits:
    """Return the bounds of one combined statement."""
    return BatchLimits(
        limits.batch_operations_max,
        limits.batch_rows_max,
        limits.batch_bytes_max,
        limits.batch_arrow_bytes_max,
        limits.statement_tokens_max,
    )
