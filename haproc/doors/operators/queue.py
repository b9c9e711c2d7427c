"""The doors for operators: the cluster's queue, and verification."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Protocol

from aiohttp import web

from dmq import Json
from haproc.doors.http import reading
from haproc.doors.http.bodies import json_response, read_object
from haproc.failure import ErrorClass, refused

PAGE_DEFAULT: Final = 50
PAGE_MAX: Final = 1000


class OperatorService(Protocol):
    """A HAProc's actions for operators; methods raise RequestError."""

    def queue(self, start: int, count: int) -> Mapping[str, Json]:
        """Return a page of the queue, from an offset on."""
        ...

    async def show(self, offset: int) -> Mapping[str, Json]:
        """Return one operation, and what retry, skip and revoke would do."""
        ...

    async def retry(self, cluster: str, offset: int) -> Mapping[str, Json]:
        """Try a failing operation now."""
        ...

    async def skip(self, cluster: str, offset: int, reason: str) -> Mapping[str, Json]:
        """Let this cluster skip an operation."""
        ...

    async def revoke(
        self, offset: int, reason: str, without: Collection[str]
    ) -> Mapping[str, Json]:
        """Let the ring revoke an operation. ``without``: members that did not apply it."""
        ...

    async def verify(self, trusted: str = "") -> Mapping[str, Json]:
        """Begin a verification of all clusters; ``trusted``: the one with the right tables."""
        ...

    async def verification(self, marker: int) -> Mapping[str, Json]:
        """Return a verification's result so far."""
        ...

    async def rebuild(self, cluster: str, donor: str, way: str) -> Mapping[str, Json]:
        """Make this cluster a copy of another one; ``way``: empty for the configured one."""
        ...

    def withdraw(self, cluster: str) -> Mapping[str, Json]:
        """Withdraw the request for a rebuild."""
        ...

    def backup(self, cluster: str, destination: str) -> Mapping[str, Json]:
        """Begin a backup."""
        ...

    def backup_status(self) -> Mapping[str, Json]:
        """Return the progress of the newest backup."""
        ...

    async def restore(
        self, cluster: str, source: str, offset: int, *, verify: bool
    ) -> Mapping[str, Json]:
        """Restore this cluster from a backup."""
        ...

    async def repair(self, cluster: str, table: str, donor: str) -> Mapping[str, Json]:
        """Replace tables of this cluster by another cluster's."""
        ...


class QueueDoor:
    """The handlers of the queue, verifications and copies."""

    def __init__(self, service: OperatorService) -> None:
        self._service = service

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/ha/v1/queue", self.queue, allow_head=False),
            web.get("/ha/v1/queue/{offset}", self.show, allow_head=False),
            web.post("/ha/v1/queue/{offset}/retry", self.retry),
            web.post("/ha/v1/queue/{offset}/skip", self.skip),
            web.post("/ha/v1/queue/{offset}/revoke", self.revoke),
            web.post("/ha/v1/verify", self.verify),
            web.get("/ha/v1/verify/{offset}", self.verification, allow_head=False),
            web.post("/ha/v1/rebuild", self.rebuild),
            web.post("/ha/v1/rebuild/withdraw", self.withdraw),
            web.post("/ha/v1/backup", self.backup),
            web.get("/ha/v1/backup", self.backup_status, allow_head=False),
            web.post("/ha/v1/restore", self.restore),
            web.post("/ha/v1/repair", self.repair),
        ]

    async def queue(self, request: web.Request) -> web.Response:
        """List the queue."""
        start, limit = reading.page(request.query, PAGE_DEFAULT, PAGE_MAX)
        return json_response(self._service.queue(start, limit))

    async def show(self, request: web.Request) -> web.Response:
        """Show one operation."""
        return json_response(await self._service.show(_offset(request)))

    async def retry(self, request: web.Request) -> web.Response:
        """Retry a failing operation."""
        (cluster,) = await _texts(request, "cluster")
        return json_response(await self._service.retry(cluster, _offset(request)))

    async def skip(self, request: web.Request) -> web.Response:
        """Skip an operation that cannot be applied here."""
        cluster, reason = await _texts(request, "cluster", "reason")
        return json_response(await self._service.skip(cluster, _offset(request), reason))

    async def revoke(self, request: web.Request) -> web.Response:
        """Revoke an operation."""
        reason, names = await _texts(request, "reason", "without")
        without = [name for name in names.split(",") if name]
        return json_response(await self._service.revoke(_offset(request), reason, without))

    async def verify(self, request: web.Request) -> web.Response:
        """Begin a verification."""
        body = await read_object(request, ("trusted",)) if request.can_read_body else {}
        trusted = reading.needed_texts(body, ("trusted",))[0] if "trusted" in body else ""
        return json_response(await self._service.verify(trusted))

    async def rebuild(self, request: web.Request) -> web.Response:
        """Rebuild the cluster from another one."""
        body = await read_object(request, ("cluster", "donor", "way"))
        cluster, donor = reading.needed_texts(body, ("cluster", "donor"))
        (way,) = reading.needed_texts(body, ("way",)) if "way" in body else ("",)
        return json_response(await self._service.rebuild(cluster, donor, way))

    async def withdraw(self, request: web.Request) -> web.Response:
        """Withdraw the request to rebuild the cluster."""
        (cluster,) = await _texts(request, "cluster")
        return json_response(self._service.withdraw(cluster))

    async def backup(self, request: web.Request) -> web.Response:
        """Begin a backup."""
        cluster, destination = await _texts(request, "cluster", "destination")
        return json_response(self._service.backup(cluster, destination))

    async def backup_status(self, request: web.Request) -> web.Response:
        """Return the progress of the newest backup."""
        return json_response(self._service.backup_status())

    async def restore(self, request: web.Request) -> web.Response:
        """Restore the cluster from a backup."""
        body = await read_object(request, ("cluster", "source", "offset", "verify"))
        cluster, source = reading.needed_texts(body, ("cluster", "source"))
        offset, verify = reading.offset(body, "offset"), reading.flag(body, "verify")
        offset = -1 if offset is None else offset
        return json_response(await self._service.restore(cluster, source, offset, verify=verify))

    async def repair(self, request: web.Request) -> web.Response:
        """Replace tables by another cluster's."""
        cluster, table, donor = await _texts(request, "cluster", "table", "donor")
        schema, _, name = table.partition(".")
        if not schema or not name:
            raise refused(ErrorClass.BAD_REQUEST, f"{table[:80]!r} is not schema.table")
        return json_response(await self._service.repair(cluster, table, donor))

    async def verification(self, request: web.Request) -> web.Response:
        """Return the result of a verification so far."""
        return json_response(await self._service.verification(_offset(request)))


def _offset(request: web.Request) -> int:
    return reading.whole_number(request.match_info["offset"], "an offset")


async def _texts(request: web.Request, *names: str) -> list[str]:
    """Return the texts of a body, all of which are needed."""
    return reading.needed_texts(await read_object(request, names), names)
