"""The doors of one HAProc: which application stands behind which listener."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from haproc.config.model import Config
from haproc.doors.apps import REGISTRY, client_app, operator_app
from haproc.doors.http.listener import Listener
from haproc.doors.operators.forwarded import Forwarded
from haproc.doors.operators.members import admit
from haproc.doors.operators.settings import tell
from haproc.metrics import Metrics
from haproc.node.drift_watch import DriftWatch
from haproc.node.maintenance import Maintenance
from haproc.node.member import LocalMember
from haproc.node.presence import Presence
from haproc.node.status import Status
from haproc.route.offload import Texts
from haproc.route.service import RingService
from haproc.statements.gate import Gate


@dataclass(frozen=True, slots=True)
class Doors:
    """Both listeners, and the gate that tells what clients have under way."""

    clients: Listener
    operators: Listener
    gate: Gate


def build_doors(
    config: Config,
    member: LocalMember,
    service: RingService,
    status: Status,
    presence: Presence,
    drift: DriftWatch,
    metrics: Metrics,
    texts: Texts,
) -> Doors:
    """Return the doors of a member, closed."""
    name, replica = member.core.me, member.replica
    clients = client_app(config, name, service, status, metrics, texts)
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
        Forwarded(service, registry.gate, texts),
    )
    admit(operators, config, replica.admission)
    tell(operators, config, drift)
    listener = Listener(
        clients,
        config.cluster(name).listen,
        shutdown_s=config.timeouts.drain_s,
        connections_max=config.limits.connections_max,
    )
    return Doors(listener, operator_door(config, name, operators, presence), registry.gate)


def operator_door(config: Config, name: str, app: web.Application, presence: Presence) -> Listener:
    """Return the listener for peers and operators; heartbeats are answered in front of it."""
    return Listener(
        app,
        config.cluster(name).peer,
        shutdown_s=1.0,
        shortcut=presence.door.shortcut,
        connections_max=config.limits.connections_max,
    )
