"""Tests of requests in the wait queue: disconnected clients, cancellations, HAProc's end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from haproc.classify.model import OperationClass
from haproc.config.sections import Limits
from haproc.doors.apps import REGISTRY
from haproc.failure import RequestError
from haproc.route.model import Request, SentSql
from haproc.statements.execution import StatementState
from haproc.statements.request import Delivery, StatementRequest
from tests.unit.canned import ONE, Canned
from tests.unit.door_rig import ARROW, STATEMENTS, WAIT_S, Rig, door, until

ONE_PLACE = Limits(statements_max=1)
SHAPES = pytest.mark.parametrize("headers", [{}, ARROW], ids=["whole", "streamed"])


def request_of(request_id: str, statement: str = "SELECT 1") -> Request:
    return Request(request_id, SentSql(statement), "f", "anonymous", timeout_s=5)


async def ask(rig: Rig, headers: dict[str, str], **body: Any) -> tuple[int, dict[str, Any]]:
    sent = {"statement": "SELECT 1", "request_id": "r", **body}
    async with rig.http.post(rig.url + STATEMENTS, json=sent, headers=headers) as response:
        has_json = response.content_type == "application/json"
        return response.status, await response.json() if has_json else {}


async def given_back(rig: Rig) -> None:
    gate = rig.app[REGISTRY].request_admission
    await until(lambda: gate.inside == gate._wait_queue.length == gate._bytes.taken == 0)


async def test_statement_cancelled_before_it_begins_returns_its_permit(
    tmp_path: Path,
) -> None:
    async with door(tmp_path, limits=ONE_PLACE) as rig:
        registry = rig.app[REGISTRY]
        rig.service.table["SELECT 1"] = Canned(hold=asyncio.Event())
        execution = await registry.submit(StatementRequest(request_of("r"), Delivery()))
        await registry.cancel(execution)  # its task had no turn yet
        rig.service.table["SELECT 1"] = ONE
        assert execution.state is StatementState.CANCELED
        await given_back(rig)
        async with asyncio.timeout(WAIT_S), registry.stream(request_of("r")):
            pass  # nobody waits for what has ended


async def test_statement_and_stream_with_the_same_id_do_not_block_each_other(
    tmp_path: Path,
) -> None:
    async with door(tmp_path, limits=ONE_PLACE) as rig:
        gate = rig.app[REGISTRY].request_admission
        async with gate.permit("x"):
            asking = [asyncio.create_task(ask(rig, ARROW))]
            await until(lambda: gate._wait_queue.length == 1)
            asking.append(asyncio.create_task(ask(rig, {})))
            await until(lambda: gate._waiting.taken == 2)
        async with asyncio.timeout(WAIT_S):
            assert [status for status, _ in await asyncio.gather(*asking)] == [200, 200]


@SHAPES
async def test_request_timeout_includes_the_time_in_the_wait_queue(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    async with door(tmp_path, limits=ONE_PLACE) as rig:
        gate = rig.app[REGISTRY].request_admission
        async with gate.permit("x"):
            status, answer = await ask(rig, headers, timeout_s=0.05)
            assert (status, answer["error_class"]) == (429, "HAPROC_BUSY")
            assert answer["outcome"] == "NOT_SENT"
            asking = asyncio.create_task(ask(rig, headers, request_id="s", timeout_s=20))
            await until(lambda: gate._wait_queue.length == 1)
        await asking
        assert 0 < rig.service.requests[-1].timeout_s < 20


@SHAPES
async def test_waiting_statement_can_be_cancelled(tmp_path: Path, headers: dict[str, str]) -> None:
    async with door(tmp_path, limits=ONE_PLACE) as rig:
        gate = rig.app[REGISTRY].request_admission
        async with gate.permit("x"):
            asking = asyncio.create_task(ask(rig, headers))
            await until(lambda: gate._wait_queue.length == 1)
            assert await rig.status_of("post", f"{STATEMENTS}/r/cancel") == 200
            status, answer = await asking
            ended = answer.get("error_class") or answer["status"]["state"]
            assert (status, ended) in ((200, "CANCELED"), (400, "HAPROC_CANCELED"))
        await given_back(rig)
        assert not rig.service.requests


@SHAPES
async def test_waiting_write_whose_client_disconnects_is_not_executed(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    async with door(tmp_path, limits=ONE_PLACE) as rig:
        gate = rig.app[REGISTRY].request_admission
        async with gate.permit("x"):
            write = {"statement": "INSERT", "operation_class": "asynchronous"}
            asking = asyncio.create_task(ask(rig, headers, **write))
            await until(lambda: gate._wait_queue.length == 1)
            asking.cancel()
            await until(lambda: gate._wait_queue.length == 0)
            assert gate.inside == 1
        await given_back(rig)
        assert not rig.service.requests


@SHAPES
async def test_waiting_request_when_haproc_stops_is_refused_and_not_executed(
    tmp_path: Path, headers: dict[str, str]
) -> None:
    async with door(tmp_path, limits=ONE_PLACE) as rig:
        gate = rig.app[REGISTRY].request_admission
        async with gate.permit("x"):
            asking = asyncio.create_task(ask(rig, headers, statement="INSERT"))
            await until(lambda: gate._wait_queue.length == 1)
            gate.leave_all()
            async with asyncio.timeout(WAIT_S):
                status, answer = await asking
            assert (status, answer["error_class"]) == (503, "HAPROC_STOPPED")
            assert answer["outcome"] == "NOT_SENT"
        await given_back(rig)
        assert not rig.service.requests


async def test_statement_answered_as_not_sent_when_haproc_stops_is_cancelled(
    tmp_path: Path,
) -> None:
    async with door(tmp_path) as rig:
        registry = rig.app[REGISTRY]
        hold = asyncio.Event()
        rig.service.table["INSERT"] = Canned(hold=hold)  # not known to be a write as yet
        execution = await registry.submit(StatementRequest(request_of("r", "INSERT"), Delivery()))
        waiting = asyncio.create_task(registry.wait(execution, None))
        await rig.service.started.wait()
        registry.request_admission.leave_all()
        with pytest.raises(RequestError) as caught:
            await waiting
        assert caught.value.outcome == "NOT_SENT"
        hold.set()
        await until(lambda: execution.state is StatementState.CANCELED)
        assert rig.service.cancelled == ["r"] and not rig.service.finished


async def test_refusal_of_a_write_that_is_in_the_log_has_an_unknown_outcome(tmp_path: Path) -> None:
    for queue_s in (0.0, 0.05):
        limits = Limits(statements_max=1, statement_queue_s=queue_s)
        async with door(tmp_path, limits=limits) as rig:
            written = replace(request_of("w"), operation_class=OperationClass.ASYNCHRONOUS)
            rig.service.written["anonymous", "w"] = written
            async with rig.app[REGISTRY].request_admission.permit("x"):
                answer = await rig.get(f"{STATEMENTS}/w", 429)
                assert answer["outcome"] == "UNKNOWN"
