"""Bodies: how a request's is read, how an answer's is written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from typing import Any, Final

from aiohttp import web

from haproc.doors.http import fields
from haproc.failure import ErrorClass, RequestError, refused
from haproc.statements.gate import Held

ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"
BODY_READ_S: Final = 60.0
"""A body that takes longer is given up; chosen, not measured."""
SMALL_BYTES_MAX: Final = 64 << 10
"""A body of a few fields."""
HELD: Final = web.RequestKey("held", Held)
"""What of the request is in memory; not on the operator door."""


async def read_object(request: web.BaseRequest, known: Collection[str]) -> dict[str, Any]:
    """Return a small JSON object that has no other fields than the known ones."""
    check_json(request)
    body = fields.parse_object(await read_body(request, SMALL_BYTES_MAX))
    fields.no_unknown(body, known)
    return body


async def read_body(request: web.BaseRequest, bytes_max: int) -> bytes:
    """Return the body; refuses a larger one without reading it, gives up a slow one."""
    length = request.content_length
    if length is not None and length > bytes_max:
        raise _too_large(bytes_max)
    held = request.get(HELD)
    if held is not None and length is not None:
        held.add(length)
    content = request.content
    if content.is_eof() and content.total_bytes <= bytes_max:
        return await content.read()
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_READ_S):
            async for part in content.iter_any():
                size += len(part)
                if size > bytes_max:
                    raise _too_large(bytes_max)
                if held is not None and length is None:
                    held.add(len(part))
                parts.append(part)
    except TimeoutError:
        raise refused(
            ErrorClass.BODY_TIMEOUT, f"the body did not come within {BODY_READ_S:g} s"
        ) from None
    return b"".join(parts)


def _too_large(bytes_max: int) -> RequestError:
    return refused(
        ErrorClass.TOO_LARGE,
        f"the request's body is larger than {bytes_max} bytes",
        "send the rows in several operations, or raise limits.operation_bytes_max (for rows) or "
        "statement_bytes_max",
    )


def check_json(request: web.BaseRequest) -> None:
    """Refuse a body that says it is not JSON."""
    if request.content_type not in ("application/json", "application/octet-stream"):
        raise refused(
            ErrorClass.CONTENT_TYPE,
            f"Content-Type {request.content_type[:80]!r} is not known here",
            "send application/json",
        )


def json_response(body: Any, status: int = 200) -> web.Response:
    """Return a JSON answer."""
    data = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return raw_json(data.encode("utf-8", "replace"), status)


def raw_json(data: bytes, status: int = 200) -> web.Response:
    """Return an answer whose JSON is written already."""
    return web.Response(
        body=data, status=status, headers={"Content-Type": "application/json; charset=utf-8"}
    )
