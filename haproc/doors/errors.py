"""Failures as the client sees them: one body, one status, whatever went wrong.

The HTTP status follows from the error's kind, except for HAProc's own error classes in
`STATUS_OF_CLASS`. An exception that nobody foresaw is logged under an id and answered as an
availability error with that id: its outcome is unknown, and another HAProc may do better.
"""

from __future__ import annotations

import logging
import uuid
from typing import Final

from aiohttp import web

from dmq import Json
from haproc.classify.model import RefusedError
from haproc.engine.errors import EngineError, ErrorKind
from haproc.route.model import FailureKind, Outcome, RequestError

_LOG = logging.getLogger(__name__)

BAD_REQUEST: Final = "HAPROC_BAD_REQUEST"
UNAUTHENTICATED: Final = "HAPROC_UNAUTHENTICATED"
NOT_FOUND: Final = "HAPROC_NOT_FOUND"
METHOD: Final = "HAPROC_METHOD_NOT_ALLOWED"
STATEMENT_UNKNOWN: Final = "HAPROC_STATEMENT_UNKNOWN"
SESSION_UNKNOWN: Final = "HAPROC_SESSION_UNKNOWN"
BODY_TIMEOUT: Final = "HAPROC_BODY_TIMEOUT"
OFFSET_UNKNOWN: Final = "HAPROC_OFFSET_UNKNOWN"
NOT_NOW: Final = "HAPROC_NOT_NOW"
REQUEST_ID_REUSED: Final = "HAPROC_REQUEST_ID_REUSED"
TOO_LARGE: Final = "HAPROC_TOO_LARGE"
RESULT_TOO_LARGE: Final = "HAPROC_RESULT_TOO_LARGE"
CONTENT_TYPE: Final = "HAPROC_CONTENT_TYPE"
EXPECTATION: Final = "HAPROC_EXPECTATION"
ROWS_MISFIT: Final = "HAPROC_ROWS_MISFIT"
BUSY: Final = "HAPROC_BUSY"
CANCELED: Final = "HAPROC_CANCELED"
RESULTS_FULL: Final = "HAPROC_RESULTS_FULL"
INTERNAL: Final = "HAPROC_INTERNAL"

STATUS_OF_CLASS: Final = {
    UNAUTHENTICATED: 401,
    NOT_FOUND: 404,
    STATEMENT_UNKNOWN: 404,
    SESSION_UNKNOWN: 404,
    OFFSET_UNKNOWN: 404,
    METHOD: 405,
    BODY_TIMEOUT: 408,
    REQUEST_ID_REUSED: 409,
    NOT_NOW: 409,
    TOO_LARGE: 413,
    "HAPROC_OPERATION_TOO_LARGE": 413,
    RESULT_TOO_LARGE: 413,
    CONTENT_TYPE: 415,
    EXPECTATION: 417,
    BUSY: 429,
}
_STATUS_OF_KIND: Final = {
    FailureKind.REFUSED: 400,
    FailureKind.APPLICATION: 422,
    FailureKind.AVAILABILITY: 503,
}
_CODE_OF_STATUS: Final = {
    400: "BAD_REQUEST",
    401: "UNAUTHENTICATED",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    408: "REQUEST_TIMEOUT",
    409: "ALREADY_EXISTS",
    413: "REQUEST_TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    417: "EXPECTATION_FAILED",
    422: "BAD_REQUEST",
    429: "REQUEST_LIMIT_EXCEEDED",
    503: "TEMPORARILY_UNAVAILABLE",
}
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


def status_of(error: RequestError) -> int:
    """Return the HTTP status of an error's body."""
    return STATUS_OF_CLASS.get(error.error_class, _STATUS_OF_KIND[error.kind])


def body_of(error: RequestError, cluster: str) -> dict[str, Json]:
    """Return the error's JSON body; also the ``status.error`` of a failed statement."""
    return {
        "error_code": _CODE_OF_STATUS[status_of(error)],
        "message": error.message,
        "error_class": error.error_class,
        "sqlstate": error.sqlstate,
        "kind": error.kind.value,
        "outcome": error.outcome.value,
        "hint": error.hint,
        "cluster": cluster,
        "log_offset": error.offset,
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
