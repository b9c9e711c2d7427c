"""Appending many rows: sent as they are read, and read again for another server."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

import haclient
from tests.unit.test_haclient_connection import (
    UNAVAILABLE,
    Open,
    Server,
    connect,
    servers,
    settle,
)

__all__ = ["connect", "servers"]

MANY = pa.table({"n": range(2_000_000)})


def batches_of_many(fails: bool = False) -> Iterator[pa.RecordBatch]:
    yield from MANY.to_batches(100_000)
    if fails:
        raise LookupError("the source is away")


async def test_append_of_many_rows_sends_them_as_they_are_read(
    connect: Open, servers: list[Server]
) -> None:
    connection = connect(servers)
    await settle(connection.append("t", batches_of_many(), request_id="r"))
    await settle(connection.append("t", batches_of_many, request_id="r"))
    for _, query, rows in servers[0].appended:
        assert query["request_id"] == "r" and rows.equals(MANY)
    assert len(servers[0].appended) == 2


async def test_append_of_many_rows_fails_over_where_they_can_be_read_again(
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


async def test_append_whose_source_fails_raises_that_and_asks_nobody_else(
    connect: Open, servers: list[Server]
) -> None:
    with pytest.raises(LookupError, match="away"):
        await settle(connect(servers).append("t", batches_of_many(fails=True)))
    assert not servers[0].appended and not servers[1].appended
