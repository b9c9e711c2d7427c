"""Whether a request that comes with the id of one that is known is the same, or may be.

What is raised here is a RequestError.
"""

from __future__ import annotations

from haproc.failure import ErrorClass, refused
from haproc.route.model import Freshness, Request
from haproc.statements.request import Delivery, StatementRequest


def check_same(first: Request, request: Request) -> None:
    """Refuse another statement under a known id."""
    if first.fingerprint != request.fingerprint:
        raise refused(
            ErrorClass.REQUEST_ID_REUSED,
            f"request_id {request.id} was used for another request",
            "use a new request_id for each statement; repeat it only for the same one",
        )


def check_as_fresh(first: Request, delivery: Delivery | None, asked: StatementRequest) -> None:
    """Refuse to attach to a statement whose result has another form, or may be too old."""
    request = asked.request
    fresh = request.freshness in (first.freshness, Freshness())
    if delivery != asked.delivery or not fresh:
        raise refused(
            ErrorClass.REQUEST_ID_REUSED,
            f"request_id {request.id} was used with another format, disposition, "
            "limit or consistency",
            "fetch its result as it is, or use another request_id",
        )


def asks_for_other(request: Request, first: Request) -> bool:
    """Whether a write must be asked for anew: its answer may be another one to this request."""
    other = first.write_concern is not request.write_concern
    return other or first.standing != request.standing
