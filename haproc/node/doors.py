"""Builds the doors of a HAProc, also those it has while it cannot open its log; drains it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from dmq import Json, KeyValueStore, LogUnavailableError
from haproc.config.model import Config
from haproc.config.shares import Shares
from haproc.config.tls import Certificates
from haproc.doors.apps import REGISTRY, client_app, operator_app, waiting_app
from haproc.doors.clients.archive_door import ArchiveService, attest, keep
from haproc.doors.connect.calls import Boundary
from haproc.doors.connect.delivery import Deliveries
from haproc.doors.connect.errors import Key
from haproc.doors.connect.operation import DeliveryLimits
from haproc.doors.connect.server import ConnectListener
from haproc.doors.connect.service import ConnectService
from haproc.doors.http.access import Access
from haproc.doors.http.listener import Listener
from haproc.doors.operators.peers import Forwarded, add_settings
from haproc.doors.operators.ring import admit, attend, supervise
from haproc.doors.status import Readiness
from haproc.doors.ui.door import Broadcaster, show
from haproc.failure import ErrorClass, log_away, refused
from haproc.jobs.here import JobsHere
from haproc.membership.clusters import ClusterView
from haproc.membership.state import State, refusal
from haproc.metrics import Metrics
from haproc.node.member import LocalMember
from haproc.node.presence import Presence
from haproc.node.status import DriftWatch, NodeStatus, Watching, recovery_json
from haproc.replicate.catching_up import Recovery
from haproc.replicate.member.core import Core
from haproc.replicate.queue.backlog import CatchUpEstimate
from haproc.replicate.queue.facts import Fate
from haproc.route.offload import Texts
from haproc.route.service import RingService
from haproc.sessions.upkeep import Listing
from haproc.statements.registry import Registry
from haproc.statements.request_admission import RequestAdmission

logger = logging.getLogger(__name__)


class Maintenance:
    """Drains this HAProc's cluster for maintenance, and ends the drain, as operators ask.

    A drained HAProc finishes its accepted requests and refuses new ones. It stays a member of the
    ring and applies its queue while its Spark is there. The drain lasts until the operator ends it:
    a file in the state folder stores it, so a HAProc that is upgraded or restarted serves no client
    before the operator allows it.
    """

    def __init__(
        self,
        config: Config,
        core: Core,
        clusters: Callable[[], Iterable[ClusterView]],
        registry: Registry,
    ) -> None:
        self._core = core
        self._clusters = clusters
        self._registry = registry
        self._file = drained_file(config, core.me)
        if self._file.exists():
            logger.info("%s is drained (%s)", core.me, self._file)
            core.condition.drain(drained=True)

    def drain(self, cluster: str, *, force: bool) -> Mapping[str, Json]:
        """Refuse new requests of clients from now on; return the drain's status.

        Raises RequestError if ``cluster`` is not this HAProc's, or, without ``force``, if no other
        cluster serves clients.
        """
        core = self._core
        self._check_name(cluster)
        if not core.condition.now.drained:
            why = refusal(core.me, core.condition.state, self._others(), force=force)
            if why:
                raise refused(
                    ErrorClass.NOT_NOW,
                    f"{core.me} is not drained: {why}",
                    "bring another cluster into service first; --force drains it all the same",
                )
            self._keep()
            core.condition.drain(drained=True)
        return self.drain_status()

    def undrain(self, cluster: str) -> Mapping[str, Json]:
        """End the drain: serve clients again as soon as the cluster has caught up.

        Returns the drain's status; raises RequestError.
        """
        self._check_name(cluster)
        try:
            self._file.unlink(missing_ok=True)
        except OSError as error:
            raise refused(ErrorClass.NOT_NOW, f"it stays drained: {error}") from error
        self._core.condition.drain(drained=False)
        return self.drain_status()

    def drain_status(self) -> Mapping[str, Json]:
        """Return whether the cluster is drained, its state, and what clients still have open."""
        core = self._core
        return {
            "cluster": core.me,
            "state": core.condition.state.value,
            "reason": core.condition.reason,
            "drained": core.condition.now.drained,
            "under_way": self._registry.request_admission.inside,
            "unfetched": self._registry.unfetched(),
        }

    def _others(self) -> Mapping[str, str]:
        views = (view for view in self._clusters() if view.name != self._core.me)
        return {view.name: view.state if view.alive else "" for view in views}

    def _keep(self) -> None:
        """Write the file that stores the drain, durably; raises RequestError if that fails."""
        try:
            with self._file.open("wb") as file:
                file.write(b"drained by an operator\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):
                self._file.unlink(missing_ok=True)
            raise refused(
                ErrorClass.NOT_NOW, f"it is not drained: {error}", "see state_dir"
            ) from error

    def _check_name(self, cluster: str) -> None:
        if cluster != self._core.me:
            raise refused(
                ErrorClass.BAD_REQUEST, f"this is the HAProc of {self._core.me}, not of {cluster}"
            )


def drained_file(config: Config, cluster: str) -> Path:
    """Return the path of the file that exists while the cluster is drained."""
    return config.state_dir / f"drained-{cluster}"


# The doors of one HAProc: the application of each listener.


@dataclass(frozen=True, slots=True)
class NodeDoors:
    """The listeners of a HAProc, and the admission that gives clients' requests permits."""

    clients: Listener
    connect: ConnectListener | None
    """The listener for Spark Connect; None if this cluster has no such door."""
    operators: Listener
    request_admission: RequestAdmission


@dataclass(frozen=True, slots=True)
class BehindDoors:
    """The parts of a HAProc that its doors need."""

    config: Config
    member: LocalMember
    service: RingService
    status: NodeStatus
    presence: Presence
    drift: DriftWatch
    listing: Listing
    metrics: Metrics
    texts: Texts
    store: KeyValueStore
    archive: ArchiveService
    jobs: JobsHere | None
    access: Access
    certificates: Certificates | None


def build_doors(behind: BehindDoors) -> NodeDoors:
    """Build all listeners of this HAProc; none is open yet."""
    config, service, texts, jobs = behind.config, behind.service, behind.texts, behind.jobs
    status, metrics, presence = behind.status, behind.metrics, behind.presence
    core, replica, name = behind.member.core, behind.member.replica, behind.member.core.me
    access, certificates = behind.access, behind.certificates
    clients = client_app(config, name, service, status, metrics, texts, jobs, access)
    keep(clients, config, behind.archive)
    attest(clients, config, replica.operators)
    registry = clients[REGISTRY]
    operators = operator_app(
        config,
        name,
        replica,
        replica.operators,
        Maintenance(config, core, presence.views, registry),
        status,
        metrics,
        presence.door,
        Forwarded(service, registry.request_admission, texts),
        access,
    )
    admit(operators, replica.admission)
    add_settings(operators, behind.drift)
    attend(operators, behind.listing)
    supervise(operators, jobs.service if jobs else None)
    watching = Watching(
        config, presence, status, replica, core.peers.status, jobs.runner if jobs else None
    )
    show_ring(config, presence, watching, operators, clients)
    listener = Listener(
        clients,
        config.cluster(name).listen,
        shutdown_s=config.timeouts.drain_s,
        connections_max=config.limits.connections_max,
        certificates=certificates,
    )
    return NodeDoors(
        listener,
        connect_door(
            config, name, service, registry, texts, behind.store, certificates, jobs, access
        ),
        operator_door(config, name, operators, presence, certificates),
        registry.request_admission,
    )


def show_ring(
    config: Config,
    presence: Presence,
    watching: Watching,
    operators: web.Application,
    clients: web.Application | None = None,
) -> None:
    """Add the status page to the web applications of the operators' and the clients' doors.

    Clients get it only with ``ui_for_clients`` in the configuration.
    """
    broadcaster = Broadcaster(watching)
    presence.on_change = broadcaster.changed
    show(operators, broadcaster, operators=True)
    if clients is not None and config.ui_for_clients:
        show(clients, broadcaster)


def connect_door(
    config: Config,
    name: str,
    service: RingService,
    registry: Registry,
    texts: Texts,
    store: KeyValueStore,
    certificates: Certificates | None,
    jobs: JobsHere | None = None,
    access: Access | None = None,
) -> ConnectListener | None:
    """Return the listener for Spark Connect; None if the configuration gives the cluster none."""
    address = config.cluster(name).connect
    if address is None:
        return None
    admission = (access or Access(config)).clients(jobs.tokens if jobs else None)
    server_id = service.sessions.server_id
    boundary = Boundary(admission, registry.request_admission, server_id, service.explained, name)
    deliveries = Deliveries(
        store,
        DeliveryLimits(hold_bytes=config.connect.hold_bytes),
        memory=Shares.of(config.limits.requests_bytes_max, config),
        operations=Shares.of(config.limits.connections_max, config),
        goes_on=lambda key: registry.goes_on((key.user, key.operation_id)),
        take_back=partial(_taken_back, registry),
    )
    made = ConnectService(config, service, registry, texts, deliveries)
    return ConnectListener(
        made.handlers(boundary),
        address,
        config.connect,
        shutdown_s=config.timeouts.drain_s,
        serves=lambda: service.serving,
        figures=made.figures,
        end=deliveries.aclose,
        certificates=certificates,
    )


async def _taken_back(registry: Registry, key: Key) -> bool:
    """Revoke the writes of the Spark Connect operation ``key``; True if none takes effect."""
    found = await registry.take_back((key.user, key.operation_id))
    return found.fate in (Fate.CANCELED, Fate.REVOKED)


def operator_door(
    config: Config,
    name: str,
    app: web.Application,
    presence: Presence,
    certificates: Certificates | None,
) -> Listener:
    """Return the listener for peers and operators.

    Heartbeats are answered by a shortcut, without aiohttp.
    """
    return Listener(
        app,
        config.cluster(name).peer,
        shutdown_s=1.0,
        shortcut=presence.door.shortcut,
        connections_max=config.limits.connections_max,
        certificates=certificates,
    )


# A HAProc that cannot open its log: it is STARTING, reports the reason, and retries.
#
# It does not know its cursor and the log's end yet. So it serves no clients, and peers get only its
# heartbeats.


T = TypeVar("T")


class WaitingForLog:
    """The status of a HAProc that cannot open its log yet: STARTING.

    ``reason``: why the newest attempt to open it failed.
    """

    def __init__(self, config: Config, name: str, presence: Presence, reason: str) -> None:
        self._config = config
        self._name = name
        self._presence = presence
        self._drained = drained_file(config, name).exists()
        self.reason = reason

    def readiness(self) -> Readiness:
        """Return the readiness: the cluster does not serve, and why."""
        return Readiness(False, State.STARTING.value, self.reason, self._drained)

    def cluster_status(self) -> Mapping[str, Json]:
        """Return the body of ``GET /clusterStatus``."""
        return {
            "ring": self._config.ring,
            "cluster": self._name,
            "state": State.STARTING.value,
            "reason": self.reason,
            "drained": self._drained,
            "incarnation": self._presence.members.incarnation,
            "since": self._presence.members.since,
            "log_end": 0,
            "cursor": 0,
            "lag": 0,
            "recovery": recovery_json(Recovery(), CatchUpEstimate()),
            **self._presence.status(),
        }


async def wait_for_log(
    config: Config,
    name: str,
    presence: Presence,
    metrics: Metrics,
    open_log: Callable[[], Awaitable[T]],
    stop: asyncio.Event,
    access: Access,
    certificates: Certificates | None,
) -> T | None:
    """Open the log and return the result; retry while the log is unavailable.

    Meanwhile the operator door is open. Returns None if ``stop`` is set before the log is open.
    """
    try:
        return await open_log()
    except LogUnavailableError as error:
        waiting = WaitingForLog(config, name, presence, log_away(error))
    logger.warning("%s waits for its log: %s", name, waiting.reason)
    metrics.state(State.STARTING.value)
    app = waiting_app(config, name, waiting, metrics, presence.door, access)
    show_ring(config, presence, Watching(config, presence, waiting), app)
    door = operator_door(config, name, app, presence, certificates)
    await door.open()
    try:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), config.timeouts.retry_max_s)
                return None
            try:
                return await open_log()
            except LogUnavailableError as error:
                waiting.reason = log_away(error)
    finally:
        await door.aclose()
