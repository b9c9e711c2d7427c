"""Clients' requests apart from statements: about this HAProc, and how a statement is classified."""

from __future__ import annotations

import uuid
from typing import Final

from aiohttp import web

from haproc import __version__
from haproc.config.model import Config
from haproc.doors.http import reading
from haproc.doors.http.access import ADMITTED, USER
from haproc.doors.http.bodies import check_json, json_response, read_body
from haproc.doors.status import StatusSource
from haproc.route.model import Request, SentSql, Service
from haproc.statements.request_admission import RequestAdmission

# The door that classifies a statement without running it, for `haproc classify --server`.


PATH: Final = "/api/ha/classify"
FIELDS: Final = ("statement", "catalog", "schema", "session_id", "tree")


class ClassifyDoor:
    """The handler of requests to classify a statement without running it."""

    def __init__(
        self, config: Config, service: Service, request_admission: RequestAdmission
    ) -> None:
        self._config = config
        self._service = service
        self._request_admission = request_admission

    def routes(self) -> list[web.RouteDef]:
        """Return these handlers' HTTP methods and paths, for aiohttp."""
        return [web.post(PATH, self.classify)]

    async def classify(self, request: web.Request) -> web.Response:
        """Return the kind and class of a statement, or why it would be refused."""
        check_json(request)
        limits = self._config.limits
        given = reading.parse_object(await read_body(request, limits.statement_body_bytes_max))
        reading.no_unknown(given, FIELDS)
        wanted = Request(
            id=uuid.uuid4().hex,
            statement=SentSql(reading.needed_text(given, "statement")),
            fingerprint="",
            user=request[USER],
            catalog=reading.text(given, "catalog"),
            schema=reading.text(given, "schema"),
            session_id=reading.identifier(given, "session_id"),
            timeout_s=self._config.timeouts.statement_s,
            rights=request[ADMITTED].rights,
        )
        tree = reading.flag(given, "tree")
        async with self._request_admission.permit(request[USER]):
            return json_response(await self._service.shown(wanted, tree=tree))


# The first questions of other products' clients: this product, their user, and the warehouse.
#
# The paths are Livy's (``/``, ``/version``) and Databricks' (``Me``, ``warehouses``). The answers
# contain the fields that this ring has: it is the one warehouse, under its name.


ME = "/api/2.0/preview/scim/v2/Me"
WAREHOUSES = "/api/2.0/sql/warehouses"


class AboutDoor:
    """The handlers of the first requests that clients of Livy and Databricks send."""

    def __init__(self, config: Config, status: StatusSource) -> None:
        self._ring = config.ring
        self._status = status

    def routes(self) -> list[web.RouteDef]:
        """Return these handlers' HTTP methods and paths, for aiohttp.

        Airflow tests a Livy connection with a POST to the root.
        """
        return [
            web.get("/", self.root, allow_head=False),
            web.post("/", self.root),
            web.get("/version", self.version, allow_head=False),
            web.get(ME, self.me, allow_head=False),
            web.get(WAREHOUSES, self.warehouses, allow_head=False),
        ]

    async def root(self, request: web.Request) -> web.Response:
        """Return the name of this product."""
        about = {"service": "haproc", "version": __version__, "ring": self._ring}
        return json_response({**about, "interface": "/openapi.json"})

    async def version(self, request: web.Request) -> web.Response:
        """Return the version of this product."""
        return json_response({"version": __version__})

    async def me(self, request: web.Request) -> web.Response:
        """Return the name of the user that the token belongs to."""
        user = request[USER]
        return json_response({"id": user, "userName": user, "displayName": user, "active": True})

    async def warehouses(self, request: web.Request) -> web.Response:
        """Return the list of warehouses in Databricks' form: the ring is the only one."""
        state = "RUNNING" if self._status.readiness().serving else "STARTING"
        ring = {"id": self._ring, "name": self._ring, "state": state}
        return json_response({"warehouses": [ring]})
