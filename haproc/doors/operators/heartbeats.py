"""Heartbeats and reports from peers, under the ring's secret; the quick way in for them.

Each peer sends ten heartbeats a second on one connection. `Quick` takes a connection over from its
first byte and handles what `haproc.membership.links` writes: it compares the whole head (secret
included) in constant time, reads the body, and writes the one answer. With anything else, whatever
it is, the connection goes to aiohttp from then on, where the usual handler authenticates, answers
and explains. So both take the same, and only one of them is fast.
"""

from __future__ import annotations

import asyncio
import functools
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeAlias, cast

from aiohttp import web

from haproc.config.model import Config
from haproc.doors.http import fields
from haproc.doors.http.connections import HEAD_S, KEEPALIVE_S, Connections
from haproc.doors.http.context import Credentials, check_json, read_body
from haproc.failure import ErrorClass, RequestError, refused
from haproc.membership.links import HEARTBEAT_PATH, REPORT_PATH, TAKEN, answered_together, head
from haproc.membership.messages import Beat, Report
from haproc.membership.state import State

BODY_BYTES_MAX: Final = 16 << 10
"""A ring of 64 clusters with names of 63 characters needs a third of that."""
_REST: Final = re.compile(rb"Host: [^\r\n]{1,300}\r\nContent-Length: (\d{1,5})\r\n\r\n")
_BEAT_FIELDS: Final = ("cluster", "incarnation", "epoch", "hears", "log_up", "state")
_REPORT_FIELDS: Final = (
    *("cluster", "incarnation", "epoch", "state", "since"),
    *("cursor", "log_end"),
)


_Taken: TypeAlias = Callable[[], None]
"""Takes a message in again."""


class Listening(Protocol):
    """Who takes in what peers tell."""

    def knows(self, peer: str) -> bool:
        """Return whether the ring has such a peer."""
        ...

    def heartbeat(self, beat: Beat) -> None:
        """A peer lives."""
        ...

    def report(self, report: Report) -> None:
        """A peer tells how far it is."""
        ...


class HeartbeatDoor:
    """The handlers."""

    def __init__(self, config: Config, members: Listening) -> None:
        self._secret = config.secret
        self._together = answered_together(config.membership)
        self._credentials = Credentials.of_peers(config)
        self._members = members
        self._takers = {HEARTBEAT_PATH: self._take_beat, REPORT_PATH: self._take_report}

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.post(path, self.take) for path in self._takers]

    async def take(self, request: web.Request) -> web.Response:
        """Take in a heartbeat or a report."""
        self._credentials.user_of(request.headers)
        check_json(request)
        self._takers[request.path](await read_body(request, BODY_BYTES_MAX))
        return web.Response(status=204)

    def deliver(self, path: str, body: Mapping[str, Any]) -> Callable[[], None]:
        """Take in what came another way; return what takes it in again."""
        if path == HEARTBEAT_PATH:
            return self._took_beat(self._beat(body))
        if path == REPORT_PATH:
            return self._took_report(self.read_report(body))
        raise refused(ErrorClass.BAD_REQUEST, f"nothing comes on {path[:80]!r}")

    def quick(self, usual: Connections) -> Front:
        """Return what makes the protocol of each connection; ``usual`` makes aiohttp's."""
        heads = [(head(path, self._secret), taker) for path, taker in self._takers.items()]
        return Front(usual, heads, self._together)

    def _take_beat(self, data: bytes) -> _Taken:
        return self._took_beat(self._beat(fields.parse_object(data)))

    def _took_beat(self, beat: Beat) -> _Taken:
        self._members.heartbeat(beat)
        return functools.partial(self._members.heartbeat, beat)

    def _take_report(self, data: bytes) -> _Taken:
        return self._took_report(self.read_report(fields.parse_object(data)))

    def _took_report(self, report: Report) -> _Taken:
        self._members.report(report)
        return functools.partial(self._members.report, report)

    def _beat(self, body: Mapping[str, Any]) -> Beat:
        fields.no_unknown(body, _BEAT_FIELDS)
        hears = body.get("hears")
        if not isinstance(hears, list) or not all(isinstance(name, str) for name in hears):
            raise refused(ErrorClass.BAD_REQUEST, "hears must be a list of strings")
        log_up = body.get("log_up")
        if not isinstance(log_up, bool):
            raise refused(ErrorClass.BAD_REQUEST, "log_up must be true or false")
        cluster, incarnation, epoch, state = self._sender(body)
        return Beat(cluster, incarnation, epoch, tuple(hears), log_up, state)

    def read_report(self, body: Mapping[str, Any]) -> Report:
        """Return the report that a body holds; RequestError says why it is none."""
        fields.no_unknown(body, _REPORT_FIELDS)
        since = fields.identifier(body, "since")
        if since is None:
            raise refused(ErrorClass.BAD_REQUEST, "since is needed")
        cluster, incarnation, epoch, state = self._sender(body)
        cursor, log_end = _offset(body, "cursor"), _offset(body, "log_end")
        return Report(cluster, incarnation, epoch, state, since, cursor, log_end)

    def _sender(self, body: Mapping[str, Any]) -> tuple[str, str, int, State]:
        cluster = fields.text(body, "cluster") or ""
        if not self._members.knows(cluster):
            raise refused(
                ErrorClass.BAD_REQUEST,
                f"{cluster[:80]!r} is no peer of this HAProc",
                "the configuration must be the same on every HAProc of the ring",
            )
        incarnation = fields.identifier(body, "incarnation")
        state = fields.choice(body, "state", State)
        if incarnation is None or state is None:
            raise refused(ErrorClass.BAD_REQUEST, "incarnation and state are needed")
        return cluster, incarnation, _offset(body, "epoch"), state


def _offset(body: Mapping[str, Any], name: str) -> int:
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise refused(ErrorClass.BAD_REQUEST, f"{name} must be a whole number of at least 0")
    return value


class Front:
    """Makes protocols, and knows the connections that are still its own."""

    def __init__(
        self,
        usual: Connections,
        heads: Sequence[tuple[bytes, Callable[[bytes], _Taken]]],
        together: int,
    ) -> None:
        self.usual = usual
        self.heads = heads
        self.together = together
        self.open: set[Quick] = set()

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        return Quick(self)

    def close(self) -> None:
        """Close the connections."""
        for quick in tuple(self.open):
            quick.close()


class Quick(asyncio.Protocol):
    """One connection, for as long as nothing but heartbeats and reports come on it."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._transport: asyncio.Transport
        self._idle = asyncio.get_running_loop().call_later(HEAD_S, self._close_if_idle)
        self._came = False
        self._owed = 0
        """Answers not written yet."""
        self._known: dict[bytes, tuple[bytes, _Taken]] = {}
        """The last message of each kind, and what takes it in again: the next is often the same."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._front.open.add(self)
        self._front.usual.places.take(self, self._transport)

    def data_received(self, data: bytes) -> None:
        self._came = True
        for last, repeat in self._known.values():
            if hmac.compare_digest(data, last):
                repeat()
                self._owed += 1
                if self._owed >= self._front.together:
                    self._answer()
                return
        while data:
            rest = self._taken(data)
            if rest is None:
                self._answer()
                self._hand_over(data)
                return
            self._owed += 1
            data = rest
        self._answer()

    def _answer(self) -> None:
        if self._owed:
            self._transport.write(TAKEN * self._owed)
            self._owed = 0

    def connection_lost(self, error: Exception | None) -> None:
        self._idle.cancel()
        self._front.open.discard(self)
        self._front.usual.places.give_back(self)

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()

    def expendable(self) -> bool:
        """Whether it may be a stranger's: no peer's message came on it yet."""
        return not self._known

    give_up = close

    def _taken(self, data: bytes) -> bytes | None:
        """Take in the first message; return what follows it, or None if it is something else."""
        for head_, take in self._front.heads:
            length = len(head_)
            if not hmac.compare_digest(data[:length], head_):
                continue
            found = _REST.match(data, length)
            if found is None:
                return None
            end = found.end() + int(found[1])
            if len(data) < end or int(found[1]) > BODY_BYTES_MAX:
                return None
            try:
                repeat = take(data[found.end() : end])
            except RequestError:
                return None  # the usual handler says why
            self._known[head_] = data[:end], repeat
            return data[end:]
        return None

    def _hand_over(self, data: bytes) -> None:
        usual, transport = self._front.usual(), self._transport
        self.connection_lost(None)
        transport.set_protocol(usual)
        usual.connection_made(transport)
        usual.data_received(data)

    def _close_if_idle(self) -> None:
        if self._came:
            self._came = False
            self._idle = asyncio.get_running_loop().call_later(KEEPALIVE_S, self._close_if_idle)
        else:
            self._transport.close()
