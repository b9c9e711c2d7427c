"""gRPC's health service: whether this door takes new work.

It asks for no token and tells nothing else, so that load balancers and clients may ask it before
they send anything. haclient asks it on each new connection.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc

from haproc.engine.rewriting import fields_of

HEALTH: Final = "grpc.health.v1.Health"
_SERVICE: Final = 1
"""In a HealthCheckRequest: which service is asked for; empty, or missing: the server."""
SERVICE: Final = b"spark.connect.SparkConnectService"
SERVING: Final = b"\x08\x01"
NOT_SERVING: Final = b"\x08\x02"
"""HealthCheckResponses."""


def health_handler(serves: Callable[[], bool]) -> grpc.GenericRpcHandler:
    """Return the handler; ``serves`` is asked at each call."""

    async def check(request: bytes, context: Any) -> bytes:
        try:
            asked = b"".join(fields_of(request, _SERVICE)[-1:])
        except ValueError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "this is no health check")
        if asked not in (b"", SERVICE):
            await context.abort(grpc.StatusCode.NOT_FOUND, "there is no such service")
        return SERVING if serves() else NOT_SERVING

    method = grpc.unary_unary_rpc_method_handler(check)
    return grpc.method_handlers_generic_handler(HEALTH, {"Check": method})
