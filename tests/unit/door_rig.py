"""A door on a real socket in front of a service with a table of canned results."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from dmq import Json
from haproc.config.model import Address, ClusterConfig, Config, Timeouts
from haproc.config.sections import Archive, Limits, User
from haproc.config.tls import Certificates, Tls, client_context, read_certificates
from haproc.doors.apps import client_app, operator_app
from haproc.doors.clients.archive_door import attest, keep
from haproc.doors.http.access import Access
from haproc.doors.http.connections import no_shortcut
from haproc.doors.http.listener import Listener
from haproc.doors.operators.peers import Forwarded, HeartbeatDoor, add_settings
from haproc.doors.operators.ring import SessionsService, admit, attend, supervise
from haproc.doors.ui.door import Broadcaster, show
from haproc.engine.interface import EngineAddress
from haproc.jobs.service import JobService
from haproc.metrics import Metrics
from haproc.statements.request_admission import RequestAdmission
from tests.unit.canned import (
    CannedAdmission,
    CannedArchive,
    CannedDrains,
    CannedMembers,
    CannedOperators,
    CannedPeers,
    CannedService,
    CannedSettings,
    CannedStatus,
)
from tests.unit.session_rig import Ring as SessionRing

STATEMENTS = "/api/2.0/sql/statements"
ARROW = {"Accept": "application/vnd.apache.arrow.stream"}
SECRET = {"Authorization": "Bearer ring-secret"}
WAIT_S = 10.0


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, with a deadline."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def make_config(
    state_dir: Path,
    *,
    limits: Limits | None = None,
    timeouts: Timeouts | None = None,
    users: tuple[User, ...] = (),
    peer_port: int = 1,
) -> Config:
    clusters = tuple(
        ClusterConfig(
            name,
            Address("127.0.0.1", 0),
            Address("127.0.0.1", peer_port),
            EngineAddress("127.0.0.1", 1),
        )
        for name in ("a", "b")
    )
    return Config(
        "demo",
        "memory:",
        clusters,
        "ring-secret",
        state_dir,
        users=users,
        limits=limits or Limits(),
        timeouts=timeouts or Timeouts(),
    )


class CannedWatched:
    """Canned data of the status page; counts how often it was requested."""

    def __init__(self) -> None:
        self.looks = 0

    def history(self) -> Mapping[str, Json]:
        return {"samples": []}

    async def snapshot(self) -> tuple[Mapping[str, Json], Mapping[str, Json]]:
        self.looks += 1
        return {"look": self.looks, "operations": [{"offset": 7}]}, {
            "operations": [{"offset": 7, "user": "ann", "tables": ["t"]}]
        }


@dataclass
class Rig:
    """One open door and a client's HTTP session."""

    service: CannedService
    status: CannedStatus
    metrics: Metrics
    app: web.Application
    listener: Listener
    http: aiohttp.ClientSession
    config: Config
    peers: CannedPeers
    operators: CannedOperators
    drains: CannedDrains
    members: CannedMembers
    admission: CannedAdmission
    access: Access
    certificates: Certificates | None

    @property
    def url(self) -> str:
        return self.config.url(Address("127.0.0.1", self.listener.port))

    async def ask(self, method: str, path: str, **sent: Any) -> tuple[int, Any]:
        """Send a request; return the status of its answer, and the answer, which is JSON."""
        async with self.http.request(method, self.url + path, **sent) as response:
            return response.status, await response.json()

    async def status_of(self, method: str, path: str, **sent: Any) -> int:
        """Send a request and return the status of its answer."""
        async with self.http.request(method, self.url + path, **sent) as response:
            return response.status

    async def post(self, status: int = 200, /, **body: Any) -> dict[str, Any]:
        """Post a statement and return its JSON answer, which must have this status."""
        return await self._answer(status, "post", STATEMENTS, json=body)

    async def get(self, path: str, status: int = 200) -> dict[str, Any]:
        return await self._answer(status, "get", path)

    async def _answer(self, status: int, *args: str, **sent: Any) -> dict[str, Any]:
        got, answer = await self.ask(*args, **sent)
        assert got == status, answer
        return dict(answer)


@contextlib.asynccontextmanager
async def door(
    tmp_path: Path,
    *,
    limits: Limits | None = None,
    users: tuple[User, ...] = (),
    operator: bool = False,
    sessions: SessionsService | None = None,
    connections_max: int = 100,
    archive: CannedArchive | None = None,
    archives: str | None = None,
    jobs: JobService | None = None,
    watched: CannedWatched | None = None,
    access: Access | None = None,
    tls: Tls | None = None,
) -> AsyncIterator[Rig]:
    """Open a client (or operator) door on a free port."""
    config = make_config(tmp_path, limits=limits, users=users)
    config = replace(config, archive=Archive(user=archives), tls=tls or Tls())
    access, certificates = access or Access(config), read_certificates(config.tls)
    service, status, peers = CannedService(), CannedStatus(), CannedPeers()
    operators, drains = CannedOperators(), CannedDrains()
    members = CannedMembers()
    admission = CannedAdmission()
    heartbeats = HeartbeatDoor(config, members)
    metrics = Metrics("demo", "a", ["READY", "DOWN"])
    if operator:
        forwarded = Forwarded(service, RequestAdmission(config, metrics))
        app = operator_app(
            config, "a", peers, operators, drains, status, metrics, heartbeats, forwarded, access
        )
        admit(app, admission)
        add_settings(app, CannedSettings())
        attend(app, sessions or SessionRing().member().listing)
        supervise(app, jobs)
        broadcaster = Broadcaster(watched or CannedWatched())
        show(app, broadcaster, operators=True)
    else:
        app = client_app(config, "a", service, status, metrics, access=access)
        keep(app, config, archive or CannedArchive())
        attest(app, config, operators)
        if watched is not None:
            show(app, Broadcaster(watched))
    listener = Listener(
        app,
        Address("127.0.0.1", 0),
        shutdown_s=1.0,
        shortcut=heartbeats.shortcut if operator else no_shortcut,
        connections_max=connections_max,
        certificates=certificates,
    )
    await listener.open()
    connector = aiohttp.TCPConnector(ssl=client_context(config.tls))
    try:
        async with aiohttp.ClientSession(connector=connector) as http:
            yield Rig(
                service,
                status,
                metrics,
                app,
                listener,
                http,
                config,
                peers,
                operators,
                drains,
                members,
                admission,
                access,
                certificates,
            )
    finally:
        await listener.aclose()
