"""One call at the Spark Connect door: its user, its session, and its answer or error.

The handlers of calls raise RequestError, or RelayedError with Spark's own message. This module
turns both, for all calls, into the error that the client receives.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import unquote

import grpc
import grpc.aio

from haproc import tracing
from haproc.audit import CALLER, Caller, note_if_refusal
from haproc.classify.rights import Rights, Role
from haproc.doors.connect.errors import (
    DETAILS,
    CallEnd,
    Enriched,
    as_given,
    call_end,
    invalid_handle,
)
from haproc.doors.http.access import Admission, check_role
from haproc.engine.errors import EngineError, RelayedError
from haproc.engine.rewriting import RPCS, Names, fields_of
from haproc.failure import ErrorClass, RequestError, refused
from haproc.route.answering import to_request_error
from haproc.route.model import Authorization
from haproc.sessions.durable import Key
from haproc.statements.request_admission import Held, RequestAdmission

_LOG = logging.getLogger(__name__)
_SESSION = 1
EXECUTE_OPERATION: Final = 6
"""The number of the field of ExecutePlanRequest that has the Spark Connect operation's id."""
CONTROL_BYTES_MAX: Final = 1 << 20
"""The most bytes of a call that has neither plan nor file. The names in it are read in the event
loop, some microseconds each. Chosen: 25,000 operations' ids."""
_WITH_PLANS: Final = frozenset({"AnalyzePlan"})
_RUNNING: Final = frozenset({"ExecutePlan", "ReattachExecute"})
"""Calls that may write. If any other call fails, no write's outcome is unknown."""
_JAVA: Final = "grpc-java"
"""Occurs in the user agent of Spark's client for the JVM."""
_ID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
"""A UUID as clients write it. Python's own reader would accept any number of dashes."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call whose client was admitted.

    - ``names``: the names by which the client knows its session, the same at every HAProc;
    - ``metadata``: the texts of the call's gRPC metadata, by name;
    - ``held`` counts the bytes that the call keeps in memory;
    - ``arrived_s``: the event loop's time at which the call came, before its user was known;
    - ``authorization``: a job's authorization, which may end before the call does; None if the call
      comes from a user and not from a job.
    """

    rpc: str
    user: str
    names: Names
    metadata: Mapping[str, str]
    held: Held
    arrived_s: float
    rights: Rights
    authorization: Authorization | None


Unary = Callable[[Call, bytes], Awaitable[bytes]]
Streaming = Callable[[Call, bytes], AsyncGenerator[bytes, None]]
Uploading = Callable[[Call, bytes, AsyncIterator[bytes]], Awaitable[bytes]]


class Boundary:
    """Admits calls, and turns exceptions into the errors that clients receive.

    ``server_id`` returns the id by which the server names a user's session. ``explained`` returns
    the error that a client gets if the Spark session behind its own session fails.
    """

    def __init__(
        self,
        admission: Admission,
        request_admission: RequestAdmission,
        server_id: Callable[[Key], str],
        explained: Callable[[EngineError], RequestError],
        cluster: str,
    ) -> None:
        self._admission = admission
        self._request_admission = request_admission
        self._server_id = server_id
        self._explained = explained
        self._cluster = cluster
        self.enriched = Enriched()

    def unary(self, rpc: str, handle: Unary) -> grpc.RpcMethodHandler:
        """Return the handler of a call with one request and one answer."""

        async def answer(request: bytes, context: Any) -> bytes:
            try:
                async with self._let_in(rpc, request, context) as call:
                    if rpc not in _WITH_PLANS and len(request) > CONTROL_BYTES_MAX:
                        raise refused(
                            ErrorClass.TOO_LARGE,
                            f"a call {rpc} may have {CONTROL_BYTES_MAX} bytes",
                            "say it in several calls",
                        )
                    return await handle(call, request)
            except Exception as error:
                return await self._fail(rpc, error, context)

        return grpc.unary_unary_rpc_method_handler(answer)

    def streaming(self, rpc: str, handle: Streaming) -> grpc.RpcMethodHandler:
        """Return the handler of a call with one request and several answers."""

        async def answer(request: bytes, context: Any) -> None:
            try:
                async with (
                    self._let_in(rpc, request, context) as call,
                    aclosing(handle(call, request)) as responses,
                ):
                    async for response in responses:
                        await context.write(response)
            except Exception as error:
                await self._fail(rpc, error, context, own_id=_has_own_id(rpc, request))

        return grpc.unary_stream_rpc_method_handler(answer)

    def uploading(self, rpc: str, handle: Uploading) -> grpc.RpcMethodHandler:
        """Return the handler of a call with several requests and one answer."""

        async def answer(requests: AsyncIterator[bytes], context: Any) -> bytes:
            try:
                following = aiter(requests)
                first = await anext(following, b"")
                async with self._let_in(rpc, first, context) as call:
                    return await handle(call, first, following)
            except Exception as error:
                return await self._fail(rpc, error, context)

        return grpc.stream_unary_rpc_method_handler(answer)

    @asynccontextmanager
    async def _let_in(self, rpc: str, request: bytes, context: Any) -> AsyncIterator[Call]:
        """Admit a call; it holds a permit until its answer is complete. Raises RequestError."""
        arrived_s = asyncio.get_running_loop().time()
        metadata = _metadata(context)
        caller = Caller(self._cluster, "connect", rpc, address_of(context.peer()))
        CALLER.set(caller)
        try:
            session_id, observed = _named(rpc, request)
        except RequestError:
            await self._admission.admit(metadata)  # a stranger learns nothing else
            raise
        by = await self._admission.admit(metadata, session_id)
        CALLER.set(replace(caller, user=by.user))
        check_role(by, Role.READER)
        user = by.user
        # Spark still runs a query while its rows are sent: the trace covers the whole call.
        received = tracing.received(metadata, f"pyspark.{rpc}" if rpc in _RUNNING else "")
        with self._request_admission.answering(user) as held, received:
            held.reserve_bytes(len(request))
            names = Names(session_id, self._server_id(Key(user, session_id)))
            if observed not in ("", names.server_id):
                raise invalid_handle(
                    "SESSION_CHANGED", "the session that the client has seen is another server's"
                )
            yield Call(rpc, user, names, metadata, held, arrived_s, by.rights, by.authorization)

    async def _fail(
        self, rpc: str, error: Exception, context: Any, *, own_id: bool = True
    ) -> bytes:
        """End the call with the client's form of ``error``, by raising gRPC's own exception."""
        if isinstance(error, grpc.aio.AbortError):
            raise error
        if isinstance(error, grpc.aio.InternalError):  # gRPC sends nothing more: its client left
            _LOG.info("%s: its client left before it had its answer", rpc)
            raise error
        ending = as_given(error) if isinstance(error, RelayedError) else None
        if ending is None:
            if isinstance(error, EngineError):
                error = self._explained(error)
            error_id = str(uuid.uuid4())
            only_reads = rpc not in _RUNNING
            to_java = _JAVA in _metadata(context).get("user-agent", "")
            failure = to_request_error(error, rpc, only_reads=only_reads)
            note_if_refusal(failure)
            ending = call_end(failure, own_id=own_id, error_id=error_id, to_java=to_java)
            if ending.enriched:
                self.enriched.keep(error_id, ending.enriched)
        await abort(context, ending)
        raise AssertionError("abort raises")


def address_of(peer: str) -> str:
    """Return the IP address in ``peer``, which is in gRPC's form: ``ipv4:127.0.0.1:5000``."""
    _, _, place = unquote(peer).partition(":")
    return place.rpartition(":")[0].strip("[]")


async def abort(context: Any, ending: CallEnd) -> None:
    """End a call with the error ``ending``, by raising gRPC's own exception."""
    code = grpc.StatusCode[ending.code]
    await context.abort(code, ending.message, ((DETAILS, ending.packed),))


def _metadata(context: Any) -> dict[str, str]:
    """Return the call's metadata by name; if a name is repeated, only its first value."""
    found: dict[str, str] = {}
    for key, value in context.invocation_metadata() or ():
        if isinstance(value, str):
            found.setdefault("Authorization" if key == "authorization" else key, value)
    return found


def _named(rpc: str, request: bytes) -> tuple[str, str]:
    """Return the session's id, and the server's id that the client knows from an earlier answer."""
    observed = RPCS[rpc].observed
    try:
        session_id = text_of(request, _SESSION)
        seen = text_of(request, observed) if observed is not None else ""
    except ValueError as error:
        raise refused(ErrorClass.BAD_REQUEST, f"the request cannot be read: {error}") from None
    check_id(session_id, "the session's")
    return session_id, seen


def _has_own_id(rpc: str, request: bytes) -> bool:
    """Return False if the client left it to the server to choose the Spark Connect operation's id.

    If such a client repeats the request, it gets another id, and its write would be applied twice.
    """
    try:
        return rpc != "ExecutePlan" or bool(text_of(request, EXECUTE_OPERATION))
    except ValueError:  # it was refused as unreadable
        return True


def check_id(given: str, whose: str) -> str:
    """Return ``given``, the id of a session or an operation; raises RequestError if it is no UUID.

    Such ids are kept in memory and stored in the log, so longer texts are refused.
    """
    if not _ID.fullmatch(given):
        raise invalid_handle("FORMAT", f"{whose} id {given[:100]!r} must be a UUID")
    return given


def text_of(request: bytes, number: int) -> str:
    """Return the text in field ``number``; "" if it is absent. ValueError if it is no message."""
    return b"".join(fields_of(request, number)[-1:]).decode("utf-8", "replace")
