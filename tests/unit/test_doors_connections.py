"""Connections of strangers: unfinished, silent, too many, or not HTTP at all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import uvloop

from haproc.config.sections import User
from haproc.doors.http import connections
from haproc.doors.http.connections import ThrottledWarning
from haproc.membership.connections import HEARTBEAT_PATH, TAKEN
from tests.unit.canned import Canned
from tests.unit.door_rig import STATEMENTS, Rig, door
from tests.unit.test_doors_access import ERROR_FIELDS
from tests.unit.test_doors_heartbeats import BEAT, body_of, written

WAIT_S = 10
TOKEN = "ann-token"
USERS = (User("ann", TOKEN), User("bob", "bob-token"))
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ann-token\r\n"


@contextlib.asynccontextmanager
async def connection(
    rig: Rig, data: bytes = b""
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.listener.port)
    try:
        writer.write(data)
        yield reader, writer
    finally:
        writer.close()


async def rest_of(reader: asyncio.StreamReader) -> bytes:
    """Return the bytes that arrive until the other side ends the connection."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := await asyncio.wait_for(reader.read(1 << 16), WAIT_S):
            parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize("operator", [False, True])
@pytest.mark.parametrize(
    "data",
    [
        HEALTH.replace(TOKEN.encode(), TOKEN.encode() + b"\x00") + b"\r\n",
        HEALTH.replace(TOKEN.encode(), TOKEN.encode() + b"\nX: y") + b"\r\n",
        HEALTH + b"X-Long: " + b"x" * (20 << 10) + b"\r\n\r\n",
        HEALTH + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n",
        HEALTH + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEALTH.replace(b"HTTP/1.1", b"HTTP/9.9") + b"\r\n",
        b"\x16\x03\x01\x02\x00" + TOKEN.encode(),
    ],
)
async def test_malformed_head_is_answered_as_json_without_its_content(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes, operator: bool
) -> None:
    caplog.set_level(logging.DEBUG)
    async with door(tmp_path, users=USERS, operator=operator) as rig:
        async with connection(rig, data) as (reader, _):
            head, _, body = (await rest_of(reader)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.0 400"), head
        assert json.loads(body).keys() == ERROR_FIELDS
        assert TOKEN not in body.decode()
    lines = [record for record in caplog.records if record.levelno > logging.DEBUG]
    assert len(lines) == 1
    assert TOKEN not in caplog.text and "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"GET /" + b"x" * (20 << 10) + b" HTTP/1.1\r\nHost: x\r\n\r\n", "longer than 16384 bytes"),
        (HEALTH + b"X-Long: " + b"x" * (20 << 10) + b"\r\n\r\n", "longer than 16384 bytes"),
        (HEALTH + b"X: y\r\n" * 5_000 + b"\r\n", "at most 128 headers"),
    ],
)
async def test_too_large_head_is_answered_with_the_limit(
    tmp_path: Path, data: bytes, text: str
) -> None:
    async with door(tmp_path, users=USERS) as rig, connection(rig, data) as (reader, _):
        head, _, body = (await rest_of(reader)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 400"), head
    error = json.loads(body)
    assert text in f"{error['message']}; {error['hint']}"


async def test_many_malformed_heads_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with door(tmp_path, users=USERS) as rig:
        for _ in range(20):
            async with connection(rig, b"nonsense\r\n\r\n") as (reader, _):
                await rest_of(reader)
    assert len(caplog.records) == 1


def test_throttled_warning_reports_the_number_of_omitted_lines(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = [100.0]
    monkeypatch.setattr("haproc.doors.http.connections.time.monotonic", lambda: clock[0])
    warning = ThrottledWarning("seen %s")
    for name in "abc":
        warning.warn(name)
    clock[0] += connections.WARNING_PAUSE_S
    warning.warn("d")
    assert [record.getMessage() for record in caplog.records] == [
        "seen a",
        "seen d",
        "2 more such lines were left out before this one",
    ]


@pytest.mark.parametrize("operator", [False, True])
@pytest.mark.parametrize("data", [b"", b"GET /healthz HT", HEALTH])
async def test_unfinished_head_is_ended_by_a_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, operator: bool
) -> None:
    monkeypatch.setattr("haproc.doors.http.connections.HEAD_S", 0.05)
    async with door(tmp_path, operator=operator) as rig, connection(rig, data) as (reader, _):
        assert await rest_of(reader) == b""


async def test_slow_head_of_a_second_request_is_ended_by_a_timeout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haproc.doors.http.connections.HEAD_S", 0.2)
    async with (
        door(tmp_path, users=USERS) as rig,
        connection(rig, HEALTH + b"\r\n") as (reader, writer),
    ):
        assert b"200" in await asyncio.wait_for(reader.readuntil(b"}"), WAIT_S)
        ended = asyncio.create_task(rest_of(reader))
        writer.write(b"GET /")
        async with asyncio.timeout(WAIT_S):
            while not ended.done():
                writer.write(b"a" if not writer.is_closing() else b"")
                await asyncio.wait({ended}, timeout=0.05)
        assert ended.result() == b""


async def test_idle_connections_make_room_for_new_ones(tmp_path: Path) -> None:
    async with door(tmp_path, connections_max=5) as rig, contextlib.AsyncExitStack() as stack:
        oldest, _ = await stack.enter_async_context(connection(rig, b"GET /"))
        for _ in range(20):
            await stack.enter_async_context(connection(rig, b"GET /he"))
        assert await rest_of(oldest) == b""
        assert (await rig.get("/healthz")) == {"status": "ok"}
        assert len(rig.listener._permits) <= 5


@pytest.mark.parametrize("crowd", [b"GET /he", HEALTH.replace(b"ann", b"bob") + b"\r\n"])
async def test_many_connections_of_others_do_not_push_out_the_connection_of_a_user(
    crowd: bytes, tmp_path: Path
) -> None:
    async with (
        door(tmp_path, users=USERS, connections_max=6) as rig,
        connection(rig, HEALTH + b"\r\n") as (mine, writer),
        contextlib.AsyncExitStack() as stack,
    ):
        assert b"200" in await asyncio.wait_for(mine.readuntil(b"}"), WAIT_S)
        for _ in range(20):
            other, _ = await stack.enter_async_context(connection(rig, crowd))
            if crowd.endswith(b"\r\n"):
                assert b"200" in await asyncio.wait_for(other.readuntil(b"}"), WAIT_S)
        writer.write(HEALTH + b"\r\n")
        assert b"200" in await asyncio.wait_for(mine.readuntil(b"}"), WAIT_S)
        assert len(rig.listener._permits) <= 6


async def test_connections_with_requests_keep_their_places(tmp_path: Path) -> None:
    async with door(tmp_path, connections_max=2) as rig, contextlib.AsyncExitStack() as stack:
        hold = asyncio.Event()
        rig.service.table["SELECT 2"] = Canned(hold=hold)
        running = [asyncio.create_task(rig.post(statement="SELECT 2")) for _ in range(2)]
        async with asyncio.timeout(WAIT_S):
            while len(rig.service.requests) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        reader, _ = await stack.enter_async_context(connection(rig))
        answer = await rest_of(reader)
        assert answer.startswith(b"HTTP/1.1 429") and b"HAPROC_BUSY" in answer
        hold.set()
        for each in running:
            assert (await each)["status"] == {"state": "SUCCEEDED"}


async def test_connections_of_peers_keep_their_places(tmp_path: Path) -> None:
    beat = written(HEARTBEAT_PATH, body_of(BEAT))
    async with (
        door(tmp_path, operator=True, connections_max=3) as rig,
        connection(rig, beat) as (peer, sender),
        contextlib.AsyncExitStack() as stack,
    ):
        assert await asyncio.wait_for(peer.readexactly(len(TAKEN)), WAIT_S) == TAKEN
        for _ in range(10):
            await stack.enter_async_context(connection(rig, b"GET /"))
        other, _ = await stack.enter_async_context(connection(rig, HEALTH + b"\r\n"))
        assert b"200" in await asyncio.wait_for(other.readuntil(b"}"), WAIT_S)
        sender.write(written(HEARTBEAT_PATH, {**body_of(BEAT), "log_up": False}))
        assert await asyncio.wait_for(peer.readexactly(len(TAKEN)), WAIT_S) == TAKEN


async def test_client_that_does_not_read_its_answer_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haproc.doors.http.connections.STALL_S", 0.1)
    async with door(tmp_path) as rig:
        answers = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 400
        async with connection(rig, answers) as (_, writer):
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            async with asyncio.timeout(WAIT_S):
                while len(rig.listener._permits):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)


async def test_header_that_aiohttp_refuses_is_answered_as_json(tmp_path: Path) -> None:
    headers = "Expect: miracles\r\nContent-Length: 2\r\n"
    async with door(tmp_path) as rig:
        head = f"POST {STATEMENTS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        async with connection(rig, f"{head}{headers}\r\n{{}}".encode()) as (reader, _):
            response_head, _, body = (await rest_of(reader)).partition(b"\r\n\r\n")
        assert response_head.split()[1] == b"417", response_head
        assert json.loads(body).keys() == ERROR_FIELDS
        assert b"miracles" not in body


def test_connection_limits_hold_on_uvloop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uvloop.run(test_idle_connections_make_room_for_new_ones(tmp_path))
    uvloop.run(test_client_that_does_not_read_its_answer_is_disconnected(tmp_path, monkeypatch))


POST = (
    f"POST {STATEMENTS} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    "Content-Type: application/json\r\n"
)

PACKED = b"Connection: close\r\nContent-Encoding: %s\r\nContent-Length: 9\r\n\r\nann-token"


@pytest.mark.parametrize(
    ("token", "rest"),
    [
        (TOKEN, b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"),
        (TOKEN, b"Transfer-Encoding: chunked\r\n\r\n5\r\n{}\r\n\r\n0\r\n\r\n"),
        (TOKEN, PACKED % b"deflate"),
        ("wrong", PACKED % b"gzip"),
        ("wrong", b"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n"),
    ],
)
async def test_malformed_body_leaves_at_most_one_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, token: str, rest: bytes
) -> None:
    async with door(tmp_path, users=USERS) as rig:
        data = POST.replace(TOKEN, token).encode() + rest
        async with connection(rig, data) as (reader, _):
            head, _, body = (await rest_of(reader)).partition(b"\r\n\r\n")
        assert head.split()[1] in (b"400", b"401"), head
        if head.split()[1] == b"400":
            assert json.loads(body)["outcome"] == "NOT_SENT"
    assert len(caplog.records) <= 1
    assert TOKEN not in caplog.text and "Traceback" not in caplog.text
