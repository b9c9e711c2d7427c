"""Bodies of requests and answers: reading them, writing them, errors as JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from aiohttp import web

from dmq import Json
from haproc.doors.http import reading
from haproc.doors.http.reading import PLAIN, Unpacking
from haproc.doors.http.statuses import (
    CODE_OF_STATUS,
    RETRY_AFTER_S,
    RequestedStatement,
    in_our_words,
    status_of,
)
from haproc.failure import ErrorClass, RequestError, refused
from haproc.route.answering import to_request_error
from haproc.statements.request_admission import Held

ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"
BODY_READ_S: Final = 60.0
"""If reading a body takes longer, the request is refused; chosen, not measured."""
PROGRESS_BYTES: Final = 1 << 20
"""Of a large body at least this must arrive in each `BODY_READ_S`; chosen, not measured."""
SMALL_BYTES_MAX: Final = 64 << 10
"""The most bytes of a body with only a few fields."""
REASON_CHARACTERS_MAX: Final = 400
"""The most characters of an error in the status line; clients accept lines of 8 KiB. Chosen, not
measured."""
ARRIVED: Final = web.RequestKey("arrived", float)
"""The event loop's time when the request came, before its user was known."""
HELD: Final = web.RequestKey("held", Held)
"""Counts the memory that the request uses; absent on the operator door."""


async def read_object(request: web.BaseRequest, known: Collection[str]) -> dict[str, Any]:
    """Read a small JSON object; RequestError if it has fields other than ``known``."""
    check_json(request)
    body = reading.parse_object(await read_body(request, SMALL_BYTES_MAX))
    reading.no_unknown(body, known)
    return body


async def read_body(request: web.BaseRequest, bytes_max: int) -> bytes:
    """Read the body; RequestError if it is longer than ``bytes_max``, or comes too slowly.

    If its head says that it is longer, it is not read at all.
    """
    length = request.content_length
    if length is not None and length > bytes_max:
        raise _too_large(bytes_max)
    if is_packed(request):
        length = None  # it is the packed length
    held = request.get(HELD)
    if held is not None and length is not None:
        held.reserve_bytes(length)
    content = request.content
    if not is_packed(request) and content.is_eof() and content.total_bytes <= bytes_max:
        return await content.read()
    parts: list[bytes] = []
    size = 0
    async with in_time():
        async for part in _parts(request):
            size += len(part)
            if size > bytes_max:
                raise _too_large(bytes_max)
            if held is not None and length is None:
                held.reserve_bytes(len(part))
            parts.append(part)
    return b"".join(parts)


def is_packed(request: web.BaseRequest) -> bool:
    """True if the body is compressed (Content-Encoding)."""
    return _encoding(request) not in PLAIN


def check_plain(request: web.BaseRequest) -> None:
    """Raise RequestError if the whole body is compressed."""
    if is_packed(request):
        raise refused(
            ErrorClass.CONTENT_TYPE, "a form comes without a Content-Encoding here", "send it raw"
        )


def _encoding(request: web.BaseRequest) -> str:
    return request.headers.get("Content-Encoding", "").strip().lower()


async def _parts(request: web.BaseRequest) -> AsyncIterator[bytes]:
    """Yield the body's parts as they come, decompressed; RequestError if the body is cut off."""
    packed = request.content.iter_any()
    if not is_packed(request):
        async for part in packed:
            yield part
        return
    unpacking = Unpacking(_encoding(request))
    async for part in packed:
        for piece in unpacking.pieces(part):
            yield piece
            await asyncio.sleep(0)  # a few bytes may unpack to many pieces
    unpacking.check_whole()


@asynccontextmanager
async def in_time() -> AsyncIterator[None]:
    """Limit the time of reading a body to `BODY_READ_S`; raises RequestError when it is over."""
    try:
        async with asyncio.timeout(BODY_READ_S):
            yield
    except TimeoutError:
        raise refused(
            ErrorClass.BODY_TIMEOUT, f"the body did not come within {BODY_READ_S:g} s"
        ) from None


async def stream_body(request: web.BaseRequest, take: Callable[[bytes], Awaitable[None]]) -> None:
    """Pass the parts of a body of any size to ``take``; RequestError if they come too slowly."""
    loop = asyncio.get_running_loop()
    came = 0
    try:
        async with asyncio.timeout(BODY_READ_S) as patience:
            async for part in _parts(request):
                await take(part)
                came += len(part)
                if came >= PROGRESS_BYTES:
                    came = 0
                    patience.reschedule(loop.time() + BODY_READ_S)
    except TimeoutError:
        raise refused(
            ErrorClass.BODY_TIMEOUT,
            f"less than {PROGRESS_BYTES} bytes of the body came within {BODY_READ_S:g} s",
        ) from None


def _too_large(bytes_max: int) -> RequestError:
    return refused(
        ErrorClass.TOO_LARGE,
        f"the request's body is larger than {bytes_max} bytes",
        "send the rows in several operations, or raise limits.operation_bytes_max (for rows) or "
        "statement_bytes_max",
    )


def check_json(request: web.BaseRequest) -> None:
    """Raise RequestError if the body's content type is not JSON."""
    if request.content_type not in ("application/json", "application/octet-stream"):
        raise refused(
            ErrorClass.CONTENT_TYPE,
            f"Content-Type {request.content_type[:80]!r} is not known here",
            "send application/json",
        )


def json_response(body: Mapping[str, Any], status: int = 200) -> web.Response:
    """Return a JSON answer."""
    data = json.dumps(dict(body), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return raw_json(data.encode("utf-8", "replace"), status)


def raw_json(data: bytes, status: int = 200) -> web.Response:
    """Return an answer whose body ``data`` is JSON already."""
    return web.Response(
        body=data, status=status, headers={"Content-Type": "application/json; charset=utf-8"}
    )


# Failures as clients over HTTP see them: one form of body and one status for each.
#
# The statuses are those of `statuses`.


CLUSTER: Final = web.AppKey("cluster", str)
"""The name of this HAProc's cluster; every error contains it."""
REQUESTED: Final = web.RequestKey("requested", RequestedStatement)
"""The statement or rows that a request sends, once it was read."""

_CLASS_OF_HTTP: Final = {
    404: (ErrorClass.NOT_FOUND, "there is nothing at this path", "see /openapi.json"),
    405: (ErrorClass.METHOD_NOT_ALLOWED, "this path has no such method", "see /openapi.json"),
    413: (ErrorClass.TOO_LARGE, "the request is too large", ""),
    417: (ErrorClass.EXPECTATION, "the request expects what is not done here", "leave Expect out"),
}


def body_of(
    error: RequestError, cluster: str, statement_id: str | None = None, status: int = 0
) -> dict[str, Json]:
    """Return an error as JSON fields: a body, or ``status.error`` of a failed statement."""
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
    """Turn any error that was raised while a door did ``what`` into the error for the client."""
    if isinstance(error, web.HTTPException):
        return _of_http(error)
    if isinstance(error, web.RequestPayloadError):
        return refused(ErrorClass.BAD_REQUEST, "the request's body is not what its head says")
    return to_request_error(error, what, only_reads=only_reads)


def _of_http(error: web.HTTPException) -> RequestError:
    if error.status in _CLASS_OF_HTTP:
        return refused(*_CLASS_OF_HTTP[error.status])
    return refused(ErrorClass.BAD_REQUEST, error.reason or "the request cannot be read")


def error_response(
    error: RequestError,
    cluster: str,
    requested: RequestedStatement | None = None,
    *,
    livy: bool = False,
) -> web.Response:
    """Return the answer for an error; ``requested``: the statement that it is about, if any.

    ``livy``: for clients of Livy, which show the field ``msg`` or (pylivy) the status line.
    """
    status = status_of(error, requested)
    body = body_of(
        in_our_words(error, requested),
        cluster,
        requested.statement_id if requested else None,
        status,
    )
    if livy:
        body["msg"] = ": ".join(filter(None, (error.message, error.hint)))
    response = json_response(body, status)
    if livy:
        response.set_status(status, _in_a_status_line(str(body["msg"])))
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    elif status in RETRY_AFTER_S:
        response.headers["Retry-After"] = str(RETRY_AFTER_S[status])
    return response


def _in_a_status_line(text: str) -> str:
    """Return the text as one line of printable ASCII, so short that clients accept it."""
    line = " ".join(text.split()).encode("ascii", "replace").decode()
    return "".join(each if each.isprintable() else "?" for each in line)[:REASON_CHARACTERS_MAX]
