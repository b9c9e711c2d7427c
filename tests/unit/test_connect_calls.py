"""Calls of Spark Connect's clients are limited in size before their content is read."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from haproc import protos
from haproc.config.sections import User
from haproc.doors.connect.calls import CONTROL_BYTES_MAX, Boundary, Call
from haproc.doors.http.access import Access
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome
from haproc.metrics import Metrics
from haproc.statements.request_admission import RequestAdmission
from tests.unit.door_rig import make_config

SESSION = "00000000-0000-0000-0000-00000000000a"


class Context:
    """A handler's view of a call; ``message`` and ``code`` are those that ended it."""

    message = ""
    code = grpc.StatusCode.OK

    def __init__(self, token: str | None = "t") -> None:
        self._metadata = [] if token is None else [("authorization", f"Bearer {token}")]

    def peer(self) -> str:
        return "ipv6:%5B::1%5D:5000"

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return self._metadata

    async def abort(self, code: grpc.StatusCode, message: str, metadata: object) -> None:
        self.message, self.code = message, code
        raise grpc.aio.AbortError


class Left(Context):
    """A call whose client has left: gRPC sends nothing more."""

    async def write(self, response: bytes) -> None:
        raise grpc.aio.InternalError('Failed "execute_batch"')


def boundary_of(tmp_path: Path, access: Access | None = None) -> Boundary:
    """Return a boundary at which the server's id of a session names its user."""
    config = make_config(tmp_path, users=(User("ann", "t"),))
    gate = RequestAdmission(config, Metrics("demo", "a", ["READY"]))
    admission = (access or Access(config)).clients()
    return Boundary(
        admission, gate, lambda key: key.user, lambda error: pytest.fail(str(error)), "a"
    )


@pytest.mark.parametrize(("rpc", "taken"), [("GetStatus", False), ("AnalyzePlan", True)])
async def test_too_large_call_is_refused_unless_it_brings_a_plan(
    tmp_path: Any, rpc: str, taken: bool
) -> None:
    handled: list[bytes] = []

    async def handle(call: Call, request: bytes) -> bytes:
        handled.append(request)
        return b""

    boundary = boundary_of(tmp_path)
    request = protos.base.GetStatusRequest(session_id=SESSION).SerializeToString()
    whole = request + b"\x52" + b"\x80\x80\x40" + bytes(CONTROL_BYTES_MAX)  # a field of no meaning
    handler, context = boundary.unary(rpc, handle), Context()
    if taken:
        await handler.unary_unary(whole, context)
    else:
        with pytest.raises(grpc.aio.AbortError):
            await handler.unary_unary(whole, context)
        assert "HAPROC_TOO_LARGE" in context.message
    assert bool(handled) is taken


async def test_client_that_left_is_logged_as_one_line_without_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "haproc")

    async def handle(call: Call, request: bytes) -> AsyncGenerator[bytes, None]:
        yield b"rows"

    request = protos.base.ExecutePlanRequest(session_id=SESSION).SerializeToString()
    handler, context = boundary_of(tmp_path).streaming("ExecutePlan", handle), Left()
    with pytest.raises(grpc.aio.InternalError):  # which gRPC passes over for a client that left
        await handler.unary_stream(request, context)
    (line,) = caplog.records
    assert (line.levelname, line.exc_info) == ("INFO", None)
    assert "ExecutePlan: its client left" in line.getMessage()
    assert context.message == ""


@pytest.mark.parametrize("operation_id", ["", SESSION])
async def test_client_may_repeat_a_write_of_unknown_outcome_only_under_its_own_id(
    tmp_path: Path, operation_id: str
) -> None:
    """Without its own id the repetition would be another write: gRPC must not repeat it."""

    async def handle(call: Call, request: bytes) -> AsyncGenerator[bytes, None]:
        raise RequestError(
            FailureKind.AVAILABILITY,
            "gone",
            error_class=ErrorClass.STOPPED,
            outcome=WriteOutcome.UNKNOWN,
        )
        yield b""

    request = protos.base.ExecutePlanRequest(session_id=SESSION, operation_id=operation_id)
    handler, context = boundary_of(tmp_path).streaming("ExecutePlan", handle), Context()
    with pytest.raises(grpc.aio.AbortError):
        await handler.unary_stream(request.SerializeToString(), context)
    expected = grpc.StatusCode.UNAVAILABLE if operation_id else grpc.StatusCode.ABORTED
    assert context.code is expected
