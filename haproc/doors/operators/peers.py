"""The doors between peers, under the ring's secret."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from aiohttp import web

from dmq import Json
from haproc.doors.http import fields
from haproc.doors.http.access import Credentials
from haproc.doors.http.bodies import json_response, read_object
from haproc.failure import ErrorClass, refused
from haproc.statements.request import TIMEOUT_MAX_S

LATENCIES_MAX: Final = 1 << 18
"""Offsets that one question may be about."""


class PeerService(Protocol):
    """What a HAProc does for its peers."""

    async def apply_now(
        self, offset: int, operation_id: str, timeout_s: float
    ) -> Mapping[str, Json]:
        """Run a synchronous operation before it is decided and return its outcome."""
        ...

    async def outcome(self, offset: int) -> Mapping[str, Json]:
        """Return what became of an operation on this cluster."""
        ...

    async def progress(self, seen: str, timeout_s: float) -> Mapping[str, Json]:
        """Return what this cluster has applied, once that differs from what was ``seen``."""
        ...

    def latencies(self, start: int, end: int) -> Mapping[int, int]:
        """Return how long operations of a range took until they were done here, in ms."""
        ...

    def status(self) -> Mapping[str, Json]:
        """Return this HAProc's state, cursor and lag."""
        ...


class PeerDoor:
    """The handlers."""

    def __init__(self, peers: PeerService, credentials: Credentials) -> None:
        self._peers = peers
        self._credentials = credentials

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.post("/ha/v1/apply", self.apply),
            web.get("/ha/v1/outcomes/{offset}", self.outcome, allow_head=False),
            web.get("/ha/v1/progress", self.progress, allow_head=False),
            web.get("/ha/v1/latencies", self.latencies, allow_head=False),
            web.get("/ha/v1/status", self.status, allow_head=False),
        ]

    async def apply(self, request: web.Request) -> web.Response:
        """Run a synchronous operation now."""
        self._credentials.user_of(request.headers)
        body = await read_object(request, ("offset", "operation_id", "timeout_s"))
        offset = fields.offset(body, "offset")
        operation_id = fields.text(body, "operation_id")
        timeout_s = fields.seconds(body.get("timeout_s"), "timeout_s", TIMEOUT_MAX_S)
        if offset is None or operation_id is None or timeout_s is None:
            raise refused(
                ErrorClass.BAD_REQUEST, "offset, operation_id and timeout_s are all needed"
            )
        return json_response(dict(await self._peers.apply_now(offset, operation_id, timeout_s)))

    async def outcome(self, request: web.Request) -> web.Response:
        """Tell what became of an operation here."""
        self._credentials.user_of(request.headers)
        offset = fields.whole_number(request.match_info["offset"], "an offset")
        return json_response(dict(await self._peers.outcome(offset)))

    async def progress(self, request: web.Request) -> web.Response:
        """Tell what is applied here, once that is new to who asks."""
        self._credentials.user_of(request.headers)
        fields.no_unknown(request.query, ("seen", "timeout_s"))
        wait_s = fields.seconds_in(request.query.get("timeout_s", ""), "timeout_s")
        timeout_s = fields.seconds(wait_s, "timeout_s", TIMEOUT_MAX_S)
        assert timeout_s is not None
        seen = request.query.get("seen", "")
        return json_response(dict(await self._peers.progress(seen, timeout_s)))

    async def latencies(self, request: web.Request) -> web.Response:
        """Tell how long operations took here."""
        self._credentials.user_of(request.headers)
        fields.no_unknown(request.query, ("start", "end"))
        start = fields.whole_number(request.query.get("start", ""), "start")
        end = fields.whole_number(request.query.get("end", ""), "end")
        if end - start > LATENCIES_MAX:
            raise refused(ErrorClass.BAD_REQUEST, f"at most {LATENCIES_MAX} offsets at a time")
        found = self._peers.latencies(start, end)
        return json_response({"offsets": [*found], "latencies_ms": [*found.values()]})

    async def status(self, request: web.Request) -> web.Response:
        """Tell state, cursor and lag."""
        self._credentials.user_of(request.headers)
        return json_response(dict(self._peers.status()))
