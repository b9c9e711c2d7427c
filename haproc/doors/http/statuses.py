"""The HTTP status of each failure, chosen by what clients do when they receive it.

Other products' clients repeat requests on their own, by the status:

- databricks-sdk: 429 and 503 (with or without a Retry-After), and any answer with certain words in
  its message;
- databricks-sql-connector: a statement at 429 and 503;
- retry libraries: mostly 408, 425, 429 and all of 500 to 599;
- OkHttp: 408; urllib3: 413, 429 and 503 that have a Retry-After.

So one of these statuses is sent only if a repetition does no harm: nothing was done, or the
repeated request is recognised (it has the client's own id, or doing it twice is the same as once).

If a write's outcome is unknown and its repetition could not be recognised, the answer is
`OUTCOME_UNKNOWN`. No client repeats this status. The message has only HAProc's own words, and the
id with which to ask for the outcome.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome

STATEMENTS_PATH: Final = "/api/2.0/sql/statements"
OUTCOME_UNKNOWN: Final = 424
_STATUS_OF_CLASS: Final[Mapping[str, int]] = {
    ErrorClass.UNAUTHENTICATED: 401,
    ErrorClass.FORBIDDEN: 403,
    ErrorClass.NOT_FOUND: 404,
    ErrorClass.STATEMENT_UNKNOWN: 404,
    ErrorClass.SESSION_UNKNOWN: 404,
    ErrorClass.SESSION_CLOSED: 404,
    ErrorClass.OFFSET_UNKNOWN: 404,
    ErrorClass.JOBS_OFF: 404,
    ErrorClass.JOB_UNKNOWN: 404,
    ErrorClass.JOB_FENCED: 409,
    ErrorClass.METHOD_NOT_ALLOWED: 405,
    ErrorClass.BODY_TIMEOUT: 408,
    ErrorClass.REQUEST_ID_REUSED: 409,
    ErrorClass.NOT_NOW: 409,
    ErrorClass.TOO_LARGE: 413,
    ErrorClass.OPERATION_TOO_LARGE: 413,
    ErrorClass.RESULT_TOO_LARGE: 413,
    ErrorClass.CONTENT_TYPE: 415,
    ErrorClass.EXPECTATION: 417,
    ErrorClass.BUSY: 429,
}
_STATUS_OF_KIND: Final = {
    FailureKind.REFUSED: 400,
    FailureKind.APPLICATION: 422,
    FailureKind.AVAILABILITY: 503,
}
CODE_OF_STATUS: Final = {
    400: "BAD_REQUEST",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    408: "REQUEST_TIMEOUT",
    409: "ALREADY_EXISTS",
    413: "REQUEST_TOO_LARGE",
    415: "UNSUPPORTED_MEDIA_TYPE",
    417: "EXPECTATION_FAILED",
    422: "BAD_REQUEST",
    OUTCOME_UNKNOWN: "OUTCOME_UNKNOWN",
    429: "REQUEST_LIMIT_EXCEEDED",
    503: "TEMPORARILY_UNAVAILABLE",
}
RETRY_AFTER_S: Final = {429: 1, 503: 1}


@dataclass(frozen=True, slots=True)
class RequestedStatement:
    """A statement or rows that a request sent: the id, and True if the client chose that id."""

    statement_id: str
    own_id: bool


def status_of(error: RequestError, requested: RequestedStatement | None = None) -> int:
    """Return the HTTP status for an error.

    ``requested``: the statement or rows that it is about; None for other requests, which a client
    may always repeat.
    """
    if error.outcome is WriteOutcome.UNKNOWN and requested is not None and not requested.own_id:
        return OUTCOME_UNKNOWN
    return _STATUS_OF_CLASS.get(error.error_class, _STATUS_OF_KIND[error.kind])


def in_our_words(error: RequestError, requested: RequestedStatement | None) -> RequestError:
    """Return the error with a message that does not make the client repeat the request.

    databricks-sdk repeats if the message has certain words of its own servers: so the message must
    not contain Spark's text if a repetition does harm.
    """
    if requested is None or status_of(error, requested) != OUTCOME_UNKNOWN:
        return error
    return RequestError(
        error.kind,
        f"whether statement {requested.statement_id} was applied is not known: do not send it "
        f"again, ask with GET {STATEMENTS_PATH}/{requested.statement_id}, here or at another "
        "HAProc of the ring",
        error_class=error.error_class,
        sqlstate=error.sqlstate,
        outcome=error.outcome,
        hint=f"{error.message}; give requests a request_id of your own, then they can be repeated",
        offset=error.offset,
        details=error.details,
    )
