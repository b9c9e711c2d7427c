"""The port that leads a job's PySpark to a door of the ring: the first that is open."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from haproc.config.model import Address, Config, Connect
from haproc.jobs.relay import DoorAddress, Relay, doors_of
from haproc.ring.making import make_access
from haproc.ring.process import free_port
from tests.unit.door_rig import make_config

PATIENCE_S = 10.0


@asynccontextmanager
async def echo(name: str, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A door that says its name, then what it is told."""

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


async def said(relay: Relay, data: bytes = b"hello\n") -> list[bytes]:
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        name = await reader.readline()
        writer.write(data)
        back = await reader.readline() if name else b""
        writer.close()
        return [name.strip(), back.strip()]


async def test_connection_goes_to_the_first_door_that_is_open() -> None:
    async with echo("second") as port:
        doors = [DoorAddress("a", "127.0.0.1", free_port()), DoorAddress("b", "127.0.0.1", port)]
        relay = Relay(lambda: doors)
        await relay.start()
        assert await said(relay) == [b"second", b"hello"]
        async with echo("first") as first:
            doors[0] = replace(doors[0], port=first)
            assert await said(relay) == [b"first", b"hello"]
        doors.clear()
        assert await said(relay) == [b"", b""]
        await relay.aclose()


async def test_connection_to_a_door_that_is_not_worth_trying_any_more_is_broken() -> None:
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


def with_doors(folder: Path, port: int, connect: Connect | None = None) -> Config:
    config = make_config(folder)
    clusters = tuple(
        replace(cluster, connect=Address("0.0.0.0", port)) for cluster in config.clusters
    )
    return replace(config, clusters=clusters, connect=connect or Connect())


def test_own_door_comes_first_and_is_reached_on_loopback(tmp_path: Path) -> None:
    config = with_doors(tmp_path, 15002)
    last = config.clusters[-1]
    found = doors_of(config, last.name)
    assert (found[0].cluster, found[0].host) == (last.name, "127.0.0.1")
    assert len(found) == len(config.clusters)


async def test_tls_begins_at_the_relay_and_only_the_rings_certificate_counts(
    tmp_path: Path,
) -> None:
    own = files(tmp_path, "ring")
    settings = Connect(ssl_certificate_file=own[0], ssl_key_file=own[1])
    config = with_doors(tmp_path, 0, settings)
    for name, expected in (("ring", b"ring"), ("stranger", b"")):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*(own if name == "ring" else files(tmp_path, name)))
        async with echo(name, context) as port:
            door = replace(doors_of(config, config.clusters[0].name)[0], port=port)
            relay = Relay(lambda door=door: [door])  # type: ignore[misc]
            await relay.start()
            assert (await said(relay))[0] == expected
            await relay.aclose()


def files(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a certificate and its key."""
    place = folder / name
    (place / "secrets").mkdir(parents=True)
    made = make_access(place, ["ann"])["connect"]
    return place / made["ssl_certificate_file"], place / made["ssl_key_file"]


@pytest.mark.parametrize("turns", range(8))
async def test_relay_that_is_stopped_while_it_starts_leaves_nothing_open(turns: int) -> None:
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
