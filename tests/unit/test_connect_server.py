"""The Spark Connect door's listener: errors at opening, slow clients, and TLS."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from pathlib import Path
from typing import Any

import grpc
import pytest

from haproc.config.model import Address, Connect
from haproc.config.tls import Certificates, ClientCertificates
from haproc.doors.connect import server
from haproc.doors.connect.server import SERVING, ConnectListener, Figures
from tests.certificates import Authority, Pair


def listener(
    port: int,
    settings: Connect,
    certificates: Certificates | None = None,
    handlers: dict[str, grpc.RpcMethodHandler] | None = None,
) -> ConnectListener:
    """Return a listener of ``test.Service``."""

    async def end() -> None:
        return

    return ConnectListener(
        grpc.method_handlers_generic_handler("test.Service", handlers or {}),
        Address("127.0.0.1", port),
        settings,
        serves=lambda: True,
        figures=lambda: Figures({}, 0, 0),
        end=end,
        certificates=certificates,
    )


async def test_used_port_is_reported_as_address_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError) as failed:
        await listener(taken.getsockname()[1], Connect()).open()
    assert failed.value.errno == errno.EADDRINUSE


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


async def test_door_whose_opening_is_cancelled_does_not_listen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = asyncio.Event()
    make = grpc.aio.server

    def hanging(**how: Any) -> Any:
        server = make(**how)
        start = server.start

        async def start_and_hang() -> None:
            await start()
            started.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(server, "start", start_and_hang)
        return server

    monkeypatch.setattr(grpc.aio, "server", hanging)
    door = listener(0, Connect())
    opening = asyncio.create_task(door.open())
    await started.wait()
    assert answers(door.port)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await door.aclose()
    assert not answers(door.port)


@pytest.mark.parametrize("secure", [False, True])
async def test_client_that_sends_nothing_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secure: bool
) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_S", 0.3)
    certificates = Certificates(Authority(tmp_path).tls()) if secure else None
    door = listener(0, Connect(), certificates)
    await door.open()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", door.port)
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                while await reader.read(100):  # without TLS it says its settings first
                    pass
        writer.close()
    finally:
        await door.aclose()


HEALTH = "/grpc.health.v1.Health/Check"


def answer(port: int, authority: Authority, own: Pair | None = None) -> bytes:
    """Return the answer of a health check over TLS; raises grpc.RpcError."""
    pair = (None, None) if own is None else (own.key.read_bytes(), own.certificate.read_bytes())
    credentials = grpc.ssl_channel_credentials(authority.file.read_bytes(), *pair)
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(f"localhost:{port}", credentials, options) as channel:
        found: bytes = channel.unary_unary(HEALTH)(b"", timeout=10)
        return found


async def test_new_connections_get_the_reloaded_certificates(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    before = Authority(tmp_path, "before")
    before.file.write_bytes(old.file.read_bytes())
    certificates = Certificates(old.tls())
    door = listener(0, Connect(), certificates)
    await door.open()
    try:
        assert await asyncio.to_thread(answer, door.port, before) == SERVING
        old.file.write_bytes(new.file.read_bytes())
        new.issue("door")
        certificates.reload()
        assert await asyncio.to_thread(answer, door.port, new) == SERVING
        with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
            await asyncio.to_thread(answer, door.port, before)
    finally:
        await door.aclose()


async def test_client_certificate_is_required_if_configured(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    tls = authority.tls(client_certificates=ClientCertificates.REQUIRED)
    door = listener(0, Connect(), Certificates(tls))
    await door.open()
    try:
        own = authority.issue("client")
        assert await asyncio.to_thread(answer, door.port, authority, own) == SERVING
        for other in (None, stranger.issue("other")):
            with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
                await asyncio.to_thread(answer, door.port, authority, other)
    finally:
        await door.aclose()
