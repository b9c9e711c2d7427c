"""What the handlers of one application share, and how a request's body and user are read."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web
from multidict import CIMultiDictProxy

from haproc.config.model import Config
from haproc.doors.http.errors import body_of
from haproc.doors.http.statuses import RETRY_AFTER_S, Asked, status_of, told
from haproc.failure import ErrorClass, RequestError, refused
from haproc.statements.gate import Held

ANONYMOUS: Final = "anonymous"
ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"
BODY_READ_S: Final = 60.0
"""A body that takes longer is given up; chosen, not measured."""

STATEMENTS_PATH: Final = "/api/2.0/sql/statements"
HELD: Final = web.RequestKey("held", Held)
"""What of the request is in memory; not on the operator door."""
ASKED: Final = web.RequestKey("asked", Asked)
"""What a request turned out to ask for."""

CLUSTER: Final = web.AppKey("cluster", str)
CONFIG: Final = web.AppKey("config", Config)


_SEND_TOKEN: Final = (
    "send Authorization: Bearer <token>; haclient: --token-file FILE, $HACLIENT_TOKEN or token=…"
)
_OTHER_TOKEN: Final = (
    "look whose it is: users[].token and secret of the ring's configuration say what is taken; "
    "haclient: --token-file FILE, $HACLIENT_TOKEN or token=…"
)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Whose bearer token opens a door: user name by token, or nobody's is needed."""

    tokens: tuple[tuple[str, bytes], ...] = field(repr=False)
    needed: str = "the token of a user of this ring"

    @classmethod
    def of_users(cls, config: Config) -> Credentials:
        """Return what opens the client door."""
        return cls(tuple((user.name, user.token.encode()) for user in config.users))

    @classmethod
    def of_peers(cls, config: Config) -> Credentials:
        """Return what opens the doors between peers."""
        return cls((("peer", config.secret.encode()),), "the ring's secret")

    def user_of(self, headers: Mapping[str, str]) -> str:
        """Return the user's name; raises RequestError (401).

        Every token is compared, so that the time taken tells nothing about them.
        """
        if not self.tokens:
            return ANONYMOUS
        many = headers.getall("Authorization", ()) if isinstance(headers, CIMultiDictProxy) else ()
        if len(many) > 1:
            raise refused(
                ErrorClass.UNAUTHENTICATED, "there are several headers Authorization", "send one"
            )
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            raise refused(ErrorClass.UNAUTHENTICATED, f"{self.needed} is needed", _SEND_TOKEN)
        shown = given.strip().encode("utf-8", "surrogateescape")
        found = ""
        for name, token in self.tokens:
            if hmac.compare_digest(token, shown):
                found = name
        if not found:
            raise refused(
                ErrorClass.UNAUTHENTICATED, f"the token sent is not {self.needed}", _OTHER_TOKEN
            )
        return found


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


def error_response(error: RequestError, cluster: str, asked: Asked | None = None) -> web.Response:
    """Return an error's answer; ``asked`` tells of the statement that it is about."""
    status = status_of(error, asked)
    body = body_of(
        told(error, asked, STATEMENTS_PATH), cluster, asked.statement_id if asked else None, status
    )
    response = json_response(body, status)
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    elif status in RETRY_AFTER_S:
        response.headers["Retry-After"] = str(RETRY_AFTER_S[status])
    return response
