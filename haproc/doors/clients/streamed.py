"""A result as an answer's body, sent while the cluster makes it.

Backpressure: the next piece is taken only once the client took the last one. A failure after the
first byte breaks the connection off, so that what came before can't be taken for a whole result.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator
from typing import Final

from aiohttp import web

from dmq import Json
from haproc.doors.clients.answers import ha_block
from haproc.doors.http.bodies import ARROW_STREAM
from haproc.doors.http.errors import as_request_error
from haproc.failure import ErrorClass, refused
from haproc.route.model import Answer
from haproc.route.streams import Collected
from haproc.statements.arrow_stream import arrow_stream
from haproc.statements.execution import Execution
from haproc.statements.registry import Registry
from haproc.statements.request import StatementRequest

_LOG = logging.getLogger(__name__)

_OUTCOMES_CHARACTERS_MAX: Final = 1000
"""Six bytes each at most, as JSON in ASCII."""
STALL_S: Final = 60.0
"""A client that takes nothing for so long is cut off: it holds the cluster's result back."""


class StreamedAnswers:
    """Answers statements with streams."""

    def __init__(self, registry: Registry, stall_s: float = STALL_S) -> None:
        self._registry = registry
        self._stall_s = stall_s

    async def answer(self, request: web.Request, asked: StatementRequest) -> web.StreamResponse:
        """Run the statement and stream its result; raises RequestError before the first byte."""
        assert asked.delivery is not None
        async with self._registry.stream(asked.request) as (execution, answer):
            pieces = arrow_stream(answer.result, asked.delivery)
            async with contextlib.aclosing(pieces):
                if isinstance(answer.result, Collected):  # a write's few numbers
                    body = b"".join([piece async for piece in pieces])
                    return web.Response(body=body, headers=_headers(answer))
                return await self._send(request, execution, answer, pieces)

    async def _send(
        self,
        request: web.Request,
        execution: Execution,
        answer: Answer,
        pieces: AsyncGenerator[memoryview],
    ) -> web.StreamResponse:
        response: web.StreamResponse | None = None
        try:
            first = await self._first(pieces, execution)
            response = web.StreamResponse(headers=_headers(answer))
            await response.prepare(request)
            try:
                await self._write(response, first)
                async for piece in pieces:
                    await self._write(response, piece)
                await response.write_eof()
            except Exception as error:
                self._break_off(request, execution, error)
            return response
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not execution.abandoned or task is None:
                raise
            task.uncancel()  # not the client went away, but it asked for the end
            if response is None:
                raise refused(ErrorClass.CANCELED, "the statement was canceled") from None
            self._break_off(request, execution, ConnectionError())
            return response

    async def _first(self, pieces: AsyncGenerator[memoryview], execution: Execution) -> memoryview:
        try:
            return await anext(pieces)
        except Exception as error:
            raise self._registry.failure(execution, error) from error

    async def _write(self, response: web.StreamResponse, data: memoryview) -> None:
        async with asyncio.timeout(self._stall_s):
            await response.write(data)

    def _break_off(self, request: web.Request, execution: Execution, error: Exception) -> None:
        """End the connection without the body's end."""
        if isinstance(error, TimeoutError):
            _LOG.warning("statement %s: the client took nothing for a while", execution.id)
        elif not isinstance(error, ConnectionError):
            told = as_request_error(error, f"statement {execution.id}")
            _LOG.warning("statement %s broke off: %s", execution.id, told.message)
        if request.transport is not None:
            with contextlib.suppress(RuntimeError):
                request.transport.abort()


def _headers(answer: Answer) -> dict[str, str]:
    report = json.dumps(
        _short(ha_block(answer.report, answer.affected_rows)), separators=(",", ":")
    )
    return {"Content-Type": ARROW_STREAM, "HAProc-Report": report}


def _short(report: dict[str, Json]) -> dict[str, Json]:
    """Cut the outcomes' texts so that the header stays under what HTTP clients take (8 KiB)."""
    outcomes = report["outcomes"]
    assert isinstance(outcomes, dict)
    share = _OUTCOMES_CHARACTERS_MAX // max(1, len(outcomes))
    return {**report, "outcomes": {name: str(text)[:share] for name, text in outcomes.items()}}
