"""A door with TLS: accepted and refused clients, and connections that never start TLS."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import aiohttp
import pytest
import uvloop
from aiohttp import web

from haproc.config.model import Address
from haproc.config.sections import User
from haproc.config.tls import ClientCertificates, read_contexts
from haproc.doors.http import listener
from haproc.doors.http.listener import Listener
from haproc.node.node import open_doors
from tests.certificates import Authority
from tests.unit.door_rig import Rig, door, make_config, until

REQUIRED = ClientCertificates.REQUIRED
Loop = Callable[[Coroutine[Any, Any, None]], None]
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


def trusting(authority: Authority) -> ssl.SSLContext:
    """Return the context of a client without a certificate."""
    return ssl.create_default_context(cafile=authority.file)


@contextlib.asynccontextmanager
async def connection(
    rig: Rig, tls: ssl.SSLContext | None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.listener.port, ssl=tls)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def answer(rig: Rig, tls: ssl.SSLContext | None) -> bytes:
    """Return the first line of the answer; raises ssl.SSLError, ConnectionError."""
    async with asyncio.timeout(10), connection(rig, tls) as (reader, writer):
        writer.write(HEALTH)
        return await reader.readline()


@LOOPS
def test_door_with_tls_answers_and_keeps_its_connections(tmp_path: Path, run: Loop) -> None:
    async def run_door() -> None:
        async with door(tmp_path, tls=Authority(tmp_path).tls()) as rig:
            assert rig.url.startswith("https://")
            for _ in range(3):
                await rig.post(statement="SELECT 1")
            assert len(rig.listener._permits) == 1

    run(run_door())


@LOOPS
def test_requests_sent_with_the_handshake_are_answered(tmp_path: Path, run: Loop) -> None:
    async def run_door() -> None:
        authority = Authority(tmp_path)
        async with door(tmp_path, tls=authority.tls()) as rig:
            tls = trusting(authority)
            found = await asyncio.gather(*(answer(rig, tls) for _ in range(30)))
            assert {line.split()[1] for line in found} == {b"200"}

    run(run_door())


async def test_large_body_over_tls_is_accepted(tmp_path: Path) -> None:
    async with door(tmp_path, tls=Authority(tmp_path).tls()) as rig:
        await rig.post(statement="SELECT '" + "x" * 900_000 + "'")


@LOOPS
def test_plain_http_at_a_door_with_tls_is_ended_and_logged(
    tmp_path: Path, run: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    async def run_door() -> None:
        async with door(tmp_path, tls=Authority(tmp_path).tls()) as rig:
            with contextlib.suppress(ConnectionError):
                assert await answer(rig, None) == b""
            await until(lambda: len(rig.listener._permits) == 0)

    run(run_door())
    assert "no TLS with 127.0.0.1: HTTP_REQUEST" in caplog.text


@LOOPS
@pytest.mark.parametrize(
    ("shown", "reason"),
    [
        ("", "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
        ("stranger", "unable to get local issuer certificate"),
    ],
)
def test_client_certificate_is_required_if_configured(
    tmp_path: Path, run: Loop, shown: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def run_door() -> None:
        authority = Authority(tmp_path)
        context = trusting(authority)
        if shown:
            pair = Authority(tmp_path, shown).issue("client")
            context.load_cert_chain(pair.certificate, pair.key)
        tls = authority.tls(client_certificates=REQUIRED)
        async with door(tmp_path, tls=tls) as rig:
            await rig.post(statement="SELECT 1")  # with a certificate of the ring's
            # The client may see its connection reset before it reads why; the door knows.
            with contextlib.suppress(ssl.SSLError, ConnectionError):
                assert await answer(rig, context) == b""
            await until(lambda: reason in caplog.text)

    run(run_door())


async def test_client_certificate_is_not_required_by_default(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with door(tmp_path, tls=authority.tls()) as rig:
        assert b"200" in await answer(rig, trusting(authority))


@LOOPS
def test_reloaded_certificates_are_used_for_new_connections(tmp_path: Path, run: Loop) -> None:
    async def run_door() -> None:
        old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
        trusting_old, trusting_new = trusting(old), trusting(new)
        async with (
            door(tmp_path, tls=old.tls()) as rig,
            connection(rig, trusting_old) as (reader, writer),
        ):
            assert rig.certificates is not None
            writer.write(HEALTH)
            assert b"200" in await reader.readline()
            old.file.write_bytes(new.file.read_bytes())  # the ring's ca_file
            new.issue("door")
            rig.certificates.reload()
            assert b"200" in await answer(rig, trusting_new)
            with pytest.raises(ssl.SSLCertVerificationError):
                await answer(rig, trusting_old)
            writer.write(HEALTH)
            await reader.readuntil(b"200 OK")

    run(run_door())


async def test_reloaded_ca_applies_to_clients_of_new_connections(tmp_path: Path) -> None:
    authority, old_authority = Authority(tmp_path), Authority(tmp_path, "gone")
    both = tmp_path / "both.pem"
    both.write_bytes(authority.file.read_bytes() + old_authority.file.read_bytes())
    tls = authority.tls(client_certificates=REQUIRED, ca_file=both)
    pair, context = old_authority.issue("client"), trusting(authority)
    context.load_cert_chain(pair.certificate, pair.key)
    async with door(tmp_path, tls=tls) as rig:
        assert b"200" in await answer(rig, context)
        both.write_bytes(authority.file.read_bytes())
        assert rig.certificates is not None
        rig.certificates.reload()
        with pytest.raises((ssl.SSLError, ConnectionError)):
            assert not await answer(rig, context)
            raise ConnectionResetError


@LOOPS
def test_client_that_does_not_start_tls_is_disconnected(
    tmp_path: Path, run: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "HEAD_S", 0.2)

    async def silent() -> None:
        async with (
            door(tmp_path, tls=Authority(tmp_path).tls()) as rig,
            asyncio.timeout(10),
            connection(rig, None) as (reader, _),
        ):
            await until(lambda: len(rig.listener._permits) == 1)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            await until(lambda: len(rig.listener._permits) == 0)

    run(silent())


@LOOPS
def test_connections_without_handshake_keep_nobody_out(tmp_path: Path, run: Loop) -> None:
    async def crowded() -> None:
        tls = Authority(tmp_path).tls()
        async with (
            door(tmp_path, tls=tls, connections_max=3) as rig,
            contextlib.AsyncExitStack() as stack,
        ):
            for _ in range(6):
                await stack.enter_async_context(connection(rig, None))
            await until(lambda: len(rig.listener._permits) == 3)
            await rig.post(statement="SELECT 1")
            assert len(rig.listener._permits) <= 3

    run(crowded())


@LOOPS
def test_closing_door_ends_handshakes_and_idle_connections(tmp_path: Path, run: Loop) -> None:
    async def closing() -> None:
        authority = Authority(tmp_path)
        async with (
            door(tmp_path, tls=authority.tls()) as rig,
            asyncio.timeout(10),
            connection(rig, None) as (knocking, _),
            connection(rig, trusting(authority)) as (idle, writer),
        ):
            writer.write(HEALTH)
            await idle.readline()
            await until(lambda: len(rig.listener._permits) == 2)
            await rig.listener.close()
            for reader in (knocking, idle):
                with contextlib.suppress(ConnectionError, ssl.SSLError):
                    await reader.read()
            with pytest.raises(ConnectionRefusedError):
                await answer(rig, trusting(authority))
            await rig.listener.open()
            assert b"200" in await answer(rig, trusting(authority))

    run(closing())


async def test_tls_session_cannot_be_resumed(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    def resumable(port: int, version: ssl.TLSVersion) -> bool:
        context = trusting(authority)
        context.maximum_version = version
        with (
            socket.create_connection(("127.0.0.1", port), 10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            secured.sendall(HEALTH)
            assert secured.recv(100)  # tickets come before
            return secured.session is not None and secured.session.has_ticket

    async with door(tmp_path, tls=authority.tls()) as rig:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            assert not await asyncio.to_thread(resumable, rig.listener.port, version)


class Full:
    """A listening socket of a system that once has no free file descriptor."""

    def __init__(self, real: socket.socket) -> None:
        self._real = real
        self._full = True
        self.fileno, self.close = real.fileno, real.close
        self.getsockname = real.getsockname

    def accept(self) -> tuple[socket.socket, object]:
        full, self._full = self._full, False
        if full:
            raise OSError(errno.EMFILE, "Too many open files")
        return self._real.accept()


async def test_door_continues_when_the_system_has_file_descriptors_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listener, "_FULL_PAUSE_S", 0.05)
    authority = Authority(tmp_path)
    async with door(tmp_path, tls=authority.tls()) as rig:
        server = rig.listener._server
        assert isinstance(server, listener.TlsServer)
        asyncio.get_running_loop().remove_reader(server.sockets[0])
        server.sockets[:] = [cast(socket.socket, Full(server.sockets[0]))]
        await server.start_serving()
        assert b"200" in await answer(rig, trusting(authority))
    assert "Too many open files" in caplog.text


async def test_port_in_use_is_reported_as_address_in_use(tmp_path: Path) -> None:
    tls = Authority(tmp_path).tls()
    async with door(tmp_path, tls=tls) as rig:
        taken = Address("127.0.0.1", rig.listener.port)
        with pytest.raises(OSError, match="in use") as refused:
            await Listener(web.Application(), taken, certificates=rig.certificates).open()
        assert refused.value.errno == errno.EADDRINUSE


async def test_expired_certificate_is_refused_by_clients(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with door(tmp_path, tls=authority.tls(days=-1)) as rig:
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            await answer(rig, trusting(authority))
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await rig.post(statement="SELECT 1")


async def test_certificate_of_another_host_is_refused_unless_the_check_is_disabled(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    tls = authority.tls(hosts="DNS:elsewhere")
    async with door(tmp_path, tls=tls) as rig:
        with pytest.raises(ssl.SSLCertVerificationError, match=r"127\.0\.0\.1"):
            await answer(rig, read_contexts(tls).client)
        unchecked = authority.tls("second", hosts="DNS:elsewhere", check_hostname=False)
        assert b"200" in await answer(rig, read_contexts(unchecked).client)


def test_door_on_the_network_without_tls_is_reported_at_start(tmp_path: Path) -> None:
    config = make_config(tmp_path, users=(User("ann", "ann-token"),))
    assert open_doors(config, "a") == []
    outside = Address("0.0.0.0", 8080)
    a = replace(config.clusters[0], listen=outside, peer=outside)
    config = replace(config, clusters=(a,))
    first, second = open_doors(config, "a")
    assert "listen (0.0.0.0:8080)" in first and "tls.certificate_file" in first
    assert second.startswith("a: peer")
