"""The door that tells what would become of a statement, for `haproc classify --server`."""

from __future__ import annotations

import uuid
from typing import Final

from aiohttp import web

from haproc.config.model import Config
from haproc.doors.http import fields
from haproc.doors.http.access import USER
from haproc.doors.http.bodies import check_json, json_response, read_body
from haproc.route.interface import Service
from haproc.route.model import Request, SentSql
from haproc.statements.request_admission import RequestAdmission

PATH: Final = "/api/ha/classify"
FIELDS: Final = ("statement", "catalog", "schema", "session_id", "tree")


class ClassifyDoor:
    """The handler."""

    def __init__(
        self, config: Config, service: Service, request_admission: RequestAdmission
    ) -> None:
        self._config = config
        self._service = service
        self._request_admission = request_admission

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.post(PATH, self.classify)]

    async def classify(self, request: web.Request) -> web.Response:
        """Tell it; what would be refused is told, too."""
        check_json(request)
        limits = self._config.limits
        given = fields.parse_object(await read_body(request, limits.statement_body_bytes_max))
        fields.no_unknown(given, FIELDS)
        asked = Request(
            id=uuid.uuid4().hex,
            statement=SentSql(fields.needed_text(given, "statement")),
            fingerprint="",
            user=request[USER],
            catalog=fields.text(given, "catalog"),
            schema=fields.text(given, "schema"),
            session_id=fields.identifier(given, "session_id"),
            timeout_s=self._config.timeouts.statement_s,
        )
        tree = fields.flag(given, "tree")
        async with self._request_admission.permit(request[USER]):
            return json_response(dict(await self._service.shown(asked, tree=tree)))
