"""Clients that close their sending side get full answers; clients that left are noticed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
import uvloop

from haproc.doors.http import connections
from haproc.doors.http.connections import INTERIM
from tests.unit.canned import Canned
from tests.unit.door_rig import STATEMENTS, Rig, door, until
from tests.unit.test_doors_connections import connection, rest_of

WAIT_S = 10


def asking(sql: str, version: str = "1.1") -> bytes:
    body = json.dumps({"statement": sql}).encode()
    head = (
        f"POST {STATEMENTS} HTTP/{version}\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def held(rig: Rig, *statements: str) -> asyncio.Event:
    hold = asyncio.Event()
    for sql in statements:
        rig.service.table[sql] = Canned(hold=hold)
    return hold


async def half_closed_at(rig: Rig, data: bytes) -> tuple[asyncio.Task[bytes], asyncio.StreamWriter]:
    """Send this and close the sending side; return the task that reads to the end, and the
    writer.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.listener.port)
    writer.write(data)
    writer.write_eof()
    return asyncio.create_task(rest_of(reader)), writer


async def test_client_that_closed_its_sending_side_is_answered(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        hold = held(rig, "SELECT 1", "SELECT 2")
        sent = asking("SELECT 1") + asking("SELECT 2") + asking("SELECT 3")[:-3]
        reading, writer = await half_closed_at(rig, sent)
        await until(lambda: len(rig.service.requests) == 1)
        hold.set()
        answer = await asyncio.wait_for(reading, WAIT_S)
        assert answer.count(b"HTTP/1.1 200") == answer.count(b'"SUCCEEDED"') == 2, answer
        assert len(rig.service.requests) == 2
        writer.close()
        await until(lambda: not len(rig.listener._permits))


async def test_request_that_did_not_arrive_in_full_is_not_run(tmp_path: Path) -> None:
    async with door(tmp_path) as rig:
        for data in (b"", b"GET /healthz HT", asking("SELECT 1")[:-3]):
            reading, writer = await half_closed_at(rig, data)
            assert b"200" not in await asyncio.wait_for(reading, WAIT_S)
            writer.close()
        await until(lambda: not len(rig.listener._permits))
        assert not rig.service.requests


async def test_client_that_left_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PROBES_S", (0.05, 0.05))
    async with door(tmp_path) as rig:
        held(rig, "SELECT 1")
        async with connection(rig, asking("SELECT 1")):
            await until(lambda: bool(rig.service.requests))
        await until(lambda: not len(rig.listener._permits))


@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_waiting_client_gets_interim_answers_if_its_http_version_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(connections, "PROBES_S", (0.01, 0.01))
    async with door(tmp_path) as rig:
        hold = held(rig, "SELECT 1")
        reading, writer = await half_closed_at(rig, asking("SELECT 1", version))
        await until(lambda: bool(rig.service.requests))
        await asyncio.wait({reading}, timeout=0.2)
        hold.set()
        answer = await asyncio.wait_for(reading, WAIT_S)
        interim = INTERIM * 2 if version == "1.1" else b""
        assert answer.startswith(interim + f"HTTP/{version} 200".encode()), answer
        writer.close()


def test_half_closed_connections_work_on_uvloop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uvloop.run(test_client_that_closed_its_sending_side_is_answered(tmp_path / "a"))
    uvloop.run(test_request_that_did_not_arrive_in_full_is_not_run(tmp_path / "b"))
    uvloop.run(test_client_that_left_is_noticed(tmp_path / "c", monkeypatch))
