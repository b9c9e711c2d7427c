"""What a gRPC status means for failover; codes are given by name, so gRPC is not imported.

gRPC's health check shows if a server lives. A server without the health service answers that it has
none, which is a sign of life, too. An error with details comes from a server, an error without
details from the connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from haclient.exceptions import Failure, FailureKind, Outcome
from haclient.failover import AttemptEnd, Pulse
from haclient.protocol import (
    Broken,
    Busy,
    Hung,
    InDoubt,
    Leaving,
    NotReached,
    NotTaken,
    WireError,
    end_of,
)

HEALTH_CHECK = "/grpc.health.v1.Health/Check"
UNAVAILABLE = "UNAVAILABLE"
_NOT_SERVING = b"\x08\x02"
"""The bytes of grpc.health.v1.HealthCheckResponse(status=NOT_SERVING)."""


class Health(Enum):
    """What a health check of a server found."""

    SERVING = Pulse.ALIVE
    NOT_SERVING = "not serving"
    REFUSED = Pulse.REFUSED
    SILENT = Pulse.SILENT

    @property
    def pulse(self) -> Pulse:
        """Return what the health check shows of the server's liveness."""
        return self.value if isinstance(self.value, Pulse) else Pulse.ALIVE


def health(code: str, answer: bytes = b"") -> Health:
    """Return what a health check found; ``code``: its gRPC status; ``answer``: its bytes."""
    if code == "OK":
        return Health.NOT_SERVING if answer.startswith(_NOT_SERVING) else Health.SERVING
    if code == UNAVAILABLE:
        return Health.REFUSED
    return Health.SILENT if code == "DEADLINE_EXCEEDED" else Health.SERVING


def greeted(server: str, found: Health, details: str) -> WireError | None:
    """Return the error if a server must get no calls after its first check; None if it serves."""
    if found is Health.SERVING:
        return None
    if found is Health.NOT_SERVING:
        return Leaving(f"{server} is out of service, or about to be")
    return NotReached(f"{server} cannot be reached: {details}")


@dataclass(frozen=True, slots=True)
class CallEnd:
    """How a failed gRPC call ended."""

    code: str
    details: str
    error_class: str | None
    """The error class that the server stated; empty: it stated none.

    None: the status is not from a server, but from the connection.
    """
    outcome: Outcome = Outcome.UNKNOWN
    """The effect of a write, if the server stated it; else UNKNOWN."""
    retry_after_s: float = 0.0
    """The pause that the server asks for before the next attempt."""


def failed(server: str, call_end: CallEnd, hung: bool) -> WireError | None:
    """Return what a failed call means for failover; None if the error is the request's answer."""
    if hung:
        return Hung(f"{server} accepts connections but does not answer")
    if call_end.code != UNAVAILABLE:
        return None
    if call_end.error_class is None:
        return Broken(f"the connection to {server} broke: {call_end.details}")
    end = end_of(
        Failure(
            FailureKind.AVAILABILITY,
            call_end.details,
            call_end.outcome,
            error_class=call_end.error_class,
        )
    )
    match end:
        case AttemptEnd.IN_DOUBT:
            return InDoubt(call_end.details)
        case AttemptEnd.BUSY:
            return Busy(call_end.details, call_end.retry_after_s)
        case AttemptEnd.LEAVING:
            return Leaving(call_end.details)
        case _:
            return NotTaken(call_end.details)
