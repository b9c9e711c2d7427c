"""Heartbeats and reports on the operator door: the shortcut, the usual handler, refusals."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from haproc.doors.operators.peers import BODY_BYTES_MAX
from haproc.membership.connections import HEARTBEAT_PATH, REPORT_PATH, TAKEN, head
from haproc.membership.state import Beat, ClusterReport, PeerMessage, State
from tests.unit.door_rig import SECRET, STATEMENTS, Rig, door

BEAT = Beat("b", "2", 7, ("a", "c"), True, State.READY)
REPORT = ClusterReport("b", "2", 7, State.RECOVERING, "2026-01-01T00:00:00.000Z", 5, 9, 3)
WAIT_S = 10


def body_of(message: PeerMessage) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.to_builtins(message)
    return body


def written(path: str, body: dict[str, Any], secret: str = "ring-secret") -> bytes:
    """Return a request with the bytes that peers send."""
    data = json.dumps(body).encode()
    return head(path, secret) + f"Host: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


class Line:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, rig: Rig) -> Line:
        return cls(*await asyncio.open_connection("127.0.0.1", rig.listener.port))

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def ask(self, data: bytes, end: bytes = b"\r\n\r\n") -> bytes:
        self._writer.write(data)
        return await asyncio.wait_for(self._reader.readuntil(end), WAIT_S)

    async def closed(self) -> bool:
        return await asyncio.wait_for(self._reader.read(), WAIT_S) == b""

    def close(self) -> None:
        self._writer.close()


async def test_shortcut_accepts_heartbeats_and_reports_on_one_connection(tmp_path: Path) -> None:
    async with door(tmp_path, operator=True) as rig:
        line = await Line.to(rig)
        both = written(HEARTBEAT_PATH, body_of(BEAT)) + written(REPORT_PATH, body_of(REPORT))
        assert await line.ask(both, TAKEN + TAKEN) == TAKEN + TAKEN
        other = dataclasses.replace(BEAT, log_up=False)
        assert await line.ask(written(HEARTBEAT_PATH, body_of(other))) == TAKEN
        assert (rig.members.beats, rig.members.reports) == ([BEAT, other], [REPORT])
        line.close()


def test_shortcut_and_usual_handler_work_on_uvloop(tmp_path: Path) -> None:
    """The transports of uvloop have other classes than those of asyncio."""
    uvloop.run(test_shortcut_accepts_heartbeats_and_reports_on_one_connection(tmp_path))
    uvloop.run(test_connection_with_other_requests_is_passed_to_the_usual_handler(tmp_path))


async def test_heartbeat_field_of_a_later_version_is_ignored(tmp_path: Path) -> None:
    async with door(tmp_path, operator=True) as rig:
        line = await Line.to(rig)
        assert await line.ask(written(HEARTBEAT_PATH, {**body_of(BEAT), "more": 1})) == TAKEN
        assert rig.members.beats == [BEAT]
        line.close()


async def test_usual_handler_accepts_heartbeats_and_reports(tmp_path: Path) -> None:
    async with door(tmp_path, operator=True) as rig:
        for path, message in ((HEARTBEAT_PATH, BEAT), (REPORT_PATH, REPORT)):
            async with rig.http.post(
                rig.url + path, json=body_of(message), headers=SECRET
            ) as response:
                assert (response.status, await response.read()) == (204, b"")
        assert (rig.members.beats, rig.members.reports) == ([BEAT], [REPORT])


async def test_connection_with_other_requests_is_passed_to_the_usual_handler(
    tmp_path: Path,
) -> None:
    async with door(tmp_path, operator=True) as rig:
        line = await Line.to(rig)
        assert await line.ask(written(HEARTBEAT_PATH, body_of(BEAT))) == TAKEN
        get = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        assert b"200 OK" in await line.ask(get)
        assert await line.ask(b"", b"}") == b'{"status":"ok"}'
        # and heartbeats are taken there, too
        assert b" 204 " in await line.ask(written(HEARTBEAT_PATH, body_of(BEAT)))
        assert rig.members.beats == [BEAT, BEAT]
        line.close()


async def test_request_in_pieces_is_accepted(tmp_path: Path) -> None:
    async with door(tmp_path, operator=True) as rig:
        line, request = await Line.to(rig), written(HEARTBEAT_PATH, body_of(BEAT))
        for at in range(0, len(request), 40):
            line._writer.write(request[at : at + 40])
            await asyncio.sleep(0)
        assert b" 204 " in await line.ask(b"")
        assert rig.members.beats == [BEAT]
        line.close()


async def test_wrong_secret_of_a_heartbeat_is_answered_401(tmp_path: Path) -> None:
    async with door(tmp_path, operator=True) as rig:
        for secret in ("another-one", "ring-secre", "ring-secret2", ""):
            line = await Line.to(rig)
            request = written(HEARTBEAT_PATH, body_of(BEAT), secret)
            assert b" 401 " in await line.ask(request)
            line.close()
        assert rig.members.beats == []


def changed(**values: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda body: {name: v for name, v in {**body, **values}.items() if v is not None}


@pytest.mark.parametrize(
    ("path", "change", "reason"),
    [
        (HEARTBEAT_PATH, changed(cluster="x"), "'x' is no peer of this HAProc"),
        (HEARTBEAT_PATH, changed(cluster="a"), "'a' is no peer of this HAProc"),
        (HEARTBEAT_PATH, changed(cluster=None), "missing required field `cluster`"),
        (HEARTBEAT_PATH, changed(cluster=5), "Expected `str`, got `int` - at `$.cluster`"),
        (HEARTBEAT_PATH, changed(incarnation="a b"), "at `$.incarnation`"),
        (HEARTBEAT_PATH, changed(incarnation=None), "missing required field `incarnation`"),
        (HEARTBEAT_PATH, changed(epoch=-1), "at `$.epoch`"),
        (HEARTBEAT_PATH, changed(epoch=True), "at `$.epoch`"),
        (HEARTBEAT_PATH, changed(hears="a"), "at `$.hears`"),
        (HEARTBEAT_PATH, changed(hears=[1]), "at `$.hears[0]`"),
        (HEARTBEAT_PATH, changed(log_up=1), "at `$.log_up`"),
        (HEARTBEAT_PATH, changed(state="WELL"), "'WELL' - at `$.state`"),
        (REPORT_PATH, changed(cursor=None), "missing required field `cursor`"),
        (REPORT_PATH, changed(log_end=1 << 63), "at `$.log_end`"),
        (REPORT_PATH, changed(lag=-1), "at `$.lag`"),
        (REPORT_PATH, changed(since="<b>"), "at `$.since`"),
        (REPORT_PATH, changed(since=None), "missing required field `since`"),
        (REPORT_PATH, changed(cluster="x"), "'x' is no peer"),
    ],
)
async def test_wrong_body_is_refused_with_the_reason_by_shortcut_and_usual_handler(
    tmp_path: Path, path: str, change: Callable[[dict[str, Any]], dict[str, Any]], reason: str
) -> None:
    message = BEAT if path == HEARTBEAT_PATH else REPORT
    body = change(body_of(message))
    async with door(tmp_path, operator=True) as rig:
        got, answer = await rig.ask("post", path, json=body, headers=SECRET)
        assert got == 400
        assert reason in answer["message"]
        line = await Line.to(rig)
        assert b" 400 " in await line.ask(written(path, body))
        assert reason.encode() in await line.ask(b"", b"}")
        line.close()
        assert (rig.members.beats, rig.members.reports) == ([], [])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"x" * (BODY_BYTES_MAX + 1)])
async def test_malformed_or_large_body_is_refused(tmp_path: Path, body: bytes) -> None:
    async with door(tmp_path, operator=True) as rig:
        status = b" 413 " if len(body) > BODY_BYTES_MAX else b" 400 "
        line = await Line.to(rig)
        head_ = head(HEARTBEAT_PATH, "ring-secret")
        request = head_ + f"Host: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        assert status in await line.ask(request)
        line.close()
        assert rig.members.beats == []


async def test_client_door_accepts_no_heartbeats(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        for path in (HEARTBEAT_PATH, REPORT_PATH):
            assert await rig.status_of("post", path, json={}, headers=SECRET) == 404
        assert (await rig.get(STATEMENTS, 405))["error_class"] == "HAPROC_METHOD_NOT_ALLOWED"


async def test_closed_listener_ends_the_connections_of_peers(tmp_path: Path) -> None:
    async with door(tmp_path, operator=True) as rig:
        line = await Line.to(rig)
        assert await line.ask(written(HEARTBEAT_PATH, body_of(BEAT))) == TAKEN
        silent = await Line.to(rig)
        await rig.listener.close()
        assert await line.closed() and await silent.closed()
        line.close()
        silent.close()


async def test_silent_connection_of_a_peer_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haproc.doors.http.connections.HEAD_S", 0.1)
    monkeypatch.setattr("haproc.doors.http.connections.KEEPALIVE_S", 0.5)
    async with door(tmp_path, operator=True) as rig:
        began = asyncio.get_running_loop().time()
        line = await Line.to(rig)
        assert await line.ask(written(HEARTBEAT_PATH, body_of(BEAT))) == TAKEN
        assert await line.closed()
        assert asyncio.get_running_loop().time() - began >= 0.5
        line.close()
