"""Requests to a peer over HTTP: its answers, and the ways in which a peer can be unavailable."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from haproc.config.model import Address, Config
from haproc.membership import drift
from haproc.membership.connections import HttpPeers, PeerDoors
from haproc.membership.peers import (
    CopyQuestion,
    PeerOutcome,
    PeerProgress,
    Peers,
    PeerUnavailableError,
)
from haproc.membership.state import State
from haproc.sessions.journal import SqlEntry
from tests.unit.door_rig import SECRET, WAIT_S, door, make_config
from tests.unit.session_rig import Ring
from tests.unit.test_doors_openapi import check


def config_with(tmp_path: Path, port: int, secret: str = "ring-secret") -> Config:
    config = make_config(tmp_path)
    b = dataclasses.replace(config.clusters[1], peer=Address("127.0.0.1", port))
    return dataclasses.replace(config, clusters=(config.clusters[0], b), secret=secret)


@contextlib.asynccontextmanager
async def asking(config: Config) -> AsyncIterator[HttpPeers]:
    async with contextlib.aclosing(PeerDoors(config, "a")) as doors:
        yield HttpPeers(doors)


async def test_every_peer_request_is_answered(tmp_path: Path) -> None:
    async with (
        door(tmp_path, operator=True) as rig,
        asking(config_with(tmp_path, rig.listener.port)) as peers,
    ):
        as_protocol: Peers = peers
        assert peers.names == ("b",)
        applied = await as_protocol.apply_now("b", 7, "op-1", 2.5)
        assert applied == PeerOutcome("applied")
        assert rig.peers.received == [(7, "op-1", 2.5)]
        assert await as_protocol.outcome("b", 8, 1.0) == await rig.peers.outcome(8)
        assert await as_protocol.status("b", 1.0) == rig.peers.status()
        progress = PeerProgress("s2", State.READY, 9, frozenset({5}))
        assert await as_protocol.progress("b", "b1.7.3 &=", 1.5) == progress
        assert await as_protocol.progress("b", "", 2.0) == progress
        assert await peers.latencies("b", 2, 4, WAIT_S) == {2: 20, 3: 30}
        assert rig.peers.seen == [("b1.7.3 &=", 1.5), ("", 2.0)]
        body_read, data = await as_protocol.copy("b", CopyQuestion("read", 3, path="one"), 1.0)
        assert (body_read.state, body_read.message, data) == ("ok", "one", b"bytes" * 3)
        with pytest.raises(PeerUnavailableError, match="400"):
            await as_protocol.copy("b", CopyQuestion("all", 3), 1.0)
        settings = await peers.settings("b", WAIT_S)
        assert drift.read(settings) == {"version.spark": "4.2.1", "spark.sql.x": None}
        check("get", "/ha/v1/settings", 200, settings)


async def test_peer_with_another_secret_is_unavailable(tmp_path: Path) -> None:
    async with (
        door(tmp_path, operator=True) as rig,
        asking(config_with(tmp_path, rig.listener.port, "another-secret")) as peers,
    ):
        with pytest.raises(PeerUnavailableError, match="answered 401: the token sent is not"):
            await peers.status("b", WAIT_S)


async def test_peer_that_refuses_the_connection_is_unavailable(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        async with asking(config_with(tmp_path, port)) as peers:
            with pytest.raises(PeerUnavailableError, match=f"peer b at http://127.0.0.1:{port}"):
                await peers.status("b", 5.0)


async def test_silent_peer_is_unavailable_in_time(tmp_path: Path) -> None:
    async with door(tmp_path, operator=True) as rig:
        rig.peers.hold = asyncio.Event()
        async with asking(config_with(tmp_path, rig.listener.port)) as peers:
            async with asyncio.timeout(10):
                with pytest.raises(PeerUnavailableError, match="no answer in time"):
                    await peers.apply_now("b", 1, "x", 0.05)


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", b"junk", b""]
)
async def test_peer_with_a_nonsense_answer_is_unavailable(tmp_path: Path, answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asking(config_with(tmp_path, server.sockets[0].getsockname()[1])) as peers:
        with pytest.raises(PeerUnavailableError):
            await peers.status("b", 5.0)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"offset": -1, "operation_id": "x", "timeout_s": 1},
        {"offset": True, "operation_id": "x", "timeout_s": 1},
        {"offset": 1, "operation_id": 5, "timeout_s": 1},
        {"offset": 1, "operation_id": "x"},
        {"offset": 1, "operation_id": "x", "timeout_s": 0},
    ],
)
async def test_wrong_apply_body_is_refused(tmp_path: Path, body: dict[str, object]) -> None:
    async with door(tmp_path, operator=True) as rig:
        assert await rig.status_of("post", "/ha/v1/apply", json=body, headers=SECRET) == 400
        assert rig.peers.received == []


@pytest.mark.parametrize("query", ["", "timeout_s=x", "timeout_s=0", "timeout_s=1&more=1"])
async def test_wrong_progress_query_is_refused(tmp_path: Path, query: str) -> None:
    async with door(tmp_path, operator=True) as rig:
        assert await rig.status_of("get", f"/ha/v1/progress?{query}", headers=SECRET) == 400
        assert await rig.status_of("get", "/ha/v1/progress?timeout_s=1") == 401
        assert rig.peers.seen == []


async def test_wrong_offset_of_an_outcome_is_refused(tmp_path: Path) -> None:
    async with door(tmp_path, operator=True) as rig:
        assert await rig.status_of("get", "/ha/v1/outcomes/x", headers=SECRET) == 400


async def test_operators_list_and_close_sessions(tmp_path: Path) -> None:
    member = Ring().member("a")
    session = await member.sessions.enter("ann", "s/1", create=True)
    await member.sessions.record(session, SqlEntry("CREATE TEMPORARY VIEW v AS SELECT 1"))
    async with door(tmp_path, operator=True, sessions=member.listing) as rig:
        url = "/ha/v1/sessions"
        got, body_read = await rig.ask("get", url, headers=SECRET)
        check("get", url, got, body_read)
        (shown,) = body_read["sessions"]
        assert (body_read["total"], shown["user"], shown["session_id"]) == (1, "ann", "s/1")
        assert (shown["owner"], shown["steps"], shown["adoptions"]) == ("a", 1, 0)
        for status in (200, 404):
            body = {"user": "ann", "session_id": "s/1"}
            got, answer = await rig.ask("post", url + "/close", json=body, headers=SECRET)
            assert got == status
            check("post", url + "/close", status, answer)
        assert await rig.status_of("get", url + "?limit=0", headers=SECRET) == 400
        assert await rig.status_of("get", url) == 401
