"""A server that is about to end sends its clients away first.

gRPC ends a call that arrives just as its server shuts down with CANCELLED, which clients of Spark
Connect do not repeat: a program would see it. So for a moment, until no more calls come, each is
answered UNAVAILABLE, with a pause (`DRAINING_RETRY_S`) that is longer than that moment: each client
comes once, and finds the door closed when it comes again.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc

from haproc.doors.connect.calls import abort
from haproc.doors.connect.errors import told
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome

_TURN_S: Final = 0.01
_QUIET_TURNS: Final = 10
_TURNS_MAX: Final = 50
"""Half a second. Turns of the loop are counted, not time: calls that wait for a busy one are taken
before its next turn."""


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The handlers of one server, until it sends its clients away."""

    def __init__(self, handlers: grpc.GenericRpcHandler) -> None:
        self._handlers = handlers
        self._leaving = False
        self._refused = 0

    def service(self, handler_call_details: Any) -> Any:
        """Return what answers a call; None for one that nobody here knows."""
        handler = self._handlers.service(handler_call_details)
        if handler is None or not self._leaving:
            return handler
        self._refused += 1
        return _refusing(handler)

    async def send_away(self) -> None:
        """Refuse all new calls from now on; return once no more come, or after half a second."""
        self._leaving = True
        quiet = 0
        for _ in range(_TURNS_MAX):
            before = self._refused
            await asyncio.sleep(_TURN_S)
            quiet = quiet + 1 if self._refused == before else 0
            if quiet == _QUIET_TURNS:
                return


def _refusing(handler: Any) -> Any:
    """Return a handler of the same shape that sends its client elsewhere."""

    async def refuse(_: Any, context: Any) -> None:
        error = RequestError(
            FailureKind.AVAILABILITY,
            "this HAProc closes its door",
            error_class=ErrorClass.DRAINING,
            outcome=WriteOutcome.NOT_SENT,
        )
        await abort(context, told(error))

    if handler.request_streaming:
        return grpc.stream_unary_rpc_method_handler(refuse)
    if handler.response_streaming:
        return grpc.unary_stream_rpc_method_handler(refuse)
    return grpc.unary_unary_rpc_method_handler(refuse)
