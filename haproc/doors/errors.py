"""Failures as the client sees them: one body, one status, whatever went wrong.

Statuses are those of `statuses`. An exception that nobody foresaw is logged under an id and
answered as an availability error with that id: its outcome is unknown, and another HAProc may do
better.
"""

from __future__ import annotations

import logging
import uuid
from typing import Final

from aiohttp import web

from dmq import Json
from haproc.classify.model import RefusedError
from haproc.doors.statuses import (
    BAD_REQUEST,
    BUSY,
    CODE_OF_STATUS,
    EXPECTATION,
    INTERNAL,
    METHOD,
    NOT_FOUND,
    TOO_LARGE,
    status_of,
)
from haproc.engine.errors import EngineError, ErrorKind
from haproc.route.model import FailureKind, Outcome, RequestError

_LOG = logging.getLogger(__name__)

_CLASS_OF_HTTP: Final = {
    404: (NOT_FOUND, "there is nothing at this path", "see /openapi.json"),
    405: (METHOD, "this path has no such method", "see /openapi.json"),
    413: (TOO_LARGE, "the request is too large", ""),
    417: (EXPECTATION, "the request expects what is not done here", "leave Expect out"),
}


def refused(error_class: str, message: str, hint: str = "") -> RequestError:
    """Return the error of a request that HAProc will not run; nothing was changed."""
    return RequestError(FailureKind.REFUSED, message, error_class=error_class, hint=hint)


def busy(message: str) -> RequestError:
    """Return the error of a request that came while too many were under way."""
    return RequestError(
        FailureKind.AVAILABILITY,
        message,
        error_class=BUSY,
        hint="try the next HAProc, or again a little later, with the same request id",
    )


def body_of(
    error: RequestError, cluster: str, statement_id: str | None = None, status: int = 0
) -> dict[str, Json]:
    """Return the error's JSON body; also the ``status.error`` of a failed statement."""
    return {
        "error_code": CODE_OF_STATUS[status or status_of(error)],
        "message": error.message,
        "error_class": error.error_class,
        "sqlstate": error.sqlstate,
        "kind": error.kind.value,
        "outcome": error.outcome.value,
        "hint": error.hint,
        "cluster": cluster,
        "log_offset": error.offset,
        "statement_id": statement_id,
    }


def as_request_error(error: BaseException, what: str) -> RequestError:
    """Turn whatever was raised while ``what`` was done into what the client is told."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, RefusedError):
        return refused(error.error_class, error.message, error.hint)
    if isinstance(error, EngineError):
        return _of_engine(error)
    if isinstance(error, web.HTTPException):
        return _of_http(error)
    if isinstance(error, web.RequestPayloadError):
        return refused(BAD_REQUEST, "the request's body is not what its head says")
    return internal(error, what)


def internal(error: BaseException, what: str) -> RequestError:
    """Log an exception that nobody foresaw and return what the client is told of it."""
    reference = uuid.uuid4().hex[:12]
    _LOG.error("%s failed unexpectedly, reference %s", what, reference, exc_info=error)
    return RequestError(
        FailureKind.AVAILABILITY,
        f"an internal error of HAProc, reference {reference}",
        error_class=INTERNAL,
        outcome=Outcome.UNKNOWN,
        hint="try the next HAProc with the same request id; this HAProc's log has the details",
    )


def _of_engine(error: EngineError) -> RequestError:
    """Errors of a result that is being read: the statement itself was accepted before."""
    application = error.kind is ErrorKind.APPLICATION
    return RequestError(
        FailureKind.APPLICATION if application else FailureKind.AVAILABILITY,
        error.message,
        error_class=error.error_class,
        sqlstate=error.sqlstate,
        hint="" if application else "try the next HAProc with the same request id",
    )


def _of_http(error: web.HTTPException) -> RequestError:
    if error.status in _CLASS_OF_HTTP:
        return refused(*_CLASS_OF_HTTP[error.status])
    return refused(BAD_REQUEST, error.reason or "the request cannot be read")
