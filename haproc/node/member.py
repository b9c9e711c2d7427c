"""Builds a member of the ring, which a HAProc is: for the process, the simulation and tests.

The parts outside a member are arguments, so they may be real or simulated. The view of the ring
(`World.members`) is made before the member, because a process needs it while it waits for its log.
Once the member is built, the view reports the member's state to the peers.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dmq import KeyValueStore, Log, LogError
from haproc.classify.model import WriteConcern
from haproc.config.model import Config
from haproc.config.shares import Shares
from haproc.engine.interface import Engine
from haproc.failure import WriteOutcome, log_unavailable
from haproc.membership.members import Members
from haproc.membership.peers import Member, Peers, founders, with_own_addresses
from haproc.membership.state import Own, State
from haproc.replicate.agree.assurance import Assurance
from haproc.replicate.agree.foreign_watch import ForeignWatch
from haproc.replicate.agree.rebuilding import Mender
from haproc.replicate.archive.account import ArchivePosition
from haproc.replicate.archive.pages import Pages, Timekeepers
from haproc.replicate.member.condition import Identity
from haproc.replicate.member.core import Core, Listeners, Reached
from haproc.replicate.member.steps import Trace, no_trace
from haproc.replicate.replica import Replica
from haproc.replicate.trim import Trimmer
from haproc.replicate.writes import now_ms
from haproc.route.attempts import LogEnd
from haproc.route.freshness import Candidate
from haproc.route.reads import Counts, Forwarding, Reads, readers
from haproc.sessions.durable import Blobs, SessionStore
from haproc.sessions.sessions import Sessions, Surroundings
from haproc.sessions.upkeep import Listing, Upkeep, rebuilding


@dataclass(frozen=True, slots=True)
class World:
    """What a member is connected to: log, key-value store, Spark, peers, view of the ring."""

    log: Log
    store: KeyValueStore
    engine: Engine
    peers: Peers
    members: Members
    trace: Trace = no_trace
    unix_ms: Callable[[], int] = now_ms


@dataclass(frozen=True, slots=True)
class Observers:
    """Functions that are called when something changes in a member."""

    on_state: Callable[[State, str], None] = lambda state, reason: None
    on_members: Callable[[Sequence[Member]], None] = lambda members: None
    on_applied: Callable[[str, int], None] = lambda outcome, operations: None
    on_waited: Callable[[WriteConcern, bool, float], None] = lambda concern, met, seconds: None


@dataclass(frozen=True, slots=True, eq=False)
class LocalMember:
    """This HAProc as a member of the ring: its parts."""

    members: Members
    replica: Replica
    assurance: Assurance
    trimmer: Trimmer
    mender: Mender

    @property
    def core(self) -> Core:
        """The objects that the parts of the member share."""
        return self.replica.core

    def start(self) -> list[asyncio.Task[None]]:
        """Start the member's tasks and return them.

        A task ends only when it is cancelled, or with an error that no retry can solve.
        """
        parts = (self.replica.run(), self.trimmer.run_forever(), self.mender.run_forever())
        return [asyncio.ensure_future(part) for part in parts]

    def own(self) -> Own:
        """Return what this HAProc reports to its peers: state, cursor, lag and more.

        While tables are copied, the reported cursor is 0: the tables do not show the writes below
        the real one.
        """
        core, log, log_end = self.core, self.core.own_log, self.core.watermarks.log_end
        state, since = core.condition.state, self.members.since
        low = 0 if core.condition.now.copying else core.schedule.low
        lag = core.watermarks.lag
        return Own(state, since, log.epoch + 1, low, log_end, lag, log.seen, log.lost)

    def isolate(self, why: str) -> None:
        """Note why this HAProc is cut off from the ring; empty: it is not."""
        self.core.condition.isolate(why)


def build_member(config: Config, world: World, observers: Observers | None = None) -> LocalMember:
    """Build a member and attach it to the view of the ring; nothing runs before `start`."""
    members, callbacks = world.members, observers or Observers()

    def state_changed(state: State, reason: str) -> None:
        members.state_changed()
        callbacks.on_state(state, reason)

    def follow(roster: Sequence[Member]) -> None:
        known = with_own_addresses(roster, founders(config))
        members.follow(known)
        callbacks.on_members(known)

    order = tuple(cluster.name for cluster in config.clusters)
    storage = {cluster.name: cluster.storage for cluster in config.clusters if cluster.storage}
    core = Core.of(
        Identity(config.ring, members.cluster, members.incarnation, order, founders(config)),
        Reached(world.log, world.engine, world.peers, world.trace, storage, world.unix_ms),
        config.limits,
        config.timeouts,
        Listeners(state_changed, callbacks.on_applied, members.report_now),
        guard_always=config.writes.guard_always,
    )
    replica = Replica(core, ForeignWatch(core, world.store, config.on_foreign_write), follow)
    position = ArchivePosition(world.store)
    member = LocalMember(
        members,
        replica,
        Assurance(
            core, config.writes, config.membership, members.all_progress, callbacks.on_waited
        ),
        Trimmer(
            core,
            replica.admission,
            config.trim,
            members.ready,
            position.read_archived_offset if config.archive.holds_trimming else None,
        ),
        Mender(core, lambda: replica.operators.on_rebuild(), config.on_divergence),
    )
    core.health.is_last = lambda: not members.ready()
    members.attach(member)
    return member


def build_archive(config: Config, member: LocalMember, world: World, peers: Timekeepers) -> Pages:
    """Return the part that gives applied operations, page by page, to the archive's program."""
    return Pages(
        member.core,
        member.replica.admission.wait_read_to,
        peers,
        ArchivePosition(world.store),
        config.archive,
        config.secret,
    )


def build_sessions(
    config: Config,
    member: LocalMember,
    world: World,
    new_name: Callable[[], str] = lambda: uuid.uuid4().hex,
) -> tuple[Sessions, Upkeep, Listing]:
    """Return the clients' sessions of this member, their upkeep, and their list for operators."""
    core = member.core
    log_end = LogEnd(member.replica.read_end)

    async def caught_up() -> None:
        try:
            end = await log_end.read_log_end()
        except LogError as error:
            raise log_unavailable(
                "what the session may have written is in the log, whose end cannot be read",
                error,
                "ask the next HAProc, or again a little later",
                WriteOutcome.NOT_SENT,
            ) from error
        await member.replica.applied(end)

    around = Surroundings(
        config.ring,
        core.engine,
        config.defaults,
        config.limits,
        config.timeouts.statement_s,
        caught_up,
        lambda: asyncio.get_running_loop().time(),
    )
    store = SessionStore(world.store, core.me, new_name, world.unix_ms)
    room = Shares.of(config.limits.sessions_max, config)
    sessions = Sessions(around, store, Blobs(world.store, new_name, world.unix_ms), room)
    member.replica.computing.rebuild = rebuilding(sessions)
    idle_s = config.limits.session_idle_s
    upkeep = Upkeep(world.store, store, sessions, idle_s, world.unix_ms)
    return sessions, upkeep, Listing(world.store, store, sessions)


def build_reads(
    config: Config, member: LocalMember, forwarding: Forwarding | None, counts: Counts
) -> Reads:
    """Return the part that runs each query here or on a peer that is fresh enough for it."""

    def peers() -> list[Candidate]:
        return readers(member.members.peers())

    return Reads(member.replica, config.reads, peers, forwarding, counts)
