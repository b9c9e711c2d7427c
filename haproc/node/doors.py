"""The doors of one HAProc: which application stands behind which listener."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from aiohttp import web

from dmq import KeyValueStore
from haproc.config.model import Config
from haproc.config.shares import Shares
from haproc.doors.apps import REGISTRY, client_app, operator_app
from haproc.doors.clients.operations_door import ArchiveService, keep
from haproc.doors.clients.verify_door import attest
from haproc.doors.connect.calls import Boundary
from haproc.doors.connect.delivery import Deliveries
from haproc.doors.connect.handles import Key
from haproc.doors.connect.operation import DeliveryLimits
from haproc.doors.connect.server import ConnectListener
from haproc.doors.connect.service import ConnectService
from haproc.doors.http.access import Admission, Credentials
from haproc.doors.http.listener import Listener
from haproc.doors.operators.forwarded import Forwarded
from haproc.doors.operators.jobs import supervise
from haproc.doors.operators.members import admit
from haproc.doors.operators.sessions import attend
from haproc.doors.operators.settings import tell
from haproc.jobs.here import JobsHere
from haproc.metrics import Metrics
from haproc.node.drift_watch import DriftWatch
from haproc.node.maintenance import Maintenance
from haproc.node.member import LocalMember
from haproc.node.presence import Presence
from haproc.node.status import NodeStatus
from haproc.replicate.queue.revoked import Fate
from haproc.route.offload import Texts
from haproc.route.service import RingService
from haproc.sessions.listing import Listing
from haproc.statements.registry import Registry
from haproc.statements.request_admission import RequestAdmission


@dataclass(frozen=True, slots=True)
class NodeDoors:
    """The listeners, and the gate that tells what clients have under way."""

    clients: Listener
    connect: ConnectListener | None
    """For Spark Connect's clients."""
    operators: Listener
    request_admission: RequestAdmission


def build_doors(
    config: Config,
    member: LocalMember,
    service: RingService,
    status: NodeStatus,
    presence: Presence,
    drift: DriftWatch,
    listing: Listing,
    metrics: Metrics,
    texts: Texts,
    store: KeyValueStore,
    archive: ArchiveService,
    jobs: JobsHere | None = None,
) -> NodeDoors:
    """Return the doors of a member, closed."""
    name, replica = member.core.me, member.replica
    clients = client_app(config, name, service, status, metrics, texts, jobs)
    keep(clients, config, archive)
    attest(clients, config, replica.operators)
    registry = clients[REGISTRY]
    operators = operator_app(
        config,
        name,
        replica,
        replica.operators,
        Maintenance(config, member.core, presence.views, registry),
        status,
        metrics,
        presence.door,
        Forwarded(service, registry.request_admission, texts),
    )
    admit(operators, config, replica.admission)
    tell(operators, config, drift)
    attend(operators, config, listing)
    supervise(operators, config, jobs.service if jobs else None)
    listener = Listener(
        clients,
        config.cluster(name).listen,
        shutdown_s=config.timeouts.drain_s,
        connections_max=config.limits.connections_max,
    )
    return NodeDoors(
        listener,
        connect_door(config, name, service, registry, texts, store, jobs),
        operator_door(config, name, operators, presence),
        registry.request_admission,
    )


def connect_door(
    config: Config,
    name: str,
    service: RingService,
    registry: Registry,
    texts: Texts,
    store: KeyValueStore,
    jobs: JobsHere | None = None,
) -> ConnectListener | None:
    """Return the listener for Spark Connect's clients, if there is to be one."""
    address = config.cluster(name).connect
    if address is None:
        return None
    users, server_id = Credentials.of_users(config), service.sessions.server_id
    admission = Admission(users, jobs.tokens if jobs else None)
    boundary = Boundary(admission, registry.request_admission, server_id, service.explained)
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
    )


async def _taken_back(registry: Registry, key: Key) -> bool:
    """Take back what an operation of Spark Connect's writes; whether it was."""
    found = await registry.take_back((key.user, key.operation_id))
    return found.fate in (Fate.CANCELED, Fate.REVOKED)


def operator_door(config: Config, name: str, app: web.Application, presence: Presence) -> Listener:
    """Return the listener for peers and operators; heartbeats are answered in front of it."""
    return Listener(
        app,
        config.cluster(name).peer,
        shutdown_s=1.0,
        shortcut=presence.door.shortcut,
        connections_max=config.limits.connections_max,
    )
