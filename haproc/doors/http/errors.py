"""Failures as clients over HTTP see them: one body, one status, whatever went wrong.

Statuses are those of `statuses`.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from dmq import Json
from haproc.doors.http.bodies import json_response
from haproc.doors.http.statuses import (
    CODE_OF_STATUS,
    RETRY_AFTER_S,
    RequestedStatement,
    in_our_words,
    status_of,
)
from haproc.failure import ErrorClass, RequestError, refused
from haproc.route.unforeseen import as_told

CLUSTER: Final = web.AppKey("cluster", str)
"""Whose application it is: every error names the cluster."""
ASKED: Final = web.RequestKey("asked", RequestedStatement)
"""What a request turned out to ask for."""

_CLASS_OF_HTTP: Final = {
    404: (ErrorClass.NOT_FOUND, "there is nothing at this path", "see /openapi.json"),
    405: (ErrorClass.METHOD_NOT_ALLOWED, "this path has no such method", "see /openapi.json"),
    413: (ErrorClass.TOO_LARGE, "the request is too large", ""),
    417: (ErrorClass.EXPECTATION, "the request expects what is not done here", "leave Expect out"),
}


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


def as_request_error(error: BaseException, what: str, *, only_reads: bool = False) -> RequestError:
    """Turn whatever was raised while a door did ``what`` into what the client is told."""
    if isinstance(error, web.HTTPException):
        return _of_http(error)
    if isinstance(error, web.RequestPayloadError):
        return refused(ErrorClass.BAD_REQUEST, "the request's body is not what its head says")
    return as_told(error, what, only_reads=only_reads)


def _of_http(error: web.HTTPException) -> RequestError:
    if error.status in _CLASS_OF_HTTP:
        return refused(*_CLASS_OF_HTTP[error.status])
    return refused(ErrorClass.BAD_REQUEST, error.reason or "the request cannot be read")


def error_response(
    error: RequestError,
    cluster: str,
    asked: RequestedStatement | None = None,
    *,
    livy: bool = False,
) -> web.Response:
    """Return an error's answer; ``asked`` tells of the statement that it is about.

    ``livy``: its clients read ``msg``, and show the user nothing else.
    """
    status = status_of(error, asked)
    body = body_of(
        in_our_words(error, asked), cluster, asked.statement_id if asked else None, status
    )
    if livy:
        body["msg"] = ": ".join(filter(None, (error.message, error.hint)))
    response = json_response(body, status)
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    elif status in RETRY_AFTER_S:
        response.headers["Retry-After"] = str(RETRY_AFTER_S[status])
    return response
