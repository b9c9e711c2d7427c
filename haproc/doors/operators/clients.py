"""The operators' doors to all users' jobs and sessions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from aiohttp import web

from dmq import Json
from haproc.doors.clients.job_door import batch_id, page_of
from haproc.doors.http import reading
from haproc.doors.http.bodies import json_response, read_object
from haproc.failure import ErrorClass, refused
from haproc.jobs.service import JobService

# The operators' door to all users' jobs, to list and end them.


def supervise(app: web.Application, service: JobService | None) -> None:
    """Add the door to the operators' application."""

    def jobs(request: web.Request) -> JobService:
        if service is None:
            raise refused(ErrorClass.JOBS_OFF, "this ring takes no jobs", "set jobs.enabled")
        return service

    async def listed(request: web.Request) -> web.Response:
        found = jobs(request)
        start, size = page_of(request)
        return json_response(dict(await found.listed(None, start or 0, size)))

    async def shown(request: web.Request) -> web.Response:
        return json_response(dict(await jobs(request).shown(None, batch_id(request))))

    async def log(request: web.Request) -> web.Response:
        found = jobs(request)
        start, size = page_of(request)
        return json_response(dict(await found.log(None, batch_id(request), start, size)))

    async def kill(request: web.Request) -> web.Response:
        await jobs(request).kill(None, batch_id(request))
        return json_response({"msg": "deleted"})

    one = "/ha/v1/jobs/{batch_id}"
    app.add_routes(
        [
            web.get("/ha/v1/jobs", listed, allow_head=False),
            web.get(one, shown, allow_head=False),
            web.get(f"{one}/log", log, allow_head=False),
            web.delete(one, kill),
        ]
    )


# The operators' door to clients' sessions, to list and close them.


PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1000


class SessionsService(Protocol):
    """The ring's sessions; methods raise RequestError."""

    async def listed(self, start: int, limit: int) -> Mapping[str, Json]:
        """Return some of the open sessions, and how many there are."""
        ...

    async def close(self, user: str, session_id: str) -> Mapping[str, Json]:
        """Close a session, whichever HAProc has it."""
        ...


def attend(app: web.Application, service: SessionsService) -> None:
    """Add the door to the operators' application."""

    async def listed(request: web.Request) -> web.Response:
        start, limit = reading.page(request.query, PAGE_DEFAULT, PAGE_MAX)
        return json_response(dict(await service.listed(start, limit)))

    async def close(request: web.Request) -> web.Response:
        names = ("user", "session_id")
        user, session_id = reading.needed_texts(await read_object(request, names), names)
        return json_response(dict(await service.close(user, session_id)))

    app.add_routes(
        [
            web.get("/ha/v1/sessions", listed, allow_head=False),
            web.post("/ha/v1/sessions/close", close),
        ]
    )
