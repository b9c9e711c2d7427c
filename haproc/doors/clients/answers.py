"""Statements as JSON, and results as bodies that are sent while the cluster computes them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import json
import logging
from collections.abc import AsyncGenerator, Mapping
from typing import Final

from aiohttp import web

from dmq import Json
from haproc.doors.http.bodies import ARROW_STREAM, as_request_error, body_of
from haproc.doors.http.statuses import STATEMENTS_PATH
from haproc.failure import ErrorClass, FailureKind, refused
from haproc.route.model import Answer, CacheReport, HaReport
from haproc.route.streams import Collected
from haproc.statements.execution import Execution, StatementState
from haproc.statements.plain_arrow import manifest_column
from haproc.statements.registry import Registry
from haproc.statements.request import Delivery, Disposition, Format, StatementRequest
from haproc.statements.store import Kept, arrow_stream

# Statements as JSON: status, manifest, result, report.
#
# Rows are kept as JSON text already, and are inserted into the rest unchanged.


RESULTS_PATH = "/api/ha/results"
LINK_SECRET = "link_secret"
"""The part of a result link's path that gives access without a token, until the result is gone."""


class Answers:
    """Makes the JSON answers about statements, for one web application."""

    def __init__(self, registry: Registry, cluster: str) -> None:
        self._registry = registry
        self._cluster = cluster

    async def statement(
        self, execution: Execution, origin: str, stands: Mapping[str, Json] | None = None
    ) -> bytes:
        """Return the answer about a statement as JSON; RequestError if the answer is an error.

        ``origin``: this HAProc's URL as the client wrote it, for links. ``stands``: further facts
        about a write, for the answer's ``ha`` block.
        """
        error = execution.error
        if error is not None and error.kind is not FailureKind.APPLICATION:
            raise copy.copy(error)
        body: dict[str, Json] = {
            "statement_id": execution.id,
            "status": {"state": execution.state.value},
        }
        if error is not None:
            body["status"] = {
                "state": "FAILED",
                "error": body_of(error, self._cluster, execution.id),
                **({"sql_state": error.sqlstate} if error.sqlstate else {}),
            }
        if execution.state is not StatementState.SUCCEEDED:
            return _dumps({**body, "ha": dict(stands)} if stands else body)
        assert execution.report is not None and execution.delivery is not None
        body["manifest"] = _manifest(execution.kept, execution.delivery)
        body["ha"] = ha_block(execution.report, execution.affected_rows) | dict(stands or {})
        result = await self._first_result(execution, origin)
        return _dumps(body)[:-1] + b',"result":' + result + b"}"

    async def chunk(self, execution: Execution, index: int, origin: str) -> bytes:
        """Return the ``result`` object with one chunk of a result; raises RequestError."""
        error = execution.error
        if error is not None:
            raise copy.copy(error)
        if not 0 <= index < len(execution.kept.chunks):
            raise refused(
                ErrorClass.STATEMENT_UNKNOWN, f"the statement has no result chunk {index}"
            )
        assert execution.delivery is not None
        if execution.delivery.disposition is Disposition.EXTERNAL_LINKS:
            links: list[Json] = [self._link(execution, index, origin)]
            return _dumps({"external_links": links})
        return await self._inline(execution, index)

    async def data(self, execution: Execution, index: int) -> bytes:
        """Return the bytes of the chunk that a result link is for; raises RequestError."""
        if not 0 <= index < len(execution.kept.chunks):
            raise refused(ErrorClass.STATEMENT_UNKNOWN, "this link is not valid")
        data = await self._registry.store.read_stored_chunk(execution.kept, index)
        self._registry.delivered(execution, index)
        return data

    async def _first_result(self, execution: Execution, origin: str) -> bytes:
        assert execution.delivery is not None
        chunks = execution.kept.chunks
        if execution.delivery.disposition is Disposition.EXTERNAL_LINKS:
            every: list[Json] = [self._link(execution, i, origin) for i in range(len(chunks))]
            return _dumps({"external_links": every})
        if not chunks:
            return b'{"chunk_index":0,"row_offset":0,"row_count":0,"data_array":[]}'
        return await self._inline(execution, 0)

    async def _inline(self, execution: Execution, index: int) -> bytes:
        assert execution.delivery is not None
        chunks = execution.kept.chunks
        head = chunks[index].describe(index)
        if index + 1 < len(chunks):
            head["next_chunk_index"] = index + 1
            head["next_chunk_internal_link"] = (
                f"{STATEMENTS_PATH}/{execution.id}/result/chunks/{index + 1}"
            )
        data = await self._registry.store.read_stored_chunk(execution.kept, index)
        self._registry.delivered(execution, index)
        if execution.delivery.format is Format.JSON_ARRAY:
            return _dumps(head)[:-1] + b',"data_array":' + data + b"}"
        return _dumps(head)[:-1] + b',"attachment":"' + base64.b64encode(data) + b'"}'

    def _link(self, execution: Execution, index: int, origin: str) -> dict[str, Json]:
        assert execution.expires_at is not None
        link = execution.kept.chunks[index].describe(index)
        link["external_link"] = f"{origin}{RESULTS_PATH}/{execution.link_secret}/{index}"
        link["expiration"] = execution.expires_at.isoformat(timespec="seconds")[:19] + "Z"
        if index + 1 < len(execution.kept.chunks):
            link["next_chunk_index"] = index + 1
        return link


def _manifest(kept: Kept, delivery: Delivery) -> dict[str, Json]:
    columns: list[Json] = [manifest_column(column, i) for i, column in enumerate(kept.columns)]
    chunks: list[Json] = [chunk.describe(index) for index, chunk in enumerate(kept.chunks)]
    return {
        "format": delivery.format.value,
        "schema": {"column_count": len(columns), "columns": columns},
        "total_chunk_count": len(chunks),
        "total_row_count": kept.rows,
        "total_byte_count": sum(chunk.byte_count for chunk in kept.chunks),
        "truncated": kept.truncated,
        "chunks": chunks,
    }


def _dumps(body: dict[str, Json]) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def ha_block(report: HaReport, affected_rows: int | None) -> dict[str, Json]:
    """Return the ``ha`` block of an answer: what HAProc adds to Databricks' form."""
    cache = report.cache
    return {
        "cluster": report.cluster,
        "class": report.operation_class.value,
        "log_offset": report.offset,
        "outcomes": {**report.outcomes},
        "affected_rows": affected_rows,
        "after_offset": report.after_offset,
        **({} if cache is None else {"cache": _cache_block(cache)}),
    }


def _cache_block(cache: CacheReport) -> dict[str, Json]:
    age_s = round(cache.age_s, 3)
    return {"hit": cache.hit, "age_s": age_s, "kept": cache.kept, "reason": cache.reason}


# A result as an answer's body, sent while the cluster makes it.
#
# Backpressure: the next piece is read only after the client has taken the last one. A failure after
# the first byte breaks the connection, so the client cannot take the first part for a whole result.


_LOG = logging.getLogger(__name__)

_OUTCOMES_CHARACTERS_MAX: Final = 1000
"""The most characters of all clusters' outcomes in a header; as JSON in ASCII, each takes at most
six bytes."""
STALL_S: Final = 60.0
"""A client that accepts no bytes for this time is cut off, since the cluster waits for it."""


class StreamedAnswers:
    """Answers statements with streams of rows (Arrow), instead of JSON."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def answer(self, request: web.Request, wanted: StatementRequest) -> web.StreamResponse:
        """Run the statement and stream its result; RequestError only before the first byte."""
        assert wanted.delivery is not None
        async with self._registry.stream(wanted.request) as (execution, answer):
            pieces = arrow_stream(answer.result, wanted.delivery)
            async with contextlib.aclosing(pieces):
                if isinstance(answer.result, Collected):  # the few numbers of a write
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
            task.uncancel()  # the client is still there, and asked for the end
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
        async with asyncio.timeout(STALL_S):
            await response.write(data)

    def _break_off(self, request: web.Request, execution: Execution, error: Exception) -> None:
        """End the connection inside the body, so the client sees that rows are missing."""
        if isinstance(error, TimeoutError):
            _LOG.warning("statement %s: the client took nothing for a while", execution.id)
        elif not isinstance(error, ConnectionError):
            reported = as_request_error(error, f"statement {execution.id}")
            _LOG.warning("statement %s broke off: %s", execution.id, reported.message)
        if request.transport is not None:
            with contextlib.suppress(RuntimeError):
                request.transport.abort()


def _headers(answer: Answer) -> dict[str, str]:
    report = json.dumps(
        _short(ha_block(answer.report, answer.affected_rows)), separators=(",", ":")
    )
    return {"Content-Type": ARROW_STREAM, "HAProc-Report": report}


def _short(report: dict[str, Json]) -> dict[str, Json]:
    """Cut the outcomes' texts, so the header stays below the limit of HTTP clients (8 KiB)."""
    outcomes = report["outcomes"]
    assert isinstance(outcomes, dict)
    share = _OUTCOMES_CHARACTERS_MAX // max(1, len(outcomes))
    return {**report, "outcomes": {name: str(text)[:share] for name, text in outcomes.items()}}
