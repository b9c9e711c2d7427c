"""The door for statements: ``/api/2.0/sql/statements`` and the links to results."""

from __future__ import annotations

import uuid
from dataclasses import replace
from functools import partial
from typing import Final

from aiohttp import web

from dmq import Json
from haproc.classify.model import WriteConcern
from haproc.config.model import Config
from haproc.doors.clients.answers import LINK_SECRET, RESULTS_PATH, Answers, StreamedAnswers
from haproc.doors.clients.statement_request import READ_HEADERS, read_statement
from haproc.doors.http import reading
from haproc.doors.http.access import ADMITTED, USER
from haproc.doors.http.bodies import (
    ARRIVED,
    ARROW_STREAM,
    HELD,
    REQUESTED,
    check_json,
    json_response,
    raw_json,
    read_body,
)
from haproc.doors.http.statuses import STATEMENTS_PATH, RequestedStatement
from haproc.failure import ErrorClass, FailureKind, refused
from haproc.route.model import Service
from haproc.route.offload import Texts
from haproc.statements.execution import Execution
from haproc.statements.registry import Registry
from haproc.statements.request import Format, OnWaitTimeout, StatementRequest

RECALL_S: Final = 1.0
"""How long an answer waits for the outcome of a write that is in the log; mostly it is known at
once. Chosen, not measured."""


DEFAULT_CONCERN: Final = "default"
"""The value of the query's ``concern`` that stands for the ring's default write concern."""


class StatementDoor:
    """The handlers of requests about statements; each web application of aiohttp has one object."""

    def __init__(
        self,
        config: Config,
        registry: Registry,
        texts: Texts,
        service: Service,
        cluster: str,
    ) -> None:
        self._config = config
        self._service = service
        self._cluster = cluster
        self._texts = texts
        self._registry = registry
        self._answers = Answers(registry, cluster)
        self._streams = StreamedAnswers(registry)

    def routes(self) -> list[web.RouteDef]:
        """Return these handlers' HTTP methods and paths, for aiohttp."""
        one = STATEMENTS_PATH + "/{statement_id}"
        return [
            web.post(STATEMENTS_PATH, self.execute),
            web.get(one, self.status, allow_head=False),
            web.get(one + "/result/chunks/{chunk_index}", self.chunk, allow_head=False),
            web.post(one + "/cancel", self.cancel),
            web.get(
                f"{RESULTS_PATH}/{{{LINK_SECRET}}}/{{chunk_index}}", self.result, allow_head=False
            ),
        ]

    async def execute(self, request: web.Request) -> web.StreamResponse:
        """Run a statement; answer with its result, its state so far, or a stream of rows."""
        check_json(request)
        body = await read_body(request, self._config.limits.statement_body_bytes_max)
        wanted = await self._read(body, request)
        request[REQUESTED] = RequestedStatement(wanted.request.id, wanted.own_id)
        if ARROW_STREAM in request.headers.get("Accept", ""):
            return await self._streams.answer(request, wanted)
        execution = await self._registry.submit(wanted, request[HELD])
        if not await self._registry.wait(execution, wanted.wait_s or 0):
            if wanted.on_wait_timeout is OnWaitTimeout.CANCEL:
                await self._registry.cancel(execution)
            execution.promised = True
        return raw_json(await self._answers.statement(execution, _origin(request)))

    async def status(self, request: web.Request) -> web.Response:
        """Answer with a statement's state and, if it has succeeded, its result."""
        concern = _concern(request)
        execution = self._find(request)
        if execution.recalled:
            await self._registry.wait(execution, RECALL_S)
        stands = await self._stands(execution, concern)
        return raw_json(await self._answers.statement(execution, _origin(request), stands))

    async def _stands(self, execution: Execution, concern: WriteConcern | str) -> dict[str, Json]:
        """Return what more is known of a write, beyond its outcome on this cluster.

        After an application error: this cluster, the offset, and whether the error is final. After
        a success: whether the write concern is met, if the request asks for one. In all other cases
        nothing.
        """
        error, report = execution.error, execution.report
        if error is not None:
            if error.kind is not FailureKind.APPLICATION or error.offset is None:
                return {}
            return {
                "cluster": self._cluster,
                "log_offset": error.offset,
                "final": await self._service.is_final(error.offset),
            }
        if not concern or not execution.finished or report is None or report.offset is None:
            return {}
        requested = concern if isinstance(concern, WriteConcern) else None
        return {"concern_met": await self._service.concern_met(report.offset, requested)}

    async def chunk(self, request: web.Request) -> web.Response:
        """Answer with one chunk of a statement's result, or a link to it."""
        index = _index(request)
        return raw_json(await self._answers.chunk(self._find(request), index, _origin(request)))

    async def cancel(self, request: web.Request) -> web.Response:
        """Cancel a statement; answer with what became of it."""
        found = await self._registry.cancel(self._find(request))
        fields: dict[str, Json] = {"became": found.fate.value}
        fields |= {} if found.offset is None else {"log_offset": found.offset}
        return json_response(fields | ({"message": found.text} if found.text else {}))

    async def result(self, request: web.Request) -> web.Response:
        """Answer with a chunk's bytes; the secret in the link's path says of which result."""
        execution = self._registry.find_link(request.match_info[LINK_SECRET])
        data = await self._answers.data(execution, _index(request))
        assert execution.delivery is not None
        if execution.delivery.format is Format.JSON_ARRAY:
            return raw_json(data)
        return web.Response(body=data, headers={"Content-Type": ARROW_STREAM})

    async def _read(self, body: bytes, request: web.Request) -> StatementRequest:
        headers = {name: request.headers[name] for name in READ_HEADERS if name in request.headers}
        read = partial(
            read_statement,
            user=request[USER],
            made_id=uuid.uuid4().hex,
            timeout_default_s=self._config.timeouts.statement_s,
            arrived_s=request[ARRIVED],
            headers=headers,
            reads=self._config.reads,
        )
        wanted = await self._texts.work_on_text(request[USER], len(body), read, body)
        by = request[ADMITTED]
        made = replace(wanted.request, rights=by.rights, authorization=by.authorization)
        return replace(wanted, request=made)

    def _find(self, request: web.Request) -> Execution:
        return self._registry.find(request.match_info["statement_id"], request[USER])


def _index(request: web.Request) -> int:
    text = request.match_info["chunk_index"]
    index = reading.number_in(text, 9)
    if index is None:
        raise refused(ErrorClass.STATEMENT_UNKNOWN, f"there is no chunk {text[:40]!r}")
    return index


def _concern(request: web.Request) -> WriteConcern | str:
    """Return the write concern that a request asks about, or "default"; "": it asks for none."""
    text = request.query.get("concern", "")
    if text in ("", DEFAULT_CONCERN):
        return text
    found = reading.choice({"concern": text}, "concern", WriteConcern)
    assert found is not None
    return found


def _origin(request: web.Request) -> str:
    return f"{request.scheme}://{request.host}"
