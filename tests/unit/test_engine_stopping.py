"""Operations that are to end without their callers: until Spark says so."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Iterator
from typing import Any, cast

import pytest

from haproc.engine.channel import Channel, EngineLimits
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.remote import RemoteSession
from haproc.engine.status import SESSION_CHANGED


class _Channel:
    """Keeps what goes on in the background."""

    limits = EngineLimits()

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any]] = []

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(work))


class _Remote(RemoteSession):
    """Whose interrupts end so, one after another."""

    def __init__(self, channel: _Channel, ends: Iterator[EngineError | None]) -> None:
        super().__init__(cast(Channel, channel), lambda _: uuid.uuid4())
        self._ends = ends

    async def interrupt(self, operation_id: str | None = None) -> None:
        if (error := next(self._ends)) is not None:
            raise error

    async def _operations(self, states: Any) -> frozenset[str]:
        return frozenset({"op"})


@pytest.mark.parametrize(
    "ends",
    [
        [None],
        [EngineError(ErrorKind.AVAILABILITY, "no answer within 10 s"), None],
        [EngineError(ErrorKind.AVAILABILITY, "another server", error_class=SESSION_CHANGED)],
    ],
    ids=["interrupted", "no answer, then interrupted", "the server has forgotten it"],
)
async def test_operation_is_interrupted_until_its_end_is_known(
    ends: list[EngineError | None],
) -> None:
    channel, told = _Channel(), list[int]()
    _Remote(channel, iter(ends)).stop_soon("op", lambda: told.append(1))
    await asyncio.wait_for(asyncio.gather(*channel.tasks), 10)
    assert told == [1]
