"""The door for operators who look at clients' sessions and close them, under the ring's secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from aiohttp import web

from dmq import Json
from haproc.config.model import Config
from haproc.doors.http import fields
from haproc.doors.http.access import Credentials
from haproc.doors.http.bodies import json_response, read_object

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


def attend(app: web.Application, config: Config, service: SessionsService) -> None:
    """Add the door to the operators' application."""
    credentials = Credentials.of_peers(config)

    async def listed(request: web.Request) -> web.Response:
        credentials.user_of(request.headers)
        start, limit = fields.page(request.query, PAGE_DEFAULT, PAGE_MAX)
        return json_response(dict(await service.listed(start, limit)))

    async def close(request: web.Request) -> web.Response:
        credentials.user_of(request.headers)
        names = ("user", "session_id")
        user, session_id = fields.needed_texts(await read_object(request, names), names)
        return json_response(dict(await service.close(user, session_id)))

    app.add_routes(
        [
            web.get("/ha/v1/sessions", listed, allow_head=False),
            web.post("/ha/v1/sessions/close", close),
        ]
    )
