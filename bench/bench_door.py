"""The time that the client door adds to the engine's own: ``python -m bench.bench_door``.

The service behind the door answers at once, so all that is measured is the door. The yardstick is
an aiohttp handler that answers with as many fixed bytes, asked by the same client in the same run;
rounds of all sides alternate, so that a busy machine slows all of them.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pyarrow as pa
import uvloop
from aiohttp import web

from bench.report import Row, report
from dmq import Json
from haproc.classify.model import OperationClass, WriteConcern
from haproc.classify.rights import UNBOUNDED, Rights
from haproc.config.model import Address, ClusterConfig, Config
from haproc.config.tls import Certificates, Tls
from haproc.doors.apps import client_app
from haproc.doors.http.bodies import ARROW_STREAM
from haproc.doors.http.listener import Listener
from haproc.doors.status import Readiness
from haproc.engine.interface import Chunk, Column, EngineAddress
from haproc.metrics import Metrics
from haproc.ring.making import make_certificate, tls_keys
from haproc.route.model import Answer, HaReport, Request, SentSql
from haproc.route.streams import Replayed

ROUNDS = 20
REQUESTS = 100
CONCURRENT = 32
CHUNK_ROWS = 100_000
CHUNKS = 100
STATEMENTS = "/api/2.0/sql/statements"


class OnlyQueries:
    """The part of a service that has no writes and no sessions: subclasses run statements."""

    def find_write(self, request_id: str, user: str) -> None:
        return None

    async def open_session(
        self,
        session_id: str,
        user: str,
        statements: Sequence[str],
        *,
        afresh: bool,
        rights: Rights = UNBOUNDED,
    ) -> Mapping[str, str]:
        return {}

    async def shown(self, request: Request, *, tree: bool) -> Mapping[str, Json]:
        raise NotImplementedError

    async def close_session(self, session_id: str, user: str) -> None:
        return None

    def only_reads(self, request: Request) -> bool | None:
        return True

    async def revoke(self, request_id: str, user: str) -> None:
        return None

    async def is_final(self, offset: int) -> bool:
        return False

    async def concern_met(self, offset: int, concern: WriteConcern | None) -> bool:
        return False


class InstantService(OnlyQueries):
    """Answers ``SELECT 1`` with one row, and anything else with many."""

    def __init__(self) -> None:
        self._one = [_chunk(pa.table({"1": pa.array([1], pa.int32())}))]
        numbers = pa.array(range(CHUNK_ROWS), pa.int64())
        self._many = [_chunk(pa.table({"n": numbers, "m": numbers}))] * CHUNKS
        self._report = HaReport("a", OperationClass.QUERY)

    async def execute(self, request: Request) -> Answer:
        chunks = self._one if request.statement == SentSql("SELECT 1") else self._many
        return Answer(self._report, Replayed(chunks), (Column("1", "int", False),))


class ReadyStatus:
    """A HAProc that is ready."""

    def readiness(self) -> Readiness:
        return Readiness(True, "READY")

    def cluster_status(self) -> Mapping[str, Json]:
        return {}


def _chunk(table: pa.Table) -> Chunk:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return Chunk(sink.getvalue().to_pybytes(), table.num_rows)


async def _post(http: aiohttp.ClientSession, url: str, **headers: str) -> int:
    body = b'{"statement":"SELECT 1"}'
    sent = {"Content-Type": "application/json", **headers}
    async with http.post(url, data=body, headers=sent) as response:
        return len(await response.read())


async def _rounds(asks: dict[str, Callable[[], Awaitable[Any]]]) -> dict[str, list[float]]:
    """Return each side's times in seconds; the sides take turns."""
    took: dict[str, list[float]] = {name: [] for name in asks}
    for _ in range(ROUNDS):
        for name, ask in asks.items():
            for _ in range(REQUESTS):
                began = time.perf_counter()
                await ask()
                took[name].append(time.perf_counter() - began)
    return took


async def _throughput(ask: Callable[[], Awaitable[Any]]) -> float:
    """Return requests per second of many clients at once."""

    async def client() -> None:
        for _ in range(REQUESTS):
            await ask()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CONCURRENT)))
    return CONCURRENT * REQUESTS / (time.perf_counter() - began)


async def _streamed(http: aiohttp.ClientSession, url: str, body: bytes) -> float:
    """Return MiB per second of one large answer."""
    began, size = time.perf_counter(), 0
    headers = {"Accept": ARROW_STREAM, "Content-Type": "application/json"}
    async with http.post(url, data=body, headers=headers) as response:
        async for part in response.content.iter_any():
            size += len(part)
    return size / (1 << 20) / (time.perf_counter() - began)


def _plain_app(answer_bytes: int) -> web.Application:
    """Return the yardstick: it reads a body and answers with fixed bytes."""
    answer = b"x" * answer_bytes
    large = b"x" * (1 << 20)

    async def small(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(body=answer, content_type="application/json")

    async def stream(request: web.Request) -> web.StreamResponse:
        await request.read()
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(CHUNKS):
            await response.write(large)
        await response.write_eof()
        return response

    app = web.Application()
    app.add_routes([web.post(STATEMENTS, small), web.post("/stream", stream)])
    return app


def door_config(folder: Path) -> Config:
    """Return the configuration of a HAProc whose doors choose their ports."""
    here = Address("127.0.0.1", 0)
    cluster = ClusterConfig("a", here, here, EngineAddress("127.0.0.1", 1))
    return Config("bench", "memory:", (cluster,), "not a secret", folder)


def _door(folder: Path, certificates: Certificates | None = None) -> Listener:
    metrics = Metrics("bench", "a", ["READY"])
    app = client_app(door_config(folder), "a", InstantService(), ReadyStatus(), metrics)
    return Listener(app, Address("127.0.0.1", 0), certificates=certificates)


def _certificates(folder: Path) -> Certificates:
    make_certificate(folder)
    files: dict[str, Any] = {key: folder / file for key, file in tls_keys().items()}
    return Certificates(Tls(**files))


async def _measure(folder: Path) -> list[Row]:
    certificates = _certificates(folder)
    door, secured = _door(folder / "plain"), _door(folder / "tls", certificates)
    await door.open()
    await secured.open()
    url = f"http://127.0.0.1:{door.port}{STATEMENTS}"
    with_tls = f"https://127.0.0.1:{secured.port}{STATEMENTS}"
    connector = aiohttp.TCPConnector(ssl=certificates.now.client)
    async with aiohttp.ClientSession(connector=connector) as http:
        plain = Listener(_plain_app(await _post(http, url)), Address("127.0.0.1", 0))
        await plain.open()
        base = f"http://127.0.0.1:{plain.port}"
        asks: dict[str, Callable[[], Awaitable[Any]]] = {
            "plain": lambda: _post(http, base + STATEMENTS),
            "json": lambda: _post(http, url),
            "stream": lambda: _post(http, url, Accept=ARROW_STREAM),
            "tls": lambda: _post(http, with_tls),
        }
        took = await _rounds(asks)
        p50 = {name: statistics.median(times) * 1000 for name, times in took.items()}
        rates = {name: await _throughput(ask) for name, ask in asks.items()}
        flow = await _streamed(http, url, b'{"statement":"SELECT many"}')
        plain_flow = await _streamed(http, base + "/stream", b"{}")
        tls_flow = await _streamed(http, with_tls, b'{"statement":"SELECT many"}')
        await plain.aclose()
    await door.aclose()
    await secured.aclose()
    bare = "an aiohttp handler of fixed bytes"
    return [
        Row("SELECT 1 through the door, JSON, p50", "ms", p50["json"], bare, p50["plain"]),
        Row("SELECT 1 through the door, stream, p50", "ms", p50["stream"], bare, p50["plain"]),
        Row("the door's own share, JSON", "ms", p50["json"] - p50["plain"], "the bound", 1.0),
        Row("the door's own share, stream", "ms", p50["stream"] - p50["plain"], "the bound", 1.0),
        Row("32 clients, JSON", "requests/s", rates["json"], bare, rates["plain"]),
        Row("32 clients, stream", "requests/s", rates["stream"], bare, rates["plain"]),
        Row("one Arrow stream of 153 MiB", "MiB/s", flow, "fixed bytes", plain_flow),
        Row("SELECT 1 with TLS, JSON, p50", "ms", p50["tls"], "without TLS", p50["json"]),
        Row("32 clients with TLS, JSON", "requests/s", rates["tls"], "without TLS", rates["json"]),
        Row("one Arrow stream with TLS", "MiB/s", tls_flow, "without TLS", flow),
    ]


def main() -> None:
    """Measure and report."""
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        report("door", runner.run(_measure(Path(folder))))


if __name__ == "__main__":
    main()
