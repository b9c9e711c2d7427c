"""A result as one Arrow IPC stream, sent while the cluster makes it.

Each of the cluster's chunks is a whole stream; they are put together as one by leaving out the
further schemas and end markers. Backpressure: the next chunk is taken only once the client took
the last one. A failure after the first byte breaks the connection off, so that what came before
can't be taken for a whole result.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web

from dmq import Json
from haproc.doors.http.context import ARROW_STREAM
from haproc.doors.http.errors import as_request_error
from haproc.engine.arrow import empty_stream
from haproc.engine.frames import END_OF_STREAM, continuation, opening
from haproc.engine.interface import Chunk
from haproc.failure import ErrorClass, RequestError, refused
from haproc.metrics import Metrics
from haproc.route.model import Answer
from haproc.statements.cut import Cutter
from haproc.statements.execution import Execution, ha_block
from haproc.statements.registry import Registry
from haproc.statements.request import StatementRequest

_LOG = logging.getLogger(__name__)

_OUTCOMES_CHARACTERS_MAX: Final = 1000
"""Six bytes each at most, as JSON in ASCII."""
STALL_S: Final = 60.0
"""A client that takes nothing for so long is cut off: it holds the cluster's result back."""


class Streams:
    """Answers statements with streams."""

    def __init__(self, registry: Registry, metrics: Metrics, stall_s: float = STALL_S) -> None:
        self._registry = registry
        self._metrics = metrics
        self._stall_s = stall_s

    async def answer(self, request: web.Request, asked: StatementRequest) -> web.StreamResponse:
        """Run the statement and stream its result; raises RequestError before the first byte."""
        started_s = time.monotonic()
        label, outcome = "unknown", "ok"
        try:
            with self._registry.gate.place(asked.request.user):
                execution, answer = await self._registry.open_stream(asked.request)
                label = execution.class_label
                with self._registry.streaming(execution):
                    return await self._send(request, asked, execution, answer)
        except RequestError as error:
            outcome = error.kind.value
            raise
        except (asyncio.CancelledError, ConnectionError):
            outcome = "canceled"
            raise
        finally:
            self._metrics.request(label, outcome, time.monotonic() - started_s)

    async def _send(
        self,
        request: web.Request,
        asked: StatementRequest,
        execution: Execution,
        answer: Answer,
    ) -> web.StreamResponse:
        cutter = Cutter(asked.delivery.rows_max, asked.delivery.bytes_max)
        chunks = aiter(answer.result)
        response: web.StreamResponse | None = None
        try:
            taken = cutter.take(await self._first(chunks, execution))
            assert taken is not None  # the first chunk always passes, if only with its schema
            response = _head(answer)
            await response.prepare(request)
            try:
                await self._write(response, opening(taken.data))
                await self._write_rest(response, cutter, chunks)
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
        finally:
            await answer.result.aclose()

    async def _write_rest(
        self, response: web.StreamResponse, cutter: Cutter, chunks: AsyncIterator[Chunk]
    ) -> None:
        while not cutter.done:
            chunk = await anext(chunks, None)
            if chunk is None:
                break
            taken = cutter.take(chunk)
            if taken is not None:
                await self._write(response, continuation(taken.data))
        await self._write(response, memoryview(END_OF_STREAM))
        await response.write_eof()

    async def _first(self, chunks: AsyncIterator[Chunk], execution: Execution) -> Chunk:
        try:
            return await anext(chunks, None) or Chunk(empty_stream(), 0)
        except Exception as error:
            raise self._registry.told(execution, error) from error

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


def _head(answer: Answer) -> web.StreamResponse:
    report = json.dumps(
        _short(ha_block(answer.report, answer.affected_rows)), separators=(",", ":")
    )
    return web.StreamResponse(headers={"Content-Type": ARROW_STREAM, "HAProc-Report": report})


def _short(report: dict[str, Json]) -> dict[str, Json]:
    """Cut the outcomes' texts so that the header stays under what HTTP clients take (8 KiB)."""
    outcomes = report["outcomes"]
    assert isinstance(outcomes, dict)
    share = _OUTCOMES_CHARACTERS_MAX // max(1, len(outcomes))
    return {**report, "outcomes": {name: str(text)[:share] for name, text in outcomes.items()}}
