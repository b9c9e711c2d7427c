"""The rows door: an Arrow stream becomes one operation that appends its rows to a table."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import uuid
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from aiohttp import web

from haproc.classify.model import WriteConcern
from haproc.config.model import Config
from haproc.doors.clients.statement_request import TIMEOUT_MAX_S, fingerprint_of, with_headers
from haproc.doors.clients.statements import USER
from haproc.doors.http import fields
from haproc.doors.http.context import ARROW_STREAM, ASKED, HELD, json_response, read_body
from haproc.doors.http.errors import as_request_error
from haproc.doors.http.statuses import Asked
from haproc.engine.interface import Column
from haproc.failure import ErrorClass, RequestError, refused
from haproc.metrics import Metrics
from haproc.route.interface import Service
from haproc.route.model import Answer, RowsRequest
from haproc.statements import rows
from haproc.statements.execution import Key, ha_block
from haproc.statements.gate import Gate

_LOG = logging.getLogger(__name__)
_PARAMETERS: Final = ("request_id", "timeout_s", "age_s", "catalog", "schema", "write_concern")


class RowsDoor:
    """The handler."""

    def __init__(self, config: Config, service: Service, gate: Gate, metrics: Metrics) -> None:
        self._config = config
        self._service = service
        self._gate = gate
        self._metrics = metrics
        self._running: dict[Key, tuple[str, asyncio.Task[Answer], WriteConcern | None]] = {}

    def routes(self) -> list[web.RouteDef]:
        """Return the route."""
        return [web.post("/api/ha/tables/{table}/rows", self.append)]

    async def append(self, request: web.Request) -> web.Response:
        """Append the body's rows to the table; answers once this cluster has them."""
        started_s = time.monotonic()
        outcome = "ok"
        try:
            with self._gate.place(request[USER]):
                answer = await self._append(request, await self._read(request))
        except RequestError as error:
            outcome = error.kind.value
            raise
        finally:
            seconds = time.monotonic() - started_s
            self._metrics.request("asynchronous", outcome, seconds)
        return answer

    async def _read(self, request: web.Request) -> RowsRequest:
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
        age_s = fields.age(_number(given, "age_s"))
        timeout_s = fields.seconds(_number(given, "timeout_s"), "timeout_s", TIMEOUT_MAX_S)
        timeout_s = timeout_s or self._config.timeouts.statement_s
        bytes_max = self._config.limits.operation_bytes_max
        body = await read_body(request, bytes_max)
        catalog, schema = given.get("catalog"), given.get("schema")
        table = request.match_info["table"]
        digest = await asyncio.to_thread(lambda: hashlib.sha256(body).hexdigest())
        parts = {"table": table, "catalog": catalog, "schema": schema, "rows": digest}
        user = request[USER]

        async def fit(columns: Sequence[Column]) -> bytes:
            return await asyncio.to_thread(_checked, body, columns, bytes_max)

        return RowsRequest(
            id=request_id,
            table=table,
            fit=fit,
            fingerprint=fingerprint_of(user, parts),
            user=user,
            catalog=catalog,
            schema=schema,
            write_concern=fields.choice(given, "write_concern", WriteConcern),
            timeout_s=timeout_s,
            age_s=age_s,
            arrived_s=arrived_s,
        )

    async def _append(self, request: web.Request, asked: RowsRequest) -> web.Response:
        """Run the append in a task of its own: a client that goes away doesn't stop it."""
        key = (asked.user, asked.id)
        known = self._running.get(key)
        while known is not None and known[2] is not asked.write_concern:
            await asyncio.wait({known[1]})  # its answer is not this one's
            known = self._running.get(key)
        if known is not None and known[0] != asked.fingerprint:
            raise refused(
                ErrorClass.REQUEST_ID_REUSED,
                f"request_id {asked.id} was used for another request",
                "use a new request_id for each operation",
            )
        if known is None:
            task = asyncio.create_task(self._run(asked))
            self._running[key] = known = (asked.fingerprint, task, asked.write_concern)
        try:
            await self._gate.wait_for(known[1])
        except (asyncio.CancelledError, RequestError):
            if not known[1].done():
                self._gate.follow(known[1], asked.user, request[HELD].handed_over())
            raise
        answer = known[1].result()
        return json_response(
            {
                "statement_id": asked.id,
                "status": {"state": "SUCCEEDED"},
                "ha": ha_block(answer.report, answer.affected_rows),
            }
        )

    async def _run(self, asked: RowsRequest) -> Answer:
        try:
            answer = await self._service.append_rows(asked)
            await answer.result.aclose()
            return answer
        except RequestError:
            raise
        except Exception as error:
            raise as_request_error(error, f"rows {asked.id}") from error
        finally:
            del self._running[asked.user, asked.id]


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


def _number(given: dict[str, str], name: str) -> float | None:
    try:
        return float(given[name]) if name in given else None
    except ValueError:
        raise refused(ErrorClass.BAD_REQUEST, f"{name} must be a number of seconds") from None


def _checked(body: bytes, columns: Sequence[Column], bytes_max: int) -> bytes:
    """Return the rows as Spark takes them; RequestError if they don't fit."""
    try:
        table: pa.Table = rows.read(body, bytes_max)
        problems = rows.fits(table.schema, columns)
        if problems:
            raise rows.RowsError(problems)
        return rows.plain(table, columns)
    except rows.RowsError as error:
        raise refused(
            ErrorClass.ROWS_MISFIT,
            str(error),
            "send the table's columns by name, of types that fit",
        ) from error
