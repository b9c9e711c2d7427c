"""Appending many rows: sent as they are read, and read again for another server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from aiohttp import web

import haclient
from tests.unit.haclient_rig import (
    BIG,
    UNAVAILABLE,
    Open,
    connect,
    servers,
    settle,
)
from tests.unit.haclient_server import WAIT_S, Server, chunked

__all__ = ["connect", "servers"]

MANY = pa.table({"n": range(2_000_000)})


def batches_of_many(fails: bool = False) -> Iterator[pa.RecordBatch]:
    yield from MANY.to_batches(100_000)
    if fails:
        raise LookupError("the source is away")


async def test_append_of_many_rows_sends_all_of_them(connect: Open, servers: list[Server]) -> None:
    connection = connect(servers)
    await settle(connection.append("t", batches_of_many(), request_id="r"))
    await settle(connection.append("t", batches_of_many, request_id="r"))
    for _, query, rows in servers[0].appended:
        assert query["request_id"] == "r" and rows.equals(MANY)
    assert len(servers[0].appended) == 2


async def test_append_of_many_rows_sends_them_as_they_are_read(
    connect: Open, servers: list[Server]
) -> None:
    begun = threading.Event()

    async def receive(
        server: Server, request: web.Request, body: dict[str, Any]
    ) -> web.StreamResponse:
        begin = await request.content.readexactly(1000)
        begun.set()
        received = pa.ipc.open_stream(begin + await request.content.read()).read_all()
        server.appended.append(("t", {}, received))
        return web.json_response({"statement_id": "x", "ha": {"cluster": server.name}})

    def source() -> Iterator[pa.RecordBatch]:
        *first, last = batches_of_many()
        yield from first
        assert begun.wait(WAIT_S), "the first rows wait for the last ones"
        yield last

    servers[0].rows_script.append(receive)
    await settle(connect(servers).append("t", source()))
    assert servers[0].appended[0][2].equals(MANY)


async def test_append_of_many_rows_fails_over_if_they_can_be_read_again(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers)
    servers[0].rows_script += [UNAVAILABLE, UNAVAILABLE]
    assert (await settle(connection.append("t", batches_of_many)))["cluster"] == "b"
    assert servers[1].appended[0][2].equals(MANY)
    again = connect(servers)
    with pytest.raises(haclient.InterfaceError, match="cannot be read a second time"):
        await settle(again.append("t", batches_of_many()))
    await settle(again.append("t", MANY.slice(0, 10).to_reader()))


class Frame:
    """A DataFrame of another library: gives an Arrow stream any number of times."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return MANY.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return len(MANY)


class Stream:
    """A stream of another library: whether it can be read again is unknown."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return MANY.__arrow_c_stream__(requested_schema)


async def test_append_of_an_object_with_an_arrow_stream_sends_its_rows(
    connect: Open, servers: list[Server]
) -> None:
    servers[0].rows_script += [UNAVAILABLE, UNAVAILABLE]
    assert (await settle(connect(servers).append("t", Frame())))["cluster"] == "b"
    assert servers[1].appended[0][2].equals(MANY)
    await settle(connect(servers[1:]).append("t", Stream()))
    assert servers[1].appended[1][2].equals(MANY)


async def test_append_of_an_arrow_stream_without_a_length_is_read_once(
    connect: Open, servers: list[Server]
) -> None:
    servers[0].rows_script += [UNAVAILABLE, UNAVAILABLE]
    with pytest.raises(haclient.InterfaceError, match="cannot be read a second time"):
        await settle(connect(servers).append("t", Stream()))
    assert not servers[1].appended


async def test_append_whose_source_fails_raises_its_error_and_tries_no_other_server(
    connect: Open, servers: list[Server]
) -> None:
    with pytest.raises(LookupError, match="away"):
        await settle(connect(servers).append("t", batches_of_many(fails=True)))
    assert not servers[0].appended and not servers[1].appended


def test_result_is_an_arrow_stream_for_other_libraries(servers: list[Server]) -> None:
    servers[0].script.append(chunked(BIG, 1000))
    with haclient.connect([servers[0].url], discover=False) as connection:
        cursor = connection.execute("SELECT 1")
        assert cursor.fetchone() == (0,)
        assert pa.table(cursor).equals(BIG.slice(1))
