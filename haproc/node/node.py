"""One HAProc: everything put together, started, watched and stopped.

The operator door is open from start to end. The client door follows the state: open while the
cluster may serve, refused otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from enum import IntEnum

from aiohttp import web

from dmq import Json, Log, LogUnavailableError
from dmq.opening import open_log
from haproc.classify.classifier import classify
from haproc.classify.names import Context
from haproc.classify.paths import Paths
from haproc.classify.rules import Rules, load_rules
from haproc.config.kafka import kafka_options
from haproc.config.model import Config, OnClusterDown
from haproc.config.shares import Shares
from haproc.doors.apps import REGISTRY, client_app, operator_app, waiting_app
from haproc.doors.clients.door import ClientDoor
from haproc.doors.http.listener import Listener
from haproc.doors.operators.forwarded import Forwarded
from haproc.doors.operators.members import admit
from haproc.doors.operators.settings import tell
from haproc.doors.status import Readiness
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.interface import Settings
from haproc.failure import log_away
from haproc.membership.http_peers import HttpPeers
from haproc.membership.members import Own
from haproc.membership.peer_doors import PeerDoors
from haproc.membership.roster import Member, founders, with_own_addresses
from haproc.membership.state import SERVING, State
from haproc.metrics import Metrics
from haproc.node.drift_watch import DriftWatch
from haproc.node.faults import trace_from
from haproc.node.maintenance import Maintenance
from haproc.node.presence import Presence, time_text
from haproc.node.waiting import WaitingForLog
from haproc.replicate.agree.assurance import Assurance
from haproc.replicate.member.core import Core
from haproc.replicate.member.identity import Identity
from haproc.replicate.replica import Replica
from haproc.replicate.trim.trimmer import Trimmer
from haproc.route.forward import HttpForwarding
from haproc.route.offload import WAITING_MAX, Offload
from haproc.route.reads import Reads
from haproc.route.service import RingService
from haproc.statements.gate import Gate

logger = logging.getLogger(__name__)

RECORD_HEADER_BYTES_MAX = 1 << 20
"""Room for an operation's headers beside a payload of the largest size."""


class ExitCode(IntEnum):
    """How a HAProc ends; 2 is kept for wrong usage."""

    STOPPED = 0
    FAILED = 1
    CLUSTER_DOWN = 4
    FENCED = 5


class Node:
    """One HAProc of the ring; `run` is its whole life."""

    def __init__(self, config: Config, name: str) -> None:
        self._config = config
        self._cluster = config.cluster(name)
        self._name = name
        self._stop = asyncio.Event()
        self._changed = asyncio.Event()
        self._since = time_text(datetime.now(UTC))
        self._incarnation = uuid.uuid4().hex[:12]
        self._metrics = Metrics(config.ring, name, [state.value for state in State])
        self._replica: Replica
        self._trimmer: Trimmer
        self._service: RingService
        self._presence: Presence
        self._drift: DriftWatch
        self._doors = PeerDoors(config, name)
        self._texts = Offload(shares=Shares.of(WAITING_MAX, config))

    def stop(self) -> None:
        """Ask for a graceful end: finish what is under way, take nothing new."""
        self._stop.set()

    async def run(self) -> ExitCode:
        """Serve until stopped; raises what no retry can mend."""
        config = self._config
        rules = load_rules(config.rules) if config.rules else Rules.builtin()
        classify("SELECT 1 FROM t", Context(), rules)  # the first one takes 0.1 s
        rules = replace(rules, paths=Paths(config.paths))
        self._presence = Presence(config, self._name, self._incarnation, self._metrics)
        try:
            log = await self._open_log()
            return ExitCode.STOPPED if log is None else await self._run(log, rules)
        finally:
            await self._presence.aclose()

    async def _run(self, log: Log, rules: Rules) -> ExitCode:
        config = self._config
        engine = SparkConnectEngine(self._cluster.spark, ring=config.ring, cluster=self._name)
        peers = HttpPeers(self._doors, self._presence.members.given_up)
        try:
            self._build(log, engine, peers, rules)
            return await self._serve()
        finally:
            await self._texts.aclose()
            await self._doors.aclose()
            await engine.aclose()
            await log.close()

    async def _open_log(self) -> Log | None:
        """Open the log, however long its keeper is away; None if asked to stop meanwhile."""
        config = self._config
        try:
            return await self._try_log()
        except LogUnavailableError as error:
            waiting = WaitingForLog(config, self._name, self._presence, log_away(error))
        logger.warning("%s waits for its log: %s", self._name, waiting.reason)
        self._metrics.state(State.STARTING.value)
        heartbeats = self._presence.door
        app = waiting_app(config, self._name, waiting, self._metrics, heartbeats)
        door = self._operator_door(app)
        await door.open()
        try:
            while True:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), config.timeouts.retry_max_s)
                    return None
                try:
                    return await self._try_log()
                except LogUnavailableError as error:
                    waiting.reason = log_away(error)
        finally:
            await door.aclose()

    def _operator_door(self, app: web.Application) -> Listener:
        return Listener(
            app,
            self._cluster.peer,
            shutdown_s=1.0,
            shortcut=self._presence.door.shortcut,
            connections_max=self._config.limits.connections_max,
        )

    async def _try_log(self) -> Log:
        config = self._config
        return await open_log(
            config.log,
            record_bytes_max=config.limits.operation_bytes_max + RECORD_HEADER_BYTES_MAX,
            kafka=kafka_options(config),
        )

    def _build(self, log: Log, engine: SparkConnectEngine, peers: HttpPeers, rules: Rules) -> None:
        config = self._config
        order = tuple(cluster.name for cluster in config.clusters)
        core = Core(
            Identity(config.ring, self._name, self._incarnation, order, founders(config)),
            log,
            engine,
            peers,
            config.limits,
            config.timeouts,
            guard_always=config.writes.guard_always,
            trace=trace_from(os.environ),
            on_state=self._state_changed,
            on_applied=self._metrics.applied,
            tell=self._presence.members.report_now,
        )
        self._replica = Replica(core)
        self._service = RingService(
            self._replica,
            engine,
            rules,
            assurance=Assurance(
                core,
                config.writes,
                config.membership,
                self._presence.places,
                self._metrics.waited,
            ),
            defaults=Settings(time_zone=config.time_zone),
            fanout_parallel=config.fanout_parallel,
            sessions=Shares.of(config.limits.sessions_max, config),
            texts=self._texts,
            reads=Reads(
                self._replica,
                config.reads,
                self._presence.readers,
                HttpForwarding(self._doors),
                self._metrics,
            ),
        )
        self._drift = DriftWatch(self._name, config.secret, engine, peers, core.health.up)
        self._trimmer = Trimmer(
            core, self._replica.admission, config.trim, self._presence.members.ready
        )

        def follow(members: Sequence[Member]) -> None:
            known = with_own_addresses(members, config.clusters)
            self._doors.follow(known)
            self._presence.follow(known)

        self._replica.admission.on_members = follow
        self._presence.describe = self._describe
        self._presence.on_isolated = core.isolate

    async def _serve(self) -> ExitCode:
        config, name = self._config, self._name
        clients = client_app(config, name, self._service, self, self._metrics, self._texts)
        replica = self._replica
        heartbeats = self._presence.door
        drains = Maintenance(config, replica.core, self._presence.views, clients[REGISTRY])
        operators = operator_app(
            config,
            name,
            replica,
            replica.operators,
            drains,
            self,
            self._metrics,
            heartbeats,
            Forwarded(self._service, clients[REGISTRY].gate, self._texts),
        )
        admit(operators, config, replica.admission)
        tell(operators, config, self._drift)
        client_door = Listener(
            clients,
            self._cluster.listen,
            shutdown_s=config.timeouts.drain_s,
            connections_max=config.limits.connections_max,
        )
        operator_door = self._operator_door(operators)
        await client_door.start()
        await operator_door.open()
        logger.info("%s listens for peers and operators on %s", name, self._cluster.peer.url)
        tasks = [
            asyncio.ensure_future(self._replica.run()),
            asyncio.ensure_future(self._follow_state(client_door)),
            asyncio.ensure_future(self._presence.ended()),
            asyncio.ensure_future(self._trimmer.run()),
            asyncio.ensure_future(self._measure()),
            asyncio.ensure_future(self._drift.run()),
            asyncio.ensure_future(self._stop.wait()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[-1] in done:
                await self._drain(client_door, clients[REGISTRY].gate)
                return ExitCode.STOPPED
            code = next(iter(done)).result()
            return code if isinstance(code, ExitCode) else ExitCode.FAILED
        finally:
            clients[REGISTRY].gate.leave_all()
            await client_door.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await client_door.aclose()
            await operator_door.aclose()

    async def _follow_state(self, listener: Listener) -> ExitCode:
        """Keep the client door as the state wants it; returns when the process must end."""
        core = self._replica.core
        again, retry_s = self._changed.set, self._config.timeouts.retry_max_s
        door = ClientDoor(self._name, listener, again, retry_s)
        while True:
            if not self._stop.is_set():  # else it is `_drain` that closes it
                await door.follow(core.state)
            if core.state is State.FENCED:
                logger.error("%s: %s", self._name, core.reason)
                return ExitCode.FENCED
            if core.state is State.DOWN and self._config.on_cluster_down is OnClusterDown.EXIT:
                logger.error("%s is down: %s", self._name, core.reason)
                return ExitCode.CLUSTER_DOWN
            await self._changed.wait()
            self._changed.clear()

    def _state_changed(self, state: State, reason: str) -> None:
        self._since = time_text(datetime.now(UTC))
        self._metrics.state(state.value)
        self._presence.members.report_soon()
        self._changed.set()

    async def _drain(self, door: Listener, gate: Gate) -> None:
        """Let what is under way come to its end, within the time given for it.

        The door stays open meanwhile: what is new is told to go elsewhere, and whoever waits finds
        that this process lives.
        """
        timeout_s = self._config.timeouts.drain_s
        self._replica.core.update(draining=True)
        await gate.wait_idle(timeout_s)
        gate.leave_all()
        await door.close()
        await self._replica.drain(timeout_s)

    async def _measure(self) -> None:
        while True:
            replica, metrics = self._replica, self._metrics
            metrics.position(replica.core.schedule.low, replica.log_end)
            recovery = replica.recovery
            metrics.recovery(recovery.applied, recovery.remaining, recovery.rate_per_s)
            metrics.sessions(len(self._service.sessions))
            metrics.undecided(replica.core.condition.undecided_at is not None)
            metrics.settings(*self._drift.findings.counts)
            self._presence.clusters()
            if (plan := self._trimmer.plan) is not None:
                metrics.trim(plan.start, plan.held_by, plan.held_records)
            await asyncio.sleep(1.0)

    # -- what the status doors ask ---------------------------------------------------------

    def readiness(self) -> Readiness:
        """Return whether the cluster serves."""
        core = self._replica.core
        serving, drained = core.state in SERVING, core.condition.drained
        return Readiness(serving, core.state.value, core.reason, drained)

    def cluster_status(self) -> Mapping[str, Json]:
        """Return the body of ``GET /clusterStatus``."""
        recovery = self._replica.recovery
        return {
            "ring": self._config.ring,
            **self._replica.status(),
            "since": self._since,
            "recovery": {
                "applied": recovery.applied,
                "remaining": recovery.remaining,
                "rate_per_s": round(recovery.rate_per_s, 1),
                "seconds_left": round(recovery.seconds_left, 1),
            },
            **self._presence.in_sync(),
            "transport": self._presence.transport(),
            "clusters": self._presence.clusters(),
            "members": dict(self._replica.admission.describe()),
            "trim": dict(self._trimmer.describe()),
            "settings": dict(self._drift.describe()),
        }

    def _describe(self) -> Own:
        """Return what is told of this HAProc, ten times a second."""
        core = self._replica.core
        return Own(
            core.state,
            self._since,
            core.epoch + 1,
            core.schedule.low,
            self._replica.log_end,
            core.log_seen,
            core.log_lost,
        )
