"""The door through which peers have their clients' queries run here, under the clients' names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from aiohttp import web

from haproc.classify.model import OperationClass
from haproc.doors.clients.streamed import STALL_S
from haproc.doors.http import fields
from haproc.doors.http.access import Credentials
from haproc.doors.http.bodies import check_json, read_body
from haproc.doors.http.errors import CLUSTER, as_request_error, body_of
from haproc.engine.interface import Chunk
from haproc.failure import ErrorClass, refused
from haproc.route import pieces
from haproc.route.forward import AFTER_HEADER, PATH
from haproc.route.model import Answer, Request, SentSql
from haproc.route.offload import Inline, Texts
from haproc.statements.request import TIMEOUT_MAX_S
from haproc.statements.request_admission import RequestAdmission

_FIELDS: Final = (
    "request_id",
    "statement",
    "user",
    "catalog",
    "schema",
    "operation_class",
    "needed",
    "timeout_s",
)


class QueryService(Protocol):
    """What runs peers' queries."""

    async def query_for_peer(self, request: Request, needed: int) -> Answer:
        """Run a query here once ``needed`` records are applied; raises RequestError."""
        ...


@dataclass(frozen=True, slots=True)
class Forwarded:
    """Who runs peers' queries, and how many may be under way together with clients' own."""

    service: QueryService
    request_admission: RequestAdmission
    texts: Texts = field(default_factory=Inline)


class ForwardedDoor:
    """The handler."""

    def __init__(self, forwarded: Forwarded, credentials: Credentials, bytes_max: int) -> None:
        self._service = forwarded.service
        self._request_admission = forwarded.request_admission
        self._texts = forwarded.texts
        self._credentials = credentials
        self._bytes_max = bytes_max

    def routes(self) -> list[web.RouteDef]:
        """Return the route."""
        return [web.post(PATH, self.query)]

    async def query(self, request: web.Request) -> web.StreamResponse:
        """Run a query and send its result as pieces."""
        self._credentials.user_of(request.headers)
        check_json(request)
        body = await read_body(request, self._bytes_max)
        asked, needed = await self._texts.run("", len(body), read_query, body)
        # Its HAProc keeps a place for it meanwhile, and knows of others to ask.
        async with self._request_admission.permit(asked.user, waits=False):
            answer = await self._service.query_for_peer(asked, needed)
            try:
                return await _send(request, answer)
            finally:
                await answer.result.aclose()


async def _send(request: web.Request, answer: Answer) -> web.StreamResponse:
    after = str(answer.report.after_offset or 0)
    response = web.StreamResponse(
        headers={"Content-Type": pieces.CONTENT_TYPE, AFTER_HEADER: after}
    )
    await response.prepare(request)
    try:
        async for chunk in _checked(answer):
            await _write(response, pieces.chunk_head(chunk))
            await _write(response, chunk.data)
        await _write(response, pieces.end())
    except _FailedError as failed:
        told = as_request_error(failed.error, f"query for a peer {request.remote}", only_reads=True)
        await _write(response, pieces.error(body_of(told, request.app[CLUSTER])))
    await response.write_eof()
    return response


class _FailedError(Exception):
    """The result's own failure, told apart from that of the connection it is sent on."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


async def _checked(answer: Answer) -> AsyncIterator[Chunk]:
    chunks = aiter(answer.result)
    while True:
        try:
            chunk = await anext(chunks, None)
        except Exception as error:
            raise _FailedError(error) from error
        if chunk is None:
            return
        yield chunk


async def _write(response: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(STALL_S):
        await response.write(data)


def read_query(body: bytes) -> tuple[Request, int]:
    """Return what a peer asks, and how many records it needs; raises RequestError."""
    given = fields.parse_object(body)
    fields.no_unknown(given, _FIELDS)
    statement, user = fields.needed_text(given, "statement"), fields.needed_text(given, "user")
    request_id = fields.identifier(given, "request_id")
    timeout_s = fields.seconds(given.get("timeout_s"), "timeout_s", TIMEOUT_MAX_S)
    needed = fields.offset(given, "needed")
    if request_id is None or timeout_s is None or needed is None:
        raise refused(ErrorClass.BAD_REQUEST, "request_id, needed and timeout_s are all needed")
    request = Request(
        id=request_id,
        statement=SentSql(statement),
        fingerprint="",
        user=user,
        catalog=fields.text(given, "catalog"),
        schema=fields.text(given, "schema"),
        operation_class=fields.choice(given, "operation_class", OperationClass),
        timeout_s=timeout_s,
    )
    return request, needed
