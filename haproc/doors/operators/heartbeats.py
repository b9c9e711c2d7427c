"""Heartbeats and reports from peers, under the ring's secret; the quick way in for them.

Each peer sends ten heartbeats a second on one connection. `shortcut` takes in what
`haproc.membership.connections` writes before aiohttp reads it: it compares the whole head (secret
included) in constant time, reads the body, and gives the one answer. Anything else, whatever it is,
is aiohttp's, where the usual handler authenticates, answers and explains. So both take the same,
and only one of them is fast.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

from aiohttp import web

from haproc.config.model import Config
from haproc.doors.http import reading
from haproc.doors.http.access import Credentials
from haproc.doors.http.bodies import check_json, read_body
from haproc.failure import ErrorClass, RequestError, refused
from haproc.membership.connections import HEARTBEAT_PATH, REPORT_PATH, TAKEN, head
from haproc.membership.state import Beat, ClusterReport, State

BODY_BYTES_MAX: Final = 16 << 10
"""A ring of 64 clusters with names of 63 characters needs a third of that."""
_REST: Final = re.compile(rb"Host: [^\r\n]{1,300}\r\nContent-Length: (\d{1,5})\r\n\r\n")
_BEAT_FIELDS: Final = ("cluster", "incarnation", "epoch", "hears", "log_up", "state")
_REPORT_FIELDS: Final = (
    *("cluster", "incarnation", "epoch", "state", "since"),
    *("cursor", "log_end", "lag"),
)


class Listening(Protocol):
    """Who takes in what peers tell."""

    def knows(self, peer: str) -> bool:
        """Return whether the ring has such a peer."""
        ...

    def heartbeat(self, beat: Beat) -> None:
        """A peer lives."""
        ...

    def report(self, report: ClusterReport) -> None:
        """A peer tells how far it is."""
        ...


class HeartbeatDoor:
    """The handlers."""

    def __init__(self, config: Config, members: Listening) -> None:
        self._credentials = Credentials.of_peers(config)
        self._members = members
        self._takers = {HEARTBEAT_PATH: self._take_beat, REPORT_PATH: self._take_report}
        self._heads = [(head(path, config.secret), path) for path in self._takers]

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.post(path, self.take) for path in self._takers]

    async def take(self, request: web.Request) -> web.Response:
        """Take in a heartbeat or a report."""
        self._credentials.user_of(request.headers)
        check_json(request)
        body = reading.parse_object(await read_body(request, BODY_BYTES_MAX))
        self.deliver(request.path, body)
        return web.Response(status=204)

    def deliver(self, path: str, body: Mapping[str, Any]) -> None:
        """Take in a message, whichever way it came."""
        if path not in self._takers:
            raise refused(ErrorClass.BAD_REQUEST, f"nothing comes on {path[:80]!r}")
        self._takers[path](body)

    def shortcut(self, data: bytes) -> tuple[bytes, bytes]:
        """Take in the requests with which ``data`` begins; return their answers and the rest."""
        answers = b""
        while data and (end := self._taken(data)):
            answers += TAKEN
            data = data[end:]
        return answers, data

    def _taken(self, data: bytes) -> int:
        """Take in the first request and return where it ends; 0 if it is anything else."""
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
                self.deliver(path, reading.parse_object(data[found.end() : end]))
            except RequestError:
                return 0  # the usual handler says why
            return end
        return 0

    def _take_beat(self, body: Mapping[str, Any]) -> None:
        self._members.heartbeat(self._beat(body))

    def _take_report(self, body: Mapping[str, Any]) -> None:
        self._members.report(self.read_report(body))

    def _beat(self, body: Mapping[str, Any]) -> Beat:
        reading.no_unknown(body, _BEAT_FIELDS)
        hears = body.get("hears")
        if not isinstance(hears, list) or not all(isinstance(name, str) for name in hears):
            raise refused(ErrorClass.BAD_REQUEST, "hears must be a list of strings")
        log_up = body.get("log_up")
        if not isinstance(log_up, bool):
            raise refused(ErrorClass.BAD_REQUEST, "log_up must be true or false")
        cluster, incarnation, epoch, state = self._sender(body)
        return Beat(cluster, incarnation, epoch, tuple(hears), log_up, state)

    def read_report(self, body: Mapping[str, Any]) -> ClusterReport:
        """Return the report that a body holds; RequestError says why it is none."""
        reading.no_unknown(body, _REPORT_FIELDS)
        since = reading.identifier(body, "since")
        if since is None:
            raise refused(ErrorClass.BAD_REQUEST, "since is needed")
        cluster, incarnation, epoch, state = self._sender(body)
        cursor, log_end = _offset(body, "cursor"), _offset(body, "log_end")
        lag = _offset(body, "lag") if "lag" in body else None
        return ClusterReport(cluster, incarnation, epoch, state, since, cursor, log_end, lag)

    def _sender(self, body: Mapping[str, Any]) -> tuple[str, str, int, State]:
        cluster = reading.text(body, "cluster") or ""
        if not self._members.knows(cluster):
            raise refused(
                ErrorClass.BAD_REQUEST,
                f"{cluster[:80]!r} is no peer of this HAProc",
                "the configuration must be the same on every HAProc of the ring",
            )
        incarnation = reading.identifier(body, "incarnation")
        state = reading.choice(body, "state", State)
        if incarnation is None or state is None:
            raise refused(ErrorClass.BAD_REQUEST, "incarnation and state are needed")
        return cluster, incarnation, _offset(body, "epoch"), state


def _offset(body: Mapping[str, Any], name: str) -> int:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise refused(ErrorClass.BAD_REQUEST, f"{name} must be a whole number of at least 0")
    return value
