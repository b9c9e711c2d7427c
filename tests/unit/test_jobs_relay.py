"""Tests of the relay: the port that connects a job's PySpark to the first open door of the ring."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest

from haproc.config.model import Address, Config
from haproc.config.tls import Certificates, ClientCertificates
from haproc.jobs.relay import DoorAddress, Relay, Relays, client_doors, connect_doors
from haproc.ring.process import free_port
from tests.certificates import Authority
from tests.unit.door_rig import STATEMENTS, door, make_config

PATIENCE_S = 10.0


@asynccontextmanager
async def echo(name: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A door that sends its name, then echoes its input."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(name.encode() + b"\n")
        while data := await reader.read(1000):
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def exchanged(relay: Relay, data: bytes = b"hello\n") -> list[bytes]:
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        name = await reader.readline()
        writer.write(data)
        back = await reader.readline() if name else b""
        writer.close()
        return [name.strip(), back.strip()]


async def test_connection_goes_to_the_first_open_door() -> None:
    async with echo("second") as port:
        doors = [DoorAddress("a", "127.0.0.1", free_port()), DoorAddress("b", "127.0.0.1", port)]
        relay = Relay(lambda: doors)
        await relay.start()
        assert await exchanged(relay) == [b"second", b"hello"]
        async with echo("first") as first:
            doors[0] = replace(doors[0], port=first)
            assert await exchanged(relay) == [b"first", b"hello"]
        doors.clear()
        assert await exchanged(relay) == [b"", b""]
        await relay.aclose()


async def test_connection_to_a_door_that_left_the_list_is_closed() -> None:
    async with echo("a") as port:
        doors = [DoorAddress("a", "127.0.0.1", port)]
        relay = Relay(lambda: doors)
        await relay.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        assert await reader.readline() == b"a\n"
        relay.check()
        writer.write(b"still\n")
        assert await reader.readline() == b"still\n"
        doors.clear()
        relay.check()
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()
        await relay.aclose()


def with_doors(folder: Path, port: int) -> Config:
    config = make_config(folder)
    clusters = tuple(
        replace(cluster, connect=Address("0.0.0.0", port)) for cluster in config.clusters
    )
    return replace(config, clusters=clusters)


def test_own_door_comes_first_and_is_reached_on_loopback(tmp_path: Path) -> None:
    config = with_doors(tmp_path, 15002)
    last = config.clusters[-1]
    found = connect_doors(config, last.name)
    assert (found[0].cluster, found[0].host) == (last.name, "127.0.0.1")
    assert len(found) == len(config.clusters)


@pytest.mark.parametrize("mine", [True, False])
async def test_relay_adds_tls_and_accepts_only_the_rings_certificate(
    tmp_path: Path, mine: bool
) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    own = Certificates(authority.tls("ring", client_certificates=ClientCertificates.REQUIRED))
    other = Certificates(stranger.tls("other"))
    for certificates, expected in ((own, b"ring"), (other, b"")):
        async with echo("ring", certificates.now.server) as port:
            door = DoorAddress("a", "127.0.0.1", port, mine)
            relay = Relay(lambda door=door: [door], own)  # type: ignore[misc]
            await relay.start()
            assert (await exchanged(relay))[0] == expected
            await relay.aclose()


async def test_own_door_on_loopback_needs_no_certificate_for_its_name_and_others_do(
    tmp_path: Path,
) -> None:
    certificates = Certificates(Authority(tmp_path).tls("ring", hosts="DNS:elsewhere"))
    for mine, expected in ((True, b"ring"), (False, b"")):
        async with echo("ring", certificates.now.server) as port:
            door = DoorAddress("a", "127.0.0.1", port, mine)
            relay = Relay(lambda door=door: [door], certificates)  # type: ignore[misc]
            await relay.start()
            assert (await exchanged(relay))[0] == expected
            await relay.aclose()


async def test_program_without_certificates_reaches_a_door_that_requires_them(
    tmp_path: Path,
) -> None:
    tls = Authority(tmp_path).tls(client_certificates=ClientCertificates.REQUIRED)
    async with door(tmp_path, tls=tls) as rig, aiohttp.ClientSession() as http:
        address = DoorAddress("a", "127.0.0.1", rig.listener.port, mine=True)
        relays = Relays(Relay(list), Relay(lambda: [address], rig.certificates))
        await relays.start()
        (url,) = relays.servers([])
        for _ in range(3):
            async with http.post(url + STATEMENTS, json={"statement": "SELECT 1"}) as answer:
                assert answer.status == 200 and await answer.json()
        await relays.aclose()


async def test_client_doors_with_tls_are_relayed_and_others_are_named_directly(
    tmp_path: Path,
) -> None:
    config = make_config(tmp_path)
    assert [door.cluster for door in client_doors(config, "b")] == ["b", "a"]
    relays = Relays(Relay(list), Relay(lambda: client_doors(config, "b")))
    await relays.start()
    assert relays.clients is not None and relays.clients.port
    assert relays.servers(["https://b:8080"]) == [f"http://127.0.0.1:{relays.clients.port}"]
    await relays.aclose()
    assert Relays(Relay(list)).servers(["http://b:8080"]) == ["http://b:8080"]


@pytest.mark.parametrize("turns", range(8))
async def test_relay_stopped_while_it_starts_leaves_no_port_open(turns: int) -> None:
    relay = Relay(list)
    starting = asyncio.ensure_future(relay.start())
    for _ in range(turns):
        await asyncio.sleep(0)
    await relay.aclose()
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    if relay.port:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", relay.port)
