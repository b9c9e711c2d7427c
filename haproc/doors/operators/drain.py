"""The doors for draining a cluster, under the ring's secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from aiohttp import web

from dmq import Json
from haproc.doors.http import fields
from haproc.doors.http.context import Credentials, check_json, json_response, read_body
from haproc.failure import ErrorClass, refused

_BODY_BYTES_MAX: Final = 64 << 10


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
        body = await _body(request, ("cluster", "force"))
        force = body.get("force", False)
        if not isinstance(force, bool):
            raise refused(ErrorClass.BAD_REQUEST, "force must be true or false")
        return json_response(dict(self._service.drain(_cluster(body), force=force)))

    async def undrain(self, request: web.Request) -> web.Response:
        """Give the cluster back to its clients."""
        self._credentials.user_of(request.headers)
        body = await _body(request, ("cluster",))
        return json_response(dict(self._service.undrain(_cluster(body))))


async def _body(request: web.Request, names: tuple[str, ...]) -> dict[str, Any]:
    check_json(request)
    body = fields.parse_object(await read_body(request, _BODY_BYTES_MAX))
    fields.no_unknown(body, names)
    return body


def _cluster(body: dict[str, Any]) -> str:
    cluster = fields.text(body, "cluster")
    if cluster is None:
        raise refused(ErrorClass.BAD_REQUEST, "needed: cluster")
    return cluster
