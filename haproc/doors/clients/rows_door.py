"""The rows door: an Arrow stream becomes one operation that appends its rows to a table."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from typing import Final

from aiohttp import web

from haproc.classify.model import OperationClass, WriteConcern
from haproc.config.model import Config
from haproc.doors.clients.answers import ha_block
from haproc.doors.clients.statement_request import with_headers
from haproc.doors.http import fields
from haproc.doors.http.access import USER
from haproc.doors.http.bodies import ARROW_STREAM, HELD, json_response, read_body
from haproc.doors.http.errors import ASKED
from haproc.doors.http.statuses import Asked
from haproc.failure import ErrorClass, refused
from haproc.route.model import Request, SentRows
from haproc.statements.registry import Registry
from haproc.statements.request import TIMEOUT_MAX_S, StatementRequest, fingerprint_of

_PARAMETERS: Final = ("request_id", "timeout_s", "age_s", "catalog", "schema", "write_concern")


class RowsDoor:
    """The handler."""

    def __init__(self, config: Config, registry: Registry) -> None:
        self._config = config
        self._registry = registry

    def routes(self) -> list[web.RouteDef]:
        """Return the route."""
        return [web.post("/api/ha/tables/{table}/rows", self.append)]

    async def append(self, request: web.Request) -> web.Response:
        """Append the body's rows to the table; answers once this cluster has them."""
        asked = await self._read(request)
        execution = await self._registry.submit(StatementRequest(asked), request[HELD])
        await self._registry.wait(execution, None)
        report = execution.settled()
        return json_response(
            {
                "statement_id": asked.id,
                "status": {"state": "SUCCEEDED"},
                "ha": ha_block(report, execution.affected_rows),
            }
        )

    async def _read(self, request: web.Request) -> Request:
        """Return what is asked. Whether the rows fit the table is seen where it is their turn."""
        if request.content_type != ARROW_STREAM:
            raise refused(
                ErrorClass.CONTENT_TYPE,
                f"Content-Type {request.content_type[:80]!r} is not known here",
                f"send {ARROW_STREAM}",
            )
        given = with_headers(_query(request), request.headers)
        own_id = fields.identifier(given, "request_id")
        request_id = own_id or uuid.uuid4().hex
        request[ASKED] = Asked(request_id, own_id is not None)
        arrived_s = asyncio.get_running_loop().time()
        age_s = fields.age(fields.seconds_in(given.get("age_s"), "age_s"))
        timeout_s = fields.seconds_in(given.get("timeout_s"), "timeout_s")
        timeout_s = fields.seconds(timeout_s, "timeout_s", TIMEOUT_MAX_S)
        body = await read_body(request, self._config.limits.operation_bytes_max)
        table, catalog, schema = (
            request.match_info["table"],
            given.get("catalog"),
            given.get("schema"),
        )
        digest = await asyncio.to_thread(lambda: hashlib.sha256(body).hexdigest())
        parts = {"table": table, "catalog": catalog, "schema": schema, "rows": digest}
        user = request[USER]
        return Request(
            id=request_id,
            statement=SentRows(table, body),
            fingerprint=fingerprint_of(user, parts),
            user=user,
            catalog=catalog,
            schema=schema,
            operation_class=OperationClass.ASYNCHRONOUS,
            write_concern=fields.choice(given, "write_concern", WriteConcern),
            timeout_s=timeout_s or self._config.timeouts.statement_s,
            age_s=age_s,
            arrived_s=arrived_s,
        )


def _query(request: web.Request) -> dict[str, str]:
    fields.no_unknown(request.query, _PARAMETERS)
    given: dict[str, str] = {}
    for name, value in request.query.items():
        if name in given:
            raise refused(ErrorClass.BAD_REQUEST, f"{name} comes twice")
        if not value:
            raise refused(ErrorClass.BAD_REQUEST, f"{name} is empty")
        given[name] = value
    return given
