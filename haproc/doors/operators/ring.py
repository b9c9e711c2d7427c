"""The operator door's routes for the ring: clusters, drains, and all users' jobs and sessions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Protocol

from aiohttp import web

from dmq import Json
from haproc.config.check import NAME
from haproc.config.model import Address
from haproc.config.sections import is_client_url, is_wildcard
from haproc.doors.clients.job_door import ListedJobs
from haproc.doors.http import reading
from haproc.doors.http.bodies import json_response, read_object
from haproc.failure import ErrorClass, refused
from haproc.jobs.service import JobService

# The operators' door to add and remove clusters.


_ADDRESS: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]{1,60})\]|([A-Za-z0-9._-]{1,253})):(\d{1,5})")


class MembersService(Protocol):
    """Shows and changes the clusters of the ring; methods raise RequestError."""

    def describe(self) -> Mapping[str, Json]:
        """Return the clusters of the ring."""
        ...

    async def join(self, name: str, peer: Address, client_url: str) -> Mapping[str, Json]:
        """Add a cluster to the ring."""
        ...

    async def leave(self, name: str) -> Mapping[str, Json]:
        """Remove a cluster from the ring."""
        ...


def admit(app: web.Application, service: MembersService) -> None:
    """Add the routes for the ring's clusters to the operator door's application."""
    app.add_routes(MembersDoor(service).routes())


class MembersDoor:
    """The handlers of requests about the ring's clusters."""

    def __init__(self, service: MembersService) -> None:
        self._service = service

    def routes(self) -> list[web.RouteDef]:
        """Return these handlers' HTTP methods and paths, for aiohttp."""
        return [
            web.get("/ha/v1/members", self.members, allow_head=False),
            web.post("/ha/v1/members/{cluster}/join", self.join),
            web.post("/ha/v1/members/{cluster}/leave", self.leave),
        ]

    async def members(self, request: web.Request) -> web.Response:
        """Return the clusters of the ring."""
        return json_response(self._service.describe())

    async def join(self, request: web.Request) -> web.Response:
        """Add a cluster to the ring."""
        name = _name(request)
        names = ("peer", "client_url")
        peer, client_url = reading.needed_texts(await read_object(request, names), names)
        if not is_client_url(client_url):
            raise refused(
                ErrorClass.BAD_REQUEST, f"client_url {client_url[:80]!r} is no URL for clients"
            )
        return json_response(await self._service.join(name, _address(peer), client_url))

    async def leave(self, request: web.Request) -> web.Response:
        """Remove a cluster from the ring."""
        name = _name(request)
        await read_object(request, ())
        return json_response(await self._service.leave(name))


def _name(request: web.Request) -> str:
    name = request.match_info["cluster"]
    if not NAME.fullmatch(name):
        raise refused(ErrorClass.BAD_REQUEST, f"{name[:80]!r} is no cluster's name")
    return name


def _address(text: str) -> Address:
    found = _ADDRESS.fullmatch(text)
    if not found or not 1 <= int(found[3]) <= 65535 or is_wildcard(found[1] or found[2]):
        raise refused(
            ErrorClass.BAD_REQUEST, f"peer {text[:80]!r} is not host:port of an operator door"
        )
    return Address(found[1] or found[2], int(found[3]))


# The doors for draining a cluster.


class DrainService(Protocol):
    """Drains a HAProc, so its clients leave, for operators; methods raise RequestError."""

    def drain(self, cluster: str, *, force: bool) -> Mapping[str, Json]:
        """Refuse clients' new requests from now on; requests that were accepted may end."""
        ...

    def undrain(self, cluster: str) -> Mapping[str, Json]:
        """Accept clients' requests again."""
        ...

    def drain_status(self) -> Mapping[str, Json]:
        """Return how far the drain is."""
        ...


class DrainDoor:
    """The handlers of drains, by which a HAProc sends its clients away."""

    def __init__(self, service: DrainService) -> None:
        self._service = service

    def routes(self) -> list[web.RouteDef]:
        """Return these handlers' HTTP methods and paths, for aiohttp."""
        return [
            web.get("/ha/v1/drain", self.drain_status, allow_head=False),
            web.post("/ha/v1/drain", self.drain),
            web.post("/ha/v1/undrain", self.undrain),
        ]

    async def drain_status(self, request: web.Request) -> web.Response:
        """Return how far the drain is, and what clients still have here."""
        return json_response(self._service.drain_status())

    async def drain(self, request: web.Request) -> web.Response:
        """Refuse clients' new requests from now on."""
        body = await read_object(request, ("cluster", "force"))
        force = reading.flag(body, "force")
        (cluster,) = reading.needed_texts(body, ("cluster",))
        return json_response(self._service.drain(cluster, force=force))

    async def undrain(self, request: web.Request) -> web.Response:
        """Accept clients' requests again."""
        body = await read_object(request, ("cluster",))
        (cluster,) = reading.needed_texts(body, ("cluster",))
        return json_response(self._service.undrain(cluster))


def supervise(app: web.Application, service: JobService | None) -> None:
    """Add the routes for all users' jobs to the operator door's application."""
    every = ListedJobs("/ha/v1/jobs", service, lambda _: None, "set jobs.enabled")
    app.add_routes(every.routes())


# The operators' door to clients' sessions, to list and close them.


PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1000


class SessionsService(Protocol):
    """Shows and closes sessions of the ring; methods raise RequestError."""

    async def listed(self, start: int, limit: int) -> Mapping[str, Json]:
        """Return ``limit`` open sessions, from number ``start`` on, and how many are open."""
        ...

    async def close(self, user: str, session_id: str) -> Mapping[str, Json]:
        """Close a user's session, whichever HAProc owns it."""
        ...


def attend(app: web.Application, service: SessionsService) -> None:
    """Add the routes for all users' sessions to the operator door's application."""

    async def listed(request: web.Request) -> web.Response:
        start, limit = reading.page(request.query, PAGE_DEFAULT, PAGE_MAX)
        return json_response(await service.listed(start, limit))

    async def close(request: web.Request) -> web.Response:
        names = ("user", "session_id")
        user, session_id = reading.needed_texts(await read_object(request, names), names)
        return json_response(await service.close(user, session_id))

    app.add_routes(
        [
            web.get("/ha/v1/sessions", listed, allow_head=False),
            web.post("/ha/v1/sessions/close", close),
        ]
    )
