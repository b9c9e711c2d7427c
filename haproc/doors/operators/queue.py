"""The operator door's routes for the cluster's queue, verifications, rebuilds and backups."""

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
    """What a HAProc does for operators; methods raise RequestError."""

    def queue(self, start: int, count: int) -> Mapping[str, Json]:
        """Return ``count`` operations of the queue, from the offset ``start`` on."""
        ...

    async def show(self, offset: int) -> Mapping[str, Json]:
        """Return one operation, and what the commands retry, skip and revoke would do with it."""
        ...

    async def retry(self, cluster: str, offset: int) -> Mapping[str, Json]:
        """Try an operation that keeps failing again at once."""
        ...

    async def skip(self, cluster: str, offset: int, reason: str) -> Mapping[str, Json]:
        """Let only this cluster pass over an operation."""
        ...

    async def revoke(
        self, offset: int, reason: str, without: Collection[str]
    ) -> Mapping[str, Json]:
        """Let the ring reject an operation. ``without``: members that surely did not apply it."""
        ...

    async def verify(self, trusted: str = "") -> Mapping[str, Json]:
        """Begin to compare all clusters' tables; ``trusted``: the cluster with the right tables."""
        ...

    async def verification(self, marker: int) -> Mapping[str, Json]:
        """Return the result so far of the verification that has its record at offset ``marker``."""
        ...

    async def rebuild(self, cluster: str, donor: str, way: str) -> Mapping[str, Json]:
        """Replace this cluster's tables by a copy of those of ``donor``.

        ``way``: how to copy; empty: as configured.
        """
        ...

    def withdraw(self, cluster: str) -> Mapping[str, Json]:
        """Take back the request to rebuild this cluster."""
        ...

    def backup(self, cluster: str, destination: str) -> Mapping[str, Json]:
        """Begin a backup of this cluster's tables."""
        ...

    def backup_status(self) -> Mapping[str, Json]:
        """Return how far the newest backup is."""
        ...

    async def restore(
        self, cluster: str, source: str, offset: int, *, verify: bool
    ) -> Mapping[str, Json]:
        """Replace this cluster's tables by those of a backup."""
        ...

    async def repair(self, cluster: str, table: str, donor: str) -> Mapping[str, Json]:
        """Replace one table of this cluster, or several, by those of ``donor``."""
        ...


class QueueDoor:
    """The handlers of operators' commands about the queue, verifications, copies and backups."""

    def __init__(self, service: OperatorService) -> None:
        self._service = service

    def routes(self) -> list[web.RouteDef]:
        """Return these handlers' HTTP methods and paths, for aiohttp."""
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
        """Return a page of the queue."""
        start, limit = reading.page(request.query, PAGE_DEFAULT, PAGE_MAX)
        return json_response(self._service.queue(start, limit))

    async def show(self, request: web.Request) -> web.Response:
        """Return one operation of the queue."""
        return json_response(await self._service.show(_offset(request)))

    async def retry(self, request: web.Request) -> web.Response:
        """Try an operation that keeps failing again at once."""
        (cluster,) = await _texts(request, "cluster")
        return json_response(await self._service.retry(cluster, _offset(request)))

    async def skip(self, request: web.Request) -> web.Response:
        """Let this cluster pass over an operation that cannot be applied here."""
        cluster, reason = await _texts(request, "cluster", "reason")
        return json_response(await self._service.skip(cluster, _offset(request), reason))

    async def revoke(self, request: web.Request) -> web.Response:
        """Let the ring reject an operation."""
        reason, names = await _texts(request, "reason", "without")
        without = [name for name in names.split(",") if name]
        return json_response(await self._service.revoke(_offset(request), reason, without))

    async def verify(self, request: web.Request) -> web.Response:
        """Begin to compare the tables of all clusters."""
        body = await read_object(request, ("trusted",)) if request.can_read_body else {}
        trusted = reading.needed_texts(body, ("trusted",))[0] if "trusted" in body else ""
        return json_response(await self._service.verify(trusted))

    async def rebuild(self, request: web.Request) -> web.Response:
        """Replace this cluster's tables by a copy of another cluster's."""
        body = await read_object(request, ("cluster", "donor", "way"))
        cluster, donor = reading.needed_texts(body, ("cluster", "donor"))
        (way,) = reading.needed_texts(body, ("way",)) if "way" in body else ("",)
        return json_response(await self._service.rebuild(cluster, donor, way))

    async def withdraw(self, request: web.Request) -> web.Response:
        """Take back the request to rebuild this cluster."""
        (cluster,) = await _texts(request, "cluster")
        return json_response(self._service.withdraw(cluster))

    async def backup(self, request: web.Request) -> web.Response:
        """Begin a backup of this cluster's tables."""
        cluster, destination = await _texts(request, "cluster", "destination")
        return json_response(self._service.backup(cluster, destination))

    async def backup_status(self, request: web.Request) -> web.Response:
        """Return how far the newest backup is."""
        return json_response(self._service.backup_status())

    async def restore(self, request: web.Request) -> web.Response:
        """Replace this cluster's tables by those of a backup."""
        body = await read_object(request, ("cluster", "source", "offset", "verify"))
        cluster, source = reading.needed_texts(body, ("cluster", "source"))
        offset, verify = reading.offset(body, "offset"), reading.flag(body, "verify")
        offset = -1 if offset is None else offset
        return json_response(await self._service.restore(cluster, source, offset, verify=verify))

    async def repair(self, request: web.Request) -> web.Response:
        """Replace some tables of this cluster by another cluster's."""
        cluster, table, donor = await _texts(request, "cluster", "table", "donor")
        schema, _, name = table.partition(".")
        if not schema or not name:
            raise refused(ErrorClass.BAD_REQUEST, f"{table[:80]!r} is not schema.table")
        return json_response(await self._service.repair(cluster, table, donor))

    async def verification(self, request: web.Request) -> web.Response:
        """Return what a verification has found so far."""
        return json_response(await self._service.verification(_offset(request)))


def _offset(request: web.Request) -> int:
    return reading.whole_number(request.match_info["offset"], "an offset")


async def _texts(request: web.Request, *names: str) -> list[str]:
    """Return the texts of the fields ``names`` of a body; RequestError if one is missing."""
    return reading.needed_texts(await read_object(request, names), names)
