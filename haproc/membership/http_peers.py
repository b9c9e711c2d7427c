"""Asking the other HAProcs over HTTP, under the ring's secret.

Whatever keeps a peer from answering properly in time is a `PeerUnavailableError`: the caller goes
on without it, and finds out from the log.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp

from dmq import Json
from haproc.membership.peer_doors import PeerDoors
from haproc.membership.peers import PeerUnavailableError

_ANSWER_MARGIN_S: Final = 0.5
"""What an answer may take on its way beyond the time that the peer was given for its work."""
_ANSWER_BYTES_MAX: Final = 16 << 20


class HttpPeers:
    """The peers of one HAProc. ``given_up``: whom the view of the ring has given up."""

    def __init__(
        self, doors: PeerDoors, given_up: Callable[[str], bool] = lambda peer: False
    ) -> None:
        self._doors = doors
        self._given_up = given_up

    @property
    def names(self) -> tuple[str, ...]:
        """The peers in ring order."""
        return self._doors.names

    def given_up(self, peer: str) -> bool:
        """Return whether the view of the ring has given a peer up."""
        return self._given_up(peer)

    async def apply_now(
        self, peer: str, offset: int, operation_id: str, timeout_s: float
    ) -> Mapping[str, Json]:
        """Ask a peer to run a synchronous operation now; returns its outcome."""
        body = {"offset": offset, "operation_id": operation_id, "timeout_s": timeout_s}
        return await self._ask(peer, "POST", "/ha/v1/apply", timeout_s + _ANSWER_MARGIN_S, body)

    async def outcome(self, peer: str, offset: int, timeout_s: float) -> Mapping[str, Json]:
        """Ask what became of an operation on a peer's cluster."""
        return await self._ask(peer, "GET", f"/ha/v1/outcomes/{offset}", timeout_s)

    async def progress(self, peer: str, seen: str, timeout_s: float) -> Mapping[str, Json]:
        """Ask what a peer has applied, to be told once that differs from what was ``seen``."""
        path = "/ha/v1/progress?" + urlencode({"seen": seen, "timeout_s": timeout_s})
        return await self._ask(peer, "GET", path, timeout_s + _ANSWER_MARGIN_S)

    async def status(self, peer: str, timeout_s: float) -> Mapping[str, Json]:
        """Ask a peer for its state, cursor and lag."""
        return await self._ask(peer, "GET", "/ha/v1/status", timeout_s)

    async def settings(self, peer: str, timeout_s: float) -> Mapping[str, Json]:
        """Ask a peer how its Spark server is set."""
        return await self._ask(peer, "GET", "/ha/v1/settings", timeout_s)

    async def latencies(
        self, peer: str, start: int, end: int, timeout_s: float
    ) -> Mapping[int, int]:
        """Ask how long each operation of a range took until it was done on a peer's cluster."""
        path = "/ha/v1/latencies?" + urlencode({"start": start, "end": end})
        answer = await self._ask(peer, "GET", path, timeout_s)
        offsets, took = answer.get("offsets"), answer.get("latencies_ms")
        if not (isinstance(offsets, list) and isinstance(took, list) and len(offsets) == len(took)):
            raise PeerUnavailableError(f"peer {peer} did not answer with offsets and latencies")
        return {
            at: ms
            for at, ms in zip(offsets, took, strict=True)
            if isinstance(at, int) and isinstance(ms, int)
        }

    async def _ask(
        self, peer: str, method: str, path: str, timeout_s: float, body: object = None
    ) -> Mapping[str, Json]:
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=self._doors.connect_s)
        url = self._doors.url(peer, path)
        try:
            async with self._doors.session.request(
                method, url, json=body, timeout=timeout, allow_redirects=False
            ) as response:
                return _object(peer, response.status, await _limited(response))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            what = "no answer in time" if isinstance(error, TimeoutError) else str(error)
            raise PeerUnavailableError(f"peer {peer} at {url}: {what}") from error


async def _limited(response: aiohttp.ClientResponse) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > _ANSWER_BYTES_MAX:
            raise aiohttp.ClientPayloadError("the answer is too large")
        parts.append(part)
    return b"".join(parts)


def _object(peer: str, status: int, data: bytes) -> Mapping[str, Json]:
    try:
        answer: Any = json.loads(data)
    except ValueError as error:
        raise PeerUnavailableError(f"peer {peer} answered {status} without JSON") from error
    if status != 200 or not isinstance(answer, dict):
        told = answer.get("message", "") if isinstance(answer, dict) else ""
        raise PeerUnavailableError(f"peer {peer} answered {status}: {told}")
    return answer
