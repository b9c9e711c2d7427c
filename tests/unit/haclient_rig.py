"""Helpers of the client's tests: servers, connections of both forms, and calls of either form.

The servers run in threads of their own, so a blocking call may block the test.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

import haclient
import haclient.aio
from tests.unit.haclient_server import WAIT_S, Server, failing

BIG = pa.table({"n": pa.array(range(20_000), pa.int32())})
UNAVAILABLE = failing(503, "availability", "HAPROC_NOT_READY")

Open = Callable[..., Any]


async def settle(value: Any) -> Any:
    """Await what the asyncio form returns; the blocking one has done it already."""
    return await value if inspect.isawaitable(value) else value


async def gather(values: Any) -> list[Any]:
    """Exhaust an iterator of either form."""
    if hasattr(values, "__aiter__"):
        return [value async for value in values]
    return list(values)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        await asyncio.sleep(0.01)


async def run(connection: Any, sql: str = "SELECT 1", *given: Any, **options: Any) -> Any:
    """Run a statement; return the cursor."""
    return await settle(connection.execute(sql, *given, **options))


async def fails(connection: Any, sql: str = "SELECT 1", **options: Any) -> haclient.Error:
    """Run a statement that must fail; return the error."""
    with pytest.raises(haclient.Error) as raised:
        await run(connection, sql, **options)
    return raised.value


@contextmanager
def serving(*names: str) -> Iterator[list[Server]]:
    """Start servers with these names; close them at the end."""
    made = [Server(name) for name in names]
    try:
        yield made
    finally:
        for server in made:
            server.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving("a") as (made,):
        yield made


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    with serving("a", "b") as made:
        yield made


@pytest.fixture(params=["sync", "aio"])
async def connect(request: pytest.FixtureRequest) -> AsyncIterator[Open]:
    """Open connections of one form."""
    opened: list[Any] = []

    def open_(servers: list[Any], **options: Any) -> Any:
        form = haclient if request.param == "sync" else haclient.aio
        opened.append(form.connect([server.url for server in servers], **options))
        return opened[-1]

    yield open_
    for connection in opened:
        await settle(connection.close())
