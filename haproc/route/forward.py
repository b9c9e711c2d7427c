"""Lets another HAProc, a peer, run a query, and passes the peer's result on to the client.

The result is passed on piece by piece: a slow client slows down the peer, and so the peer's
cluster. When the client goes away, the peer ends the query. A query is forwarded once: the peer
runs it or refuses it, and forwards it to nobody.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, Final, assert_never

import aiohttp
import msgspec
from msgspec import Meta

from haproc.classify.model import OperationClass
from haproc.classify.rights import UNBOUNDED, Rights
from haproc.engine.interface import Chunk
from haproc.failure import ErrorClass, FailureKind, RequestError, WriteOutcome
from haproc.membership.connections import PeerDoors
from haproc.membership.peers import PeerBusyError, PeerUnavailableError
from haproc.membership.state import Identifier, Offset, Seconds
from haproc.route.model import Answer, HaReport, Request, Sent, SentPlan, SentRows, SentSql

# A result on its way from one HAProc to another: a sequence of frames.
#
# Each frame has a head of fixed size (kind, rows, bytes) and then its bytes. The bytes of a chunk
# are those of the cluster, unchanged. The end and an error are frames, too: a result that breaks
# off has neither.


CONTENT_TYPE: Final = "application/vnd.haproc.pieces"
_HEAD: Final = struct.Struct(">BQQ")
HEAD_BYTES: Final = _HEAD.size
_CHUNK_BYTES_MAX: Final = 1 << 31
"""The most bytes of a chunk that are believed: a header with more means that the stream is
broken."""


class FrameKind(IntEnum):
    """What one frame of a forwarded result contains."""

    CHUNK = 0
    END = 1
    ERROR = 2


class BrokenPiecesError(Exception):
    """The bytes received from the peer are no sequence of frames."""


def chunk_head(chunk: Chunk) -> bytes:
    """Return the frame header that is sent before the bytes of ``chunk``."""
    return _HEAD.pack(FrameKind.CHUNK, chunk.rows, len(chunk.data))


def end() -> bytes:
    """Return the frame that shows that the result is complete."""
    return _HEAD.pack(FrameKind.END, 0, 0)


def error(body: dict[str, Any]) -> bytes:
    """Return the frame that ends a result with an error.

    ``body``: the fields of the error, as in the JSON body of an error answer.
    """
    data = json.dumps(body).encode()
    return _HEAD.pack(FrameKind.ERROR, 0, len(data)) + data


def read_head(data: bytes) -> tuple[FrameKind, int, int]:
    """Read a frame's header; return its kind, its number of rows, and the bytes that follow it.

    Raises BrokenPiecesError.
    """
    kind, rows, size = _HEAD.unpack(data)
    if kind not in FrameKind.__members__.values() or size > _CHUNK_BYTES_MAX:
        raise BrokenPiecesError("the peer's answer cannot be read")
    return FrameKind(kind), rows, size


def read_error(data: bytes) -> RequestError:
    """Make a RequestError from ``data``, the JSON body of a peer's error answer.

    Raises BrokenPiecesError.
    """
    try:
        fields = json.loads(data)
        return RequestError(
            FailureKind(fields["kind"]),
            str(fields["message"]),
            error_class=str(fields["error_class"]),
            sqlstate=str(fields["sqlstate"]),
            outcome=WriteOutcome(fields["outcome"]),
            hint=str(fields["hint"]),
            offset=fields["log_offset"],
        )
    except (ValueError, KeyError, TypeError) as wrong:
        raise BrokenPiecesError("the peer's error cannot be read") from wrong


PATH: Final = "/ha/v1/query"
AFTER_HEADER: Final = "HAProc-After-Offset"
_OF_STATEMENT: Final = frozenset({ErrorClass.REFUSED_BY_RULE, ErrorClass.FORBIDDEN})
_MARGIN_S: Final = 0.5
"""How much longer than the peer's own timeout this HAProc waits for the peer's bytes."""


@dataclass(frozen=True, slots=True)
class PeerQuery:
    """The body of a forwarded query; the peer runs it once it has applied ``needed`` records."""

    request_id: Identifier
    statement: Annotated[str, Meta(min_length=1)]
    user: Annotated[str, Meta(min_length=1)]
    needed: Offset
    timeout_s: Seconds
    catalog: str | None = None
    schema: str | None = None
    operation_class: OperationClass | None = None
    rights: Rights = UNBOUNDED


class HttpForwarding:
    """Implements `haproc.route.reads.Forwarding`."""

    def __init__(self, doors: PeerDoors) -> None:
        self._doors = doors

    async def query(self, peer: str, request: Request, needed: int, timeout_s: float) -> Answer:
        """See `haproc.route.reads.Forwarding`."""
        url = self._doors.url(peer, PATH)
        body = msgspec.to_builtins(_peer_query(request, needed, timeout_s))
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._doors.connect_s, sock_read=timeout_s + _MARGIN_S
        )
        try:
            response = await self._doors.session.post(
                url, json=body, timeout=timeout, allow_redirects=False, ssl=self._doors.tls
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise PeerUnavailableError(f"peer {peer} at {url}: {error}") from error
        try:
            if response.status != 200:
                raise _refusal(peer, await response.read())
            after = int(response.headers[AFTER_HEADER])
        except (aiohttp.ClientError, OSError, TimeoutError, KeyError, ValueError) as error:
            response.close()
            raise PeerUnavailableError(f"peer {peer} at {url}: {error!r}") from error
        except BaseException:
            response.close()
            raise
        report = HaReport(peer, OperationClass.QUERY, after_offset=after)
        return Answer(report, Relayed(peer, response))


def _peer_query(request: Request, needed: int, timeout_s: float) -> PeerQuery:
    return PeerQuery(
        request.id,
        _text(request.statement),
        request.user,
        needed,
        max(round(timeout_s, 3), 0.001),
        request.catalog,
        request.schema,
        request.operation_class,
        request.rights,
    )


def _text(statement: Sent) -> str:
    match statement:
        case SentSql(text):
            return text
        case SentRows() | SentPlan():
            raise TypeError("rows, and plans that write, are no query")
        case _:
            assert_never(statement)


def _refusal(peer: str, data: bytes) -> Exception:
    """Turn a peer's error answer into the exception to raise.

    A RequestError for the client if the error is about the statement itself; otherwise
    PeerBusyError or PeerUnavailableError, so that another cluster is tried.
    """
    try:
        error = read_error(data)
    except BrokenPiecesError as broken:
        return PeerUnavailableError(f"peer {peer}: {broken}")
    if error.kind is FailureKind.APPLICATION or error.error_class in _OF_STATEMENT:
        return error
    busy = error.error_class == ErrorClass.BUSY
    raised = PeerBusyError if busy else PeerUnavailableError
    return raised(f"peer {peer}: {error.message}")


class Relayed:
    """The result of a forwarded query, passed from the peer to the client; raises RequestError."""

    def __init__(self, peer: str, response: aiohttp.ClientResponse) -> None:
        self._peer = peer
        self._response = response

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        content = self._response.content
        while True:
            try:
                kind, rows, size = read_head(await content.readexactly(HEAD_BYTES))
                if kind is FrameKind.END:
                    await content.read()  # the body's end, so that the connection can be kept
                    return
                data = await content.readexactly(size)
                failure = read_error(data) if kind is FrameKind.ERROR else None
            except (
                aiohttp.ClientError,
                OSError,
                TimeoutError,
                asyncio.IncompleteReadError,
                BrokenPiecesError,
            ) as error:
                raise self._broken_off(error) from error
            if failure is not None:
                raise failure
            yield Chunk(data, rows)

    async def aclose(self) -> None:
        """Close the connection to the peer, so that the peer stops the query if it still runs."""
        self._response.close()

    def _broken_off(self, error: Exception) -> RequestError:
        return RequestError(
            FailureKind.AVAILABILITY,
            f"the result from cluster {self._peer} broke off: {error!r}",
            error_class=ErrorClass.AVAILABILITY,
            hint="ask the next HAProc with the same request_id",
        )
