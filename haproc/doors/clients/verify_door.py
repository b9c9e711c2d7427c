"""The door for verifications on a schedule, for the archive's user: they name everybody's tables.

The same as on the operators' door, where the ring's secret is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from aiohttp import web

from dmq import Json
from haproc.config.model import Config
from haproc.doors.clients.operations_door import check_user
from haproc.doors.http import fields
from haproc.doors.http.bodies import json_response

PATH: Final = "/api/ha/verify"


class Verifies(Protocol):
    """What a HAProc does for it; methods raise RequestError."""

    async def verify(self) -> Mapping[str, Json]:
        """Have all clusters say what they hold."""
        ...

    async def verification(self, marker: int) -> Mapping[str, Json]:
        """Return what that came to so far."""
        ...


def attest(app: web.Application, config: Config, service: Verifies) -> None:
    """Add the door to the clients' application."""

    async def verify(request: web.Request) -> web.Response:
        check_user(config, request)
        return json_response(dict(await service.verify()))

    async def verification(request: web.Request) -> web.Response:
        check_user(config, request)
        marker = fields.whole_number(request.match_info["offset"], "an offset")
        return json_response(dict(await service.verification(marker)))

    app.add_routes(
        [
            web.post(PATH, verify),
            web.get(f"{PATH}/{{offset}}", verification, allow_head=False),
        ]
    )
