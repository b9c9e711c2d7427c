"""HAProcs that share a store and deliver results, and clients that read them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any

import pytest

from dmq.memory import MemoryKeys, MemoryKeyValueStore
from haproc.config.shares import Shares
from haproc.doors.connect.delivery import Deliveries
from haproc.doors.connect.errors import Key
from haproc.doors.connect.operation import DeliveryLimits
from haproc.engine.errors import EngineError
from haproc.failure import RequestError
from tests.unit.spark_responses import (
    Client,
    each,
)

SMALL = DeliveryLimits(hold_bytes=64 << 10, window_bytes=64 << 10)


class Rig:
    """HAProcs that share a store, and the requests that their Sparks received."""

    def __init__(self, limits: DeliveryLimits = SMALL, memory: int = 1 << 30) -> None:
        self.keys = MemoryKeys()
        self.limits = limits
        self.memory = Shares(memory)
        self.operations = Shares(100)
        self.going_on: set[Key] = set()
        self.revocable: set[Key] = set()
        self.all: list[Deliveries] = []
        self.requests: list[bytes] = []
        self.closed_early = 0

    async def take_back(self, key: Key) -> bool:
        """Revoke a running operation, if possible."""
        return key in self.revocable

    def haproc(self, store: Any = None, **limits: Any) -> Deliveries:
        made = Deliveries(
            store or MemoryKeyValueStore(self.keys),
            dataclasses.replace(self.limits, **limits),
            memory=self.memory,
            operations=self.operations,
            goes_on=self.going_on.__contains__,
            take_back=self.take_back,
        )
        self.all.append(made)
        return made

    def source(
        self, responses: Iterable[Any], gate: asyncio.Event | None = None
    ) -> Callable[[bytes], AsyncGenerator[bytes, None]]:
        """Return a runner that answers any request with these, then waits for ``gate``."""

        async def run(request: bytes) -> AsyncGenerator[bytes, None]:
            self.requests.append(request)
            whole = False
            try:
                async for response in each(responses):
                    yield response
                if gate is not None:
                    await gate.wait()
                whole = True
            except EngineError:
                whole = True
                raise
            finally:
                self.closed_early += not whole

        return run


async def read(
    responses: AsyncGenerator[bytes, None], client: Client | None = None, count: int = 1 << 30
) -> Client:
    client = client or Client()
    async with contextlib.aclosing(responses):
        while count > 0 and (response := await anext(responses, None)) is not None:
            client.take(response)
            count -= 1
    return client


async def failing(responses: AsyncGenerator[bytes, None]) -> str:
    with pytest.raises((RequestError, EngineError)) as raised:
        await read(responses)
    error = raised.value
    assert isinstance(error, RequestError | EngineError)
    return error.error_class
