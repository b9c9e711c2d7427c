"""Operations that must end after their callers have left, or whose session is lost."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from copy import copy
from typing import Any, cast

import pytest

from haproc.engine.asking import Asking, SparkRelay
from haproc.engine.channel import Channel, EngineLimits
from haproc.engine.errors import SESSION_CHANGED, EngineError, ErrorKind
from haproc.engine.remote import RemoteSession
from haproc.engine.statement import SqlText
from haproc.engine.tasks import Phase


class _Channel:
    """A channel that keeps the calls in the background."""

    limits = EngineLimits()

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[Any]] = []

    def execute(self, request: bytes, timeout_s: float) -> None:
        raise AssertionError("it is not begun")

    def relay(self, rpc: str) -> Any:
        return self.execute

    def check_bytes(self, size: int) -> None:
        """Accept every message."""

    def in_background(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(work))


class _Remote(RemoteSession):
    """A session whose interrupts end as listed: with an error or without."""

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
    channel, phases = _Channel(), list[Phase]()
    _Remote(channel, iter(ends)).stop_soon("op", phases.append)
    await asyncio.wait_for(asyncio.gather(*channel.tasks), 10)
    assert phases == [Phase.ENDED]


async def test_session_counts_the_operations_that_are_being_stopped() -> None:
    """The interrupt goes to the session in which the operation runs, also after a new one began."""
    channel = _Channel()
    remote = _Remote(channel, iter([None, None]))
    was = copy(remote)
    remote.start_over()
    interrupted = list[str]()

    async def interrupt(self: RemoteSession, operation_id: str | None = None) -> None:
        interrupted.append(self.id)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(_Remote, "interrupt", interrupt)
        remote.stop_soon("op", was=was)
        remote.stop_soon("op", was=copy(remote))
        assert remote.stopping == 2
        await asyncio.wait_for(asyncio.gather(*channel.tasks), 10)
    assert remote.stopping == 0
    assert interrupted == [was.id, remote.id]


@pytest.mark.parametrize("lost", [True, False])
@pytest.mark.parametrize("relayed", [True, False])
async def test_driver_permit_is_released_before_a_lost_session_is_recreated(
    lost: bool, relayed: bool
) -> None:
    """While a recreated session waits for the log, the statement holds no place on the driver."""
    phases, error_class = list[Phase](), SESSION_CHANGED if lost else ""
    recovering = list[list[Phase]]()

    class Session(Asking):
        async def recover(self, error: EngineError, epoch: int) -> bool:
            recovering.append(list(phases))
            return False

        async def begin(self) -> int:
            return 0

        def in_use(self) -> AbstractContextManager[None]:
            return nullcontext()

    class Failing(_Remote):
        async def open(self) -> None:
            """The session exists."""

        @asynccontextmanager
        async def answer(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
            raise EngineError(ErrorKind.AVAILABILITY, "no", error_class=error_class)
            yield

    remote = Failing(_Channel(), iter([None]))
    session = Session(remote)
    answer: AsyncIterable[Any]
    if relayed:
        relay = SparkRelay(remote, session, lambda: None)
        answer = relay.execute(b"", "op", timeout_s=1.0, planned=phases.append)
    else:
        answer = await session.query(SqlText("SELECT 1"), timeout_s=1.0, planned=phases.append)
    with pytest.raises(EngineError):
        await anext(aiter(answer))
    assert recovering == [[Phase.PLANNED] if lost else []]
