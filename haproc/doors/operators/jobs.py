"""The door for operators who look at all users' jobs and end them, under the ring's secret."""

from __future__ import annotations

from aiohttp import web

from haproc.config.model import Config
from haproc.doors.clients.job_door import batch_id, page_of
from haproc.doors.http.access import Credentials
from haproc.doors.http.bodies import json_response
from haproc.failure import ErrorClass, refused
from haproc.jobs.service import JobService


def supervise(app: web.Application, config: Config, service: JobService | None) -> None:
    """Add the door to the operators' application."""
    credentials = Credentials.of_peers(config)

    def jobs(request: web.Request) -> JobService:
        credentials.user_of(request.headers)
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
