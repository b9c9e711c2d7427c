"""Builds, starts, watches and stops one HAProc; for tests it can fail at a chosen step."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import IntEnum
from typing import Any

from dmq import KeyValueStore, Log, open_both
from haproc.classify.allowed import Paths
from haproc.classify.classifier import classify
from haproc.classify.names import Context
from haproc.classify.rules import Rules, load_rules
from haproc.config.model import Config, OnClusterDown
from haproc.config.sections import is_loopback
from haproc.config.services import kafka_options
from haproc.config.shares import Shares
from haproc.config.tls import Certificates, read_certificates
from haproc.doors.clients.door import ClientDoor
from haproc.doors.http.access import ANONYMOUS, Access
from haproc.engine.confs import wanted
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.interface import Engine
from haproc.jobs.here import JobsHere, build_jobs, check_jobs
from haproc.jobs.model import leads
from haproc.jobs.request import Upload, check_program
from haproc.membership.connections import HttpPeers, PeerDoors
from haproc.membership.state import SERVING, State
from haproc.metrics import Metrics
from haproc.node.doors import BehindDoors, NodeDoors, build_doors, wait_for_log
from haproc.node.member import (
    LocalMember,
    Observers,
    World,
    build_archive,
    build_member,
    build_reads,
    build_sessions,
)
from haproc.node.presence import Presence
from haproc.node.status import DriftWatch, NodeStatus
from haproc.replicate.member.steps import Step, Trace, no_trace
from haproc.route.forward import HttpForwarding
from haproc.route.offload import WAITING_MAX, Offload
from haproc.route.optimizing import Optimizing
from haproc.route.parts import Resources
from haproc.route.service import RingService
from haproc.sessions.sessions import Sessions

# Faults on demand, for tests that kill real processes at an exact moment.
#
# ``HAPROC_FAULT=apply.after:2:kill`` sends this process SIGKILL when it reaches the step for the
# second time; ``stop`` sends SIGSTOP instead. Without the variable there are no faults.


VARIABLE = "HAPROC_FAULT"
_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class FaultError(ValueError):
    """The value of the environment variable HAPROC_FAULT is not valid."""


def trace_from(environ: Mapping[str, str]) -> Trace:
    """Return the trace function that kills or stops this process as HAPROC_FAULT says.

    Without that variable it does nothing. Raises FaultError.
    """
    text = environ.get(VARIABLE, "")
    if not text:
        return no_trace
    try:
        name, count, action = text.split(":")
        step, left, number = Step(name), int(count), _SIGNALS[action]
        if left < 1:
            raise ValueError(count)
    except (ValueError, KeyError) as error:
        steps = ", ".join(step.value for step in Step)
        raise FaultError(
            f"{VARIABLE}={text!r} is not STEP:COUNT:ACTION with STEP one of {steps} and ACTION "
            "kill or stop"
        ) from error

    async def trace(reached: Step) -> None:
        nonlocal left
        if reached is step:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), number)

    return trace


# One HAProc as a whole: it is built, started, watched and stopped.
#
# The operator door is open from start to end. The client door is open while the cluster may serve,
# and closed otherwise.


logger = logging.getLogger(__name__)

RECORD_HEADER_BYTES_MAX = 1 << 20
"""Bytes that a record may have in addition to ``limits.operation_bytes_max``, for its headers."""


class ExitCode(IntEnum):
    """The exit code of a HAProc process; 2 is not used here: it means a wrong command line."""

    STOPPED = 0
    FAILED = 1
    CLUSTER_DOWN = 4
    FENCED = 5
    AGAIN = 6
    """Not an end: the HAProc must be built and run again in the same process."""


def spark_engine(config: Config, name: str) -> Engine:
    """Return the engine of the cluster's Spark; called in a running event loop."""
    return SparkConnectEngine(
        config.cluster(name).spark, ring=config.ring, cluster=name, paths=config.paths
    )


def open_doors(config: Config, name: str) -> list[str]:
    """Return a warning for each door without TLS that other machines can reach."""
    if config.tls.enabled:
        return []
    cluster = config.cluster(name)
    doors = {"listen": cluster.listen, "peer": cluster.peer, "connect": cluster.connect}
    return [
        f"{name}: {key} ({door}) is reached from outside this machine without TLS, so tokens cross "
        "the network in clear: set tls.certificate_file and tls.key_file"
        for key, door in doors.items()
        if door is not None and not is_loopback(door.host)
    ]


class Node:
    """One HAProc of the ring; `run` builds, runs and ends it.

    ``certificates``: those of ``config.tls`` if the caller has read them already; None: they are
    read here.
    """

    def __init__(
        self,
        config: Config,
        name: str,
        engine: Callable[[Config, str], Engine] = spark_engine,
        access: Access | None = None,
        certificates: Certificates | None = None,
    ) -> None:
        self._config = config
        self._certificates = certificates or read_certificates(config.tls)
        self._name = name
        self._engine = engine
        self._stop = asyncio.Event()
        self._again = asyncio.Event()
        self._changed = asyncio.Event()
        self._metrics = Metrics(config.ring, name, [state.value for state in State])
        self._metrics.state(State.STARTING.value)  # until the state changes
        self._peers = PeerDoors(config, name, self._certificates)
        self._access = access or Access(config)
        self._texts = Offload(shares=Shares.of(WAITING_MAX, config))

    def stop(self) -> None:
        """Ask for a graceful end: running requests are finished, new ones refused."""
        self._stop.set()

    async def run(self) -> ExitCode:
        """Run the HAProc until it ends; raises errors that no retry can solve."""
        config, name = self._config, self._name
        rules = load_rules(config.rules) if config.rules else Rules.builtin()
        classify("SELECT 1 FROM t", Context(), rules)  # the first call takes 0.1 s
        rules = replace(rules, paths=Paths(config.paths))
        await check_jobs(config, name)
        for warning in open_doors(config, name):
            logger.warning("%s", warning)
        tls = self._certificates
        presence = Presence(config, name, uuid.uuid4().hex[:12], self._metrics, tls)
        try:
            opened = await wait_for_log(
                config, name, presence, self._metrics, self._open, self._stop, self._access, tls
            )
            return ExitCode.STOPPED if opened is None else await self._run(*opened, rules, presence)
        finally:
            await presence.aclose()

    async def _open(self) -> tuple[Log, KeyValueStore]:
        """Open the log and the key-value store beside it; if one fails, neither stays open."""
        config = self._config
        return await open_both(
            config.log,
            record_bytes_max=config.limits.operation_bytes_max + RECORD_HEADER_BYTES_MAX,
            kafka=kafka_options(config),
        )

    async def _run(
        self, log: Log, store: KeyValueStore, rules: Rules, presence: Presence
    ) -> ExitCode:
        engine = self._engine(self._config, self._name)
        try:
            return await self._serve(log, store, engine, rules, presence)
        finally:
            await self._texts.aclose()
            await self._peers.aclose()
            await engine.aclose()
            await store.close()
            await log.close()

    async def _serve(
        self, log: Log, store: KeyValueStore, engine: Engine, rules: Rules, presence: Presence
    ) -> ExitCode:
        config, name, metrics = self._config, self._name, self._metrics
        peers = HttpPeers(self._peers, presence.members.is_gone)
        trace, members = trace_from(os.environ), presence.members
        world = World(log, store, engine, peers, members, trace)
        member = build_member(
            config,
            world,
            Observers(self._state_changed, self._peers.follow, metrics.applied, metrics.waited),
        )
        member.replica.operators.on_rebuild = self._again.set
        reads = build_reads(config, member, HttpForwarding(self._peers), metrics)
        sessions, upkeep, listing = build_sessions(config, member, world)
        given = Resources(config, member.replica, engine, rules, member.assurance, reads, sessions)
        service = RingService(replace(given, texts=self._texts, counts=metrics))
        metrics.planning(lambda: service.planning.waiting)
        jobs = self._jobs(member, world, sessions)
        begins = wanted(config.defaults, None)
        drift = DriftWatch(name, config.secret, engine, peers, member.core.health.up, begins)
        status = NodeStatus(config, member, service, presence, drift, upkeep)
        doors = build_doors(
            BehindDoors(
                config,
                member,
                service,
                status,
                presence,
                drift,
                listing,
                metrics,
                self._texts,
                store,
                build_archive(config, member, world, peers),
                jobs,
                self._access,
                self._certificates,
            )
        )
        status.behind(lambda: doors.clients.is_open)
        if doors.connect is not None:
            status.reports_connect(doors.connect.figures)
        if jobs is not None:
            status.counts(jobs.runner)
        await doors.clients.start()
        await doors.operators.open()
        logger.info("%s listens for peers and operators on %s", name, doors.operators.url)
        tasks: list[asyncio.Future[Any]] = [
            *member.start(),
            asyncio.ensure_future(self._follow_state(member, doors)),
            asyncio.ensure_future(presence.ended()),
            asyncio.ensure_future(status.measure(metrics)),
            asyncio.ensure_future(drift.run_forever()),
            asyncio.ensure_future(upkeep.run_forever()),
        ]
        tasks.append(asyncio.ensure_future(self._optimizing(service, member, world).run_forever()))
        if jobs is not None:
            tasks += [
                asyncio.ensure_future(part.run_forever()) for part in (jobs.runner, jobs.scheduler)
            ]
        try:
            return await self._until_stopped(tasks, member, doors, jobs)
        finally:
            if jobs is not None:
                await jobs.runner.aclose()
            doors.request_admission.leave_all()
            await doors.clients.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await doors.clients.aclose()
            if doors.connect is not None:
                await doors.connect.aclose()
            await doors.operators.aclose()

    def _jobs(self, member: LocalMember, world: World, sessions: Sessions) -> JobsHere | None:
        return build_jobs(
            self._config,
            world.members,
            member.replica,
            world.store,
            sessions.close,
            world.unix_ms,
            ANONYMOUS,
            self._check_program,
            self._certificates,
        )

    async def _check_program(self, user: str, upload: Upload) -> None:
        await self._texts.work_on_text(user, len(upload.data), check_program, upload)

    def _optimizing(self, service: RingService, member: LocalMember, world: World) -> Optimizing:
        members = world.members

        def leading() -> bool:
            return members.own().state is State.READY and leads(self._name, members.ready())

        written = member.core.log_state.written
        return Optimizing(
            self._config.optimize,
            service.execute,
            lambda: written.newest,
            leading,
            world.unix_ms,
            self._config.timeouts.apply_s,
        )

    async def _until_stopped(
        self,
        tasks: list[asyncio.Future[Any]],
        member: LocalMember,
        doors: NodeDoors,
        jobs: JobsHere | None,
    ) -> ExitCode:
        tasks.append(stop := asyncio.ensure_future(self._stop.wait()))
        tasks.append(again := asyncio.ensure_future(self._again.wait()))
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if stop in done or again in done:
            if jobs is not None:
                await jobs.runner.aclose()
            await self._drain(member, doors)
            return ExitCode.STOPPED if stop in done else ExitCode.AGAIN
        code = next(iter(done)).result()
        return code if isinstance(code, ExitCode) else ExitCode.FAILED

    async def _follow_state(self, member: LocalMember, doors: NodeDoors) -> ExitCode:
        """Open and close the doors of clients as the state demands.

        Returns when the process must end: FENCED, or DOWN with ``on_cluster_down: exit``.
        """
        core = member.core
        again, retry_s = self._changed.set, self._config.timeouts.retry_max_s
        follows = []
        if doors.connect is not None:
            # The clients of this door go to another HAProc only once it is closed.
            follows.append(ClientDoor(self._name, doors.connect, again, retry_s, SERVING))
        # Last: a client that finds this door open, or learns that the cluster is ready, finds the
        # door of Spark Connect open, too.
        follows.append(ClientDoor(self._name, doors.clients, again, retry_s))
        while True:
            if not self._stop.is_set():  # later `_drain` closes them
                for door in follows:
                    await door.follow(core.condition.state)
            if core.condition.state is State.FENCED:
                logger.error("%s: %s", self._name, core.condition.reason)
                return ExitCode.FENCED
            exits = self._config.on_cluster_down is OnClusterDown.EXIT
            if core.condition.state is State.DOWN and exits:
                logger.error("%s is down: %s", self._name, core.condition.reason)
                return ExitCode.CLUSTER_DOWN
            await self._changed.wait()
            self._changed.clear()

    def _state_changed(self, state: State, reason: str) -> None:
        self._metrics.state(state.value)
        self._changed.set()

    async def _drain(self, member: LocalMember, doors: NodeDoors) -> None:
        """Let accepted requests end before the process ends, for at most ``drain_s``.

        The client door stays open meanwhile: new requests get an error that names the state, and
        waiting clients see that this process is alive. The door of Spark Connect closes at once.
        """
        timeout_s = self._config.timeouts.drain_s
        member.core.condition.stopping()
        if doors.connect is not None:
            await doors.connect.close()
        await doors.request_admission.wait_idle(timeout_s)
        doors.request_admission.leave_all()
        await doors.clients.close()
        await member.replica.drain(timeout_s)
