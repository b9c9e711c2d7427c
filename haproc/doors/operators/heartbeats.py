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
from typing import Final, Protocol

from aiohttp import web
from msgspec import MsgspecError
from msgspec.json import Decoder

from haproc.config.model import Config
from haproc.doors.http.bodies import check_json, read_body
from haproc.failure import ErrorClass, RequestError, refused
from haproc.membership.connections import MESSAGE_TYPES, TAKEN, head
from haproc.membership.state import Beat, ClusterReport, PeerMessage

BODY_BYTES_MAX: Final = 16 << 10
"""A ring of 64 clusters with names of 63 characters needs a third of that."""
_REST: Final = re.compile(rb"Host: [^\r\n]{1,300}\r\nContent-Length: (\d{1,5})\r\n\r\n")
_DECODERS: Final = {path: Decoder(of) for path, of in MESSAGE_TYPES.items()}


class Listening(Protocol):
    """Receives peers' messages."""

    def knows(self, peer: str) -> bool:
        """Return whether the ring has such a peer."""
        ...

    def heartbeat(self, beat: Beat) -> None:
        """A peer lives."""
        ...

    def report(self, report: ClusterReport) -> None:
        """Take in a peer's progress."""
        ...


class HeartbeatDoor:
    """The handlers."""

    def __init__(self, config: Config, members: Listening) -> None:
        self._members = members
        self._heads = [(head(path, config.secret), path) for path in MESSAGE_TYPES]

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [web.post(path, self.take) for path in MESSAGE_TYPES]

    async def take(self, request: web.Request) -> web.Response:
        """Take in a heartbeat or a report."""
        check_json(request)
        self.deliver(self._read(request.path, await read_body(request, BODY_BYTES_MAX)))
        return web.Response(status=204)

    def deliver(self, message: PeerMessage) -> None:
        """Take in a message, whichever way it came; raises RequestError if it is of no peer."""
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
