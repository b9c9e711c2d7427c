"""The doors between peers, under the ring's secret: heartbeats, reports, forwarded queries."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

import msgspec
from aiohttp import web
from msgspec import MsgspecError
from msgspec.json import Decoder

from dmq import Json
from haproc.config.model import Config
from haproc.doors.clients.answers import STALL_S
from haproc.doors.http import reading
from haproc.doors.http.bodies import (
    CLUSTER,
    SMALL_BYTES_MAX,
    as_request_error,
    body_of,
    check_json,
    json_response,
    raw_json,
    read_body,
)
from haproc.engine.interface import Chunk
from haproc.failure import ErrorClass, RequestError, refused
from haproc.membership.connections import COPY_PATH, MESSAGE_TYPES, TAKEN, head
from haproc.membership.peers import (
    ApplyNow,
    CopyAnswer,
    CopyQuestion,
    PeerOutcome,
    PeerProgress,
    PeerStatus,
)
from haproc.membership.state import Beat, ClusterReport, PeerMessage
from haproc.route import forward
from haproc.route.forward import AFTER_HEADER, PATH, PeerQuery
from haproc.route.model import Answer, Request, SentSql
from haproc.route.offload import Inline, Texts
from haproc.statements.request import TIMEOUT_MAX_S
from haproc.statements.request_admission import RequestAdmission

# Heartbeats and reports from peers, under the ring's secret; with a shortcut for them.
#
# Each peer sends ten heartbeats a second on one connection. `shortcut` handles the requests of
# `haproc.membership.connections` before aiohttp reads them: it compares the whole head (secret
# included) in constant time, reads the body, and sends the one answer. aiohttp gets everything
# else; its usual handler authenticates, answers and explains. So both accept the same, and only one
# is fast.


BODY_BYTES_MAX: Final = 16 << 10
"""The most bytes of a heartbeat. A ring of 64 clusters with names of 63 characters needs a third of
that."""
_REST: Final = re.compile(rb"Host: [^\r\n]{1,300}\r\nContent-Length: (\d{1,5})\r\n\r\n")
_DECODERS: Final = {path: Decoder(of) for path, of in MESSAGE_TYPES.items()}


class Listening(Protocol):
    """What receives the messages of peers (the HAProcs of the other clusters)."""

    def knows(self, peer: str) -> bool:
        """True if the ring has a peer with this name."""
        ...

    def heartbeat(self, beat: Beat) -> None:
        """Take the heartbeat of a peer."""
        ...

    def report(self, report: ClusterReport) -> None:
        """Take a peer's report on how far its cluster has applied the log."""
        ...


class HeartbeatDoor:
    """The handlers of heartbeats and reports from peers."""

    def __init__(self, config: Config, members: Listening) -> None:
        self._members = members
        self._heads = [(head(path, config.secret), path) for path in MESSAGE_TYPES]

    def routes(self) -> list[web.RouteDef]:
        """Return these handlers' HTTP methods and paths, for aiohttp."""
        return [web.post(path, self.take) for path in MESSAGE_TYPES]

    async def take(self, request: web.Request) -> web.Response:
        """Receive a heartbeat or a report of a peer."""
        check_json(request)
        self.deliver(self._read(request.path, await read_body(request, BODY_BYTES_MAX)))
        return web.Response(status=204)

    def deliver(self, message: PeerMessage) -> None:
        """Pass a message on to the members; RequestError if its sender is no peer."""
        if not self._members.knows(message.cluster):
            raise refused(
                ErrorClass.BAD_REQUEST,
                f"{message.cluster[:80]!r} is no peer of this HAProc",
                "the configuration must be the same on every HAProc of the ring",
            )
        if isinstance(message, Beat):
            self._members.heartbeat(message)
        else:
            self._members.report(message)

    def shortcut(self, data: bytes) -> tuple[bytes, bytes]:
        """Handle the peers' messages at the start of ``data``; return answers and the rest.

        The rest begins with the first request that is not a whole, valid message of a peer.
        """
        answers = b""
        while data and (end := self._taken(data)):
            answers += TAKEN
            data = data[end:]
        return answers, data

    def _taken(self, data: bytes) -> int:
        """Handle the first request if it is a peer's message, and return its end; else return 0."""
        for head_, path in self._heads:
            if not hmac.compare_digest(data[: len(head_)], head_):
                continue
            found = _REST.match(data, len(head_))
            if found is None:
                return 0
            end = found.end() + int(found[1])
            if len(data) < end or int(found[1]) > BODY_BYTES_MAX:
                return 0
            try:
                self.deliver(self._read(path, data[found.end() : end]))
            except RequestError:
                return 0  # the usual handler answers with the reason
            return end
        return 0

    @staticmethod
    def _read(path: str, body: bytes) -> PeerMessage:
        try:
            return _DECODERS[path].decode(body)
        except (MsgspecError, ValueError, RecursionError) as error:
            problem = f"the body is no message of a peer: {error}"
            raise refused(ErrorClass.BAD_REQUEST, problem) from error


# The door on which a HAProc reports its Spark server's settings.


T = TypeVar("T")


class SettingsService(Protocol):
    """Gives the settings of the Spark server."""

    def settings(self) -> Mapping[str, Json]:
        """Return versions and settings on which the results of statements depend."""
        ...


def add_settings(app: web.Application, service: SettingsService) -> None:
    """Add the route that shows this HAProc's settings to the operator door's application."""

    async def settings(request: web.Request) -> web.Response:
        return json_response(service.settings())

    app.add_routes([web.get("/ha/v1/settings", settings, allow_head=False)])


# The door by which peers run their clients' queries here, under the clients' names.


class QueryService(Protocol):
    """Runs queries that peers send on for their clients."""

    async def query_for_peer(self, request: Request, needed: int) -> Answer:
        """Run a query here once the log's first ``needed`` records are applied.

        Raises RequestError.
        """
        ...


@dataclass(frozen=True, slots=True)
class Forwarded:
    """What runs peers' queries, and the permits that these share with clients' queries."""

    service: QueryService
    request_admission: RequestAdmission
    texts: Texts = field(default_factory=Inline)


class ForwardedDoor:
    """The handler of queries that peers send."""

    def __init__(self, forwarded: Forwarded, bytes_max: int) -> None:
        self._service = forwarded.service
        self._request_admission = forwarded.request_admission
        self._texts = forwarded.texts
        self._bytes_max = bytes_max

    def routes(self) -> list[web.RouteDef]:
        """Return this handler's HTTP method and path, for aiohttp."""
        return [web.post(PATH, self.query)]

    async def query(self, request: web.Request) -> web.StreamResponse:
        """Run a peer's query, and send its result piece by piece."""
        check_json(request)
        body = await read_body(request, self._bytes_max)
        wanted, needed = await self._texts.work_on_text("", len(body), read_query, body)
        # The peer holds a permit for it meanwhile, and can ask other HAProcs: so it need not wait.
        async with self._request_admission.permit(wanted.user, waits=False):
            answer = await self._service.query_for_peer(wanted, needed)
            try:
                return await _send(request, answer)
            finally:
                await answer.result.aclose()


async def _send(request: web.Request, answer: Answer) -> web.StreamResponse:
    after = str(answer.report.after_offset or 0)
    response = web.StreamResponse(
        headers={"Content-Type": forward.CONTENT_TYPE, AFTER_HEADER: after}
    )
    await response.prepare(request)
    try:
        async for chunk in _checked(answer):
            await _write(response, forward.chunk_head(chunk))
            await _write(response, chunk.data)
        await _write(response, forward.end())
    except _FailedError as failed:
        reported = as_request_error(
            failed.error, f"query for a peer {request.remote}", only_reads=True
        )
        await _write(response, forward.error(body_of(reported, request.app[CLUSTER])))
    await response.write_eof()
    return response


class _FailedError(Exception):
    """The result itself failed, and not the connection on which it is sent."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


async def _checked(answer: Answer) -> AsyncIterator[Chunk]:
    chunks = aiter(answer.result)
    while True:
        try:
            chunk = await anext(chunks, None)
        except Exception as error:
            raise _FailedError(error) from error
        if chunk is None:
            return
        yield chunk


async def _write(response: web.StreamResponse, data: bytes) -> None:
    async with asyncio.timeout(STALL_S):
        await response.write(data)


def read_query(body: bytes) -> tuple[Request, int]:
    """Read a peer's query; return it, and how many records must be applied before.

    Raises RequestError.
    """
    query = _of_peer(PeerQuery, body)
    request = Request(
        id=query.request_id,
        statement=SentSql(query.statement),
        fingerprint="",
        user=query.user,
        catalog=query.catalog,
        schema=query.schema,
        operation_class=query.operation_class,
        timeout_s=query.timeout_s,
        rights=query.rights,
    )
    return request, query.needed


def _of_peer(of: type[T], body: bytes) -> T:
    try:
        return msgspec.json.decode(body, type=of)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        message = f"the body is no question of a peer: {error}"
        raise refused(ErrorClass.BAD_REQUEST, message) from error


# All other requests between peers.


LATENCIES_MAX: Final = 1 << 18
"""The most offsets that one request may ask for."""


class PeerService(Protocol):
    """What a HAProc does for its peers."""

    async def apply_now(self, offset: int, operation_id: str, timeout_s: float) -> PeerOutcome:
        """Run a synchronous operation here, before the ring decides on it; return its outcome."""
        ...

    async def outcome(self, offset: int) -> PeerOutcome:
        """Return the outcome of an operation on this cluster."""
        ...

    async def progress(self, seen: str, timeout_s: float) -> PeerProgress:
        """Return this cluster's progress, once it differs from ``seen``, or at the timeout."""
        ...

    def latencies(self, start: int, end: int) -> Mapping[int, int]:
        """Return, by offset, the ms from an operation's creation to its outcome here.

        For the offsets from ``start`` up to ``end``, without ``end``, that this process knows.
        """
        ...

    def status(self) -> PeerStatus:
        """Return this HAProc's state, cursor and lag."""
        ...

    async def copy(self, question: CopyQuestion) -> tuple[CopyAnswer, bytes]:
        """Return what another cluster's copy of this one asks for; ValueError if it is invalid."""
        ...


class PeerDoor:
    """The handlers of all other requests from peers."""

    def __init__(self, peers: PeerService) -> None:
        self._peers = peers

    def routes(self) -> list[web.RouteDef]:
        """Return these handlers' HTTP methods and paths, for aiohttp."""
        return [
            web.post("/ha/v1/apply", self.apply),
            web.get("/ha/v1/outcomes/{offset}", self.outcome, allow_head=False),
            web.get("/ha/v1/progress", self.progress, allow_head=False),
            web.get("/ha/v1/latencies", self.latencies, allow_head=False),
            web.get("/ha/v1/status", self.status, allow_head=False),
            web.post(COPY_PATH, self.copy),
        ]

    async def apply(self, request: web.Request) -> web.Response:
        """Run a synchronous operation here, before the ring decides on it."""
        check_json(request)
        wanted = _of_peer(ApplyNow, await read_body(request, SMALL_BYTES_MAX))
        outcome = await self._peers.apply_now(wanted.offset, wanted.operation_id, wanted.timeout_s)
        return raw_json(msgspec.json.encode(outcome))

    async def outcome(self, request: web.Request) -> web.Response:
        """Return the outcome of an operation on this cluster."""
        offset = reading.whole_number(request.match_info["offset"], "an offset")
        return raw_json(msgspec.json.encode(await self._peers.outcome(offset)))

    async def progress(self, request: web.Request) -> web.Response:
        """Return this cluster's progress, as soon as it is another one than the peer has seen."""
        reading.no_unknown(request.query, ("seen", "timeout_s"))
        wait_s = reading.seconds_in(request.query.get("timeout_s", ""), "timeout_s")
        timeout_s = reading.seconds(wait_s, "timeout_s", TIMEOUT_MAX_S)
        assert timeout_s is not None
        seen = request.query.get("seen", "")
        return raw_json(msgspec.json.encode(await self._peers.progress(seen, timeout_s)))

    async def latencies(self, request: web.Request) -> web.Response:
        """Return, by offset, the ms from each operation's creation to its outcome here."""
        reading.no_unknown(request.query, ("start", "end"))
        start = reading.whole_number(request.query.get("start", ""), "start")
        end = reading.whole_number(request.query.get("end", ""), "end")
        if end - start > LATENCIES_MAX:
            raise refused(ErrorClass.BAD_REQUEST, f"at most {LATENCIES_MAX} offsets at a time")
        return raw_json(msgspec.json.encode(self._peers.latencies(start, end)))

    async def copy(self, request: web.Request) -> web.Response:
        """Return what a copy of this cluster asks for: a length, JSON, bytes of a file."""
        check_json(request)
        question = _of_peer(CopyQuestion, await read_body(request, SMALL_BYTES_MAX))
        try:
            answer, data = await self._peers.copy(question)
        except ValueError as error:
            raise refused(ErrorClass.BAD_REQUEST, str(error)) from error
        head = msgspec.json.encode(answer)
        return web.Response(
            body=b"".join((len(head).to_bytes(4, "big"), head, data)),
            content_type="application/octet-stream",
        )

    async def status(self, request: web.Request) -> web.Response:
        """Return this HAProc's state, cursor and lag."""
        return raw_json(msgspec.json.encode(self._peers.status()))
