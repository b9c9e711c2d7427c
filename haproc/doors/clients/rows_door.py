"""The door for rows: the rows in a body become one operation that appends them to a table."""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Collection, Mapping
from typing import Final
from zoneinfo import ZoneInfo

from aiohttp import web

from haproc.classify.model import OperationClass, WriteConcern
from haproc.config.model import Config
from haproc.doors.clients.answers import ha_block
from haproc.doors.clients.statement_request import with_headers
from haproc.doors.http import reading
from haproc.doors.http.access import ADMITTED, USER
from haproc.doors.http.bodies import (
    ARRIVED,
    HELD,
    REQUESTED,
    is_packed,
    json_response,
    read_body,
    stream_body,
)
from haproc.doors.http.statuses import RequestedStatement
from haproc.failure import ErrorClass, refused
from haproc.route.model import Request, SentRows
from haproc.route.rows.forms import Form, FormKind
from haproc.route.rows.reading import makes_a_record
from haproc.route.spooled import RECORD_BYTES_MAX, WRITE_BYTES, SpooledBody, Spools
from haproc.statements.registry import Registry
from haproc.statements.request import TIMEOUT_MAX_S, StatementRequest, fingerprint_of

_OF_FORM: Final = ("columns", "delimiter", "null", "time_zone", "first_line")
PARAMETERS: Final = (
    *("request_id", "timeout_s", "age_s", "catalog", "schema", "write_concern"),
    *_OF_FORM,
)
_KINDS: Final = {
    **{kind.value: kind for kind in FormKind},
    "application/jsonl": FormKind.JSON_LINES,
    "application/x-parquet": FormKind.PARQUET,
}
_TEXTS: Final = (FormKind.CSV, FormKind.JSON_LINES)
_TAKES: Final[dict[str, Collection[FormKind]]] = {
    "delimiter": (FormKind.CSV,),
    "null": (FormKind.CSV,),
    "time_zone": _TEXTS,
    "first_line": _TEXTS,
}
UNPACKED_MAX: Final = 16
"""The most bytes that one byte of a body may need in memory. Chosen: at worst, a comma of CSV
stands for a number of 8 bytes, which is in memory twice."""
LINE_DIGITS_MAX: Final = 18
_MAY_BE_EMPTY: Final = frozenset({"null"})


class RowsDoor:
    """The handler of requests that append rows to a table."""

    def __init__(self, config: Config, registry: Registry, spools: Spools) -> None:
        self._config = config
        self._spools = spools
        self._registry = registry

    def routes(self) -> list[web.RouteDef]:
        """Return this handler's HTTP method and path, for aiohttp."""
        return [web.post("/api/ha/tables/{table}/rows", self.append)]

    async def append(self, request: web.Request) -> web.Response:
        """Append the body's rows to the table; answer once this cluster has applied them."""
        wanted = await self._read(request)
        execution = await self._registry.submit(StatementRequest(wanted), request[HELD])
        await self._registry.wait(execution, None)
        report = execution.settled()
        return json_response(
            {
                "statement_id": wanted.id,
                "status": {"state": "SUCCEEDED"},
                "ha": ha_block(report, execution.affected_rows),
            }
        )

    async def _read(self, request: web.Request) -> Request:
        """Read a request.

        If its rows do not fit the table, that shows only when they are applied.
        """
        given = with_headers(_query(request), request.headers)
        form = _form(request, given)
        own_id = reading.identifier(given, "request_id")
        request_id = own_id or uuid.uuid4().hex
        request[REQUESTED] = RequestedStatement(request_id, own_id is not None)
        age_s = reading.age(reading.seconds_in(given.get("age_s"), "age_s"))
        timeout_s = reading.seconds_in(given.get("timeout_s"), "timeout_s")
        timeout_s = reading.seconds(timeout_s, "timeout_s", TIMEOUT_MAX_S)
        body, digest = await self._body(request, form)
        table, catalog, schema = (
            request.match_info["table"],
            given.get("catalog"),
            given.get("schema"),
        )
        parts = {"table": table, "catalog": catalog, "schema": schema, "rows": digest}
        user = request[USER]
        return Request(
            id=request_id,
            statement=SentRows(table, body, form),
            fingerprint=fingerprint_of(user, {**parts, **form.fields()}),
            user=user,
            catalog=catalog,
            schema=schema,
            operation_class=OperationClass.ASYNCHRONOUS,
            write_concern=reading.choice(given, "write_concern", WriteConcern),
            timeout_s=timeout_s or self._config.timeouts.statement_s,
            age_s=age_s,
            arrived_s=request[ARRIVED],
            rights=request[ADMITTED].rights,
            authorization=request[ADMITTED].authorization,
        )

    async def _body(self, request: web.Request, form: Form) -> tuple[bytes | SpooledBody, str]:
        """Read the body; return the rows, and their digest.

        The rows are written to disk, unless they are few and in Arrow's format: a request lives
        until its rows are applied, and many requests wait at once. Rows in another format may need
        many times their size when they are read.
        """
        length, bytes_max = request.content_length, self._config.limits.operation_bytes_max
        arrow = form.kind is FormKind.ARROW
        if is_packed(request):
            length = None  # it is the packed length
        if arrow and length is not None and length <= min(bytes_max, WRITE_BYTES):
            data = await read_body(request, bytes_max)
            if makes_a_record(data, bytes_max):
                return data, await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())
            return await self._spooled(request, form, data)
        held = request[HELD]
        held.reserve_bytes(2 * WRITE_BYTES)
        body = await self._spools.begin(request[USER], length, form)
        held.keep(body.release)
        await stream_body(request, body.append_bytes)
        digest = await body.complete()
        if not arrow:
            held.reserve_bytes(min(2 * RECORD_BYTES_MAX, UNPACKED_MAX * body.size))
        elif body.size <= bytes_max:
            held.reserve_bytes(body.size)
        return body, digest

    async def _spooled(
        self, request: web.Request, form: Form, data: bytes
    ) -> tuple[SpooledBody, str]:
        """Write a body to disk that is short, but too long for one record when it is unpacked."""
        body = await self._spools.begin(request[USER], len(data), form)
        request[HELD].keep(body.release)
        await body.append_bytes(data)
        return body, await body.complete()


def _query(request: web.Request) -> dict[str, str]:
    reading.no_unknown(request.query, PARAMETERS)
    given: dict[str, str] = {}
    for name, value in request.query.items():
        if name in given:
            raise refused(ErrorClass.BAD_REQUEST, f"{name} comes twice")
        if not value and name not in _MAY_BE_EMPTY:
            raise refused(ErrorClass.BAD_REQUEST, f"{name} is empty")
        given[name] = value
    return given


def _form(request: web.Request, given: Mapping[str, str]) -> Form:
    kind = _KINDS.get(request.content_type)
    if kind is None or (request.charset or "utf-8").lower() != "utf-8":
        raise refused(
            ErrorClass.CONTENT_TYPE,
            f"Content-Type {request.headers.get('Content-Type', '')[:80]!r} is not known here",
            f"send one of {', '.join(FormKind)}; texts in UTF-8",
        )
    options = {name: given[name] for name in _OF_FORM if name in given}
    _check_options(kind, options)
    line = options.pop("first_line", "1")
    if not (line.isascii() and line.isdigit() and len(line) <= LINE_DIGITS_MAX):
        raise refused(ErrorClass.BAD_REQUEST, "first_line must be a number of a line")
    return Form(kind, first_line=int(line), **options)


def _check_options(kind: FormKind, options: Mapping[str, str]) -> None:
    for name in options:
        if kind not in _TAKES.get(name, FormKind):
            raise refused(ErrorClass.BAD_REQUEST, f"{name} says nothing of {kind.value}")
    delimiter = options.get("delimiter", ",")
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0':
        raise refused(
            ErrorClass.BAD_REQUEST, "delimiter must be one ASCII character, no quote or line end"
        )
    zone = options.get("time_zone", "UTC")
    try:
        ZoneInfo(zone)
    except (ValueError, KeyError, OSError):
        raise refused(ErrorClass.BAD_REQUEST, f"there is no time zone {zone[:80]!r}") from None
