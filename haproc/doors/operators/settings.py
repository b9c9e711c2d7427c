"""The door on which a HAProc tells how its Spark server is set, under the ring's secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from aiohttp import web

from dmq import Json
from haproc.config.model import Config
from haproc.doors.http.access import Credentials
from haproc.doors.http.bodies import json_response


class SettingsService(Protocol):
    """How the server is set."""

    def settings(self) -> Mapping[str, Json]:
        """Return the versions and settings that change results."""
        ...


def tell(app: web.Application, config: Config, service: SettingsService) -> None:
    """Add the door to the operators' application."""
    credentials = Credentials.of_peers(config)

    async def settings(request: web.Request) -> web.Response:
        credentials.user_of(request.headers)
        return json_response(dict(service.settings()))

    app.add_routes([web.get("/ha/v1/settings", settings, allow_head=False)])
