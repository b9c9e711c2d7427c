"""The doors for draining a cluster, under the ring's secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from aiohttp import web

from dmq import Json
from haproc.doors.http import fields
from haproc.doors.http.access import Credentials
from haproc.doors.http.bodies import json_response, read_object


class DrainService(Protocol):
    """What a HAProc does about its clients for operators; methods raise RequestError."""

    def drain(self, cluster: str, *, force: bool) -> Mapping[str, Json]:
        """Take no more requests from clients."""
        ...

    def undrain(self, cluster: str) -> Mapping[str, Json]:
        """Serve clients again."""
        ...

    def standing(self) -> Mapping[str, Json]:
        """Return how far the drain is."""
        ...


class DrainDoor:
    """The handlers."""

    def __init__(self, service: DrainService, credentials: Credentials) -> None:
        self._service = service
        self._credentials = credentials

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/ha/v1/drain", self.standing, allow_head=False),
            web.post("/ha/v1/drain", self.drain),
            web.post("/ha/v1/undrain", self.undrain),
        ]

    async def standing(self, request: web.Request) -> web.Response:
        """Tell whether the cluster is drained, and what clients still have here."""
        self._credentials.user_of(request.headers)
        return json_response(dict(self._service.standing()))

    async def drain(self, request: web.Request) -> web.Response:
        """Drain the cluster."""
        self._credentials.user_of(request.headers)
        body = await read_object(request, ("cluster", "force"))
        force = fields.flag(body, "force")
        (cluster,) = fields.needed_texts(body, ("cluster",))
        return json_response(dict(self._service.drain(cluster, force=force)))

    async def undrain(self, request: web.Request) -> web.Response:
        """Give the cluster back to its clients."""
        self._credentials.user_of(request.headers)
        body = await read_object(request, ("cluster",))
        (cluster,) = fields.needed_texts(body, ("cluster",))
        return json_response(dict(self._service.undrain(cluster)))
