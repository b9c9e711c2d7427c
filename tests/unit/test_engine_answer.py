"""Answers that go on after their readers have left, so that the statement can be stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from haproc.engine import answer as answer_module
from haproc.engine.answer import AHEAD_MAX, SparkAnswer
from haproc.engine.tasks import Planned, StatementReport, Tasks

REPORTED = "tasks run"


class Call:
    """A call that gives the messages that are put into it; None ends it."""

    def __init__(self) -> None:
        self.messages = asyncio.Queue[Any]()
        self.cancelled = False

    def __call__(self, timeout_s: float) -> Call:
        return self

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._read()

    async def _read(self) -> AsyncIterator[Any]:
        while (message := await self.messages.get()) is not None:
            if isinstance(message, Exception):
                raise message
            yield message

    def cancel(self) -> None:
        self.cancelled = True
        self.messages.put_nowait(grpc.aio.AioRpcError(*_status(grpc.StatusCode.CANCELLED)))


def _status(code: grpc.StatusCode) -> tuple[Any, ...]:
    return code, grpc.aio.Metadata(), grpc.aio.Metadata()


class Reports(Tasks):
    """Statements whose messages are words: each reports that tasks run."""

    def begin(self, planned: Planned | None = None) -> StatementReport:
        report = super().begin(planned)

        def receive(message: Any) -> None:
            report.has_begun |= message == REPORTED

        cast(Any, report).receive = receive
        return report


def answer_of(call: Call, timeout_s: float = 60.0) -> SparkAnswer:
    return SparkAnswer(call, timeout_s, Reports(lambda: 0.0))


@pytest.mark.parametrize("turns", range(6))
async def test_reader_faster_than_the_callback_of_a_read_gets_the_next_message(
    turns: int,
) -> None:
    call, go = Call(), asyncio.Event()
    answer = answer_of(call)
    answer._next()
    await asyncio.sleep(0)  # the read waits for a message

    async def read() -> list[Any]:
        await go.wait()
        return [await anext(answer), await anext(answer)]

    reader = asyncio.create_task(read())
    await asyncio.sleep(0)
    # In one turn of the loop (that of one of the tests) the first read ends, and its reader asks
    # for the next message.
    call.messages.put_nowait("a")
    for _ in range(turns):
        await asyncio.sleep(0)
    go.set()
    for _ in range(5):
        await asyncio.sleep(0)
    call.messages.put_nowait("b")
    assert await reader == ["a", "b"]


async def test_answer_is_read_to_its_end() -> None:
    call = Call()
    for message in ("a", "b", None):
        call.messages.put_nowait(message)
    assert [message async for message in answer_of(call)] == ["a", "b"]


async def test_late_answer_raises_deadline_exceeded_and_goes_on() -> None:
    call = Call()
    answer = answer_of(call, timeout_s=0.01)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await anext(answer)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert not call.cancelled
    following = asyncio.create_task(answer.follow(asyncio.Event()))
    call.messages.put_nowait("rows of which nobody knows what they are")
    await asyncio.sleep(0.01)
    assert not following.done()
    call.messages.put_nowait(REPORTED)
    assert await following is False


@pytest.mark.parametrize("error", [False, True])
async def test_cancelled_reader_leaves_the_answer_to_be_followed(error: bool) -> None:
    call = Call()
    answer = answer_of(call)
    reader = asyncio.create_task(answer.__anext__())
    await asyncio.sleep(0)
    reader.cancel()
    await asyncio.wait({reader})
    assert not call.cancelled
    call.messages.put_nowait(
        grpc.aio.AioRpcError(*_status(grpc.StatusCode.UNAVAILABLE)) if error else None
    )
    assert await answer.follow(asyncio.Event()) is not error


async def test_following_ends_when_the_connection_closes_or_after_its_maximum_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call, closing = Call(), asyncio.Event()
    answer = answer_of(call)
    following = asyncio.create_task(answer.follow(closing))
    await asyncio.sleep(0.01)
    closing.set()
    assert await asyncio.wait_for(following, 10) is False
    monkeypatch.setattr(answer_module, "FOLLOWED_S_MAX", 0.01)
    assert await asyncio.wait_for(answer.follow(asyncio.Event()), 10) is False
    answer.end(answered=False)
    assert call.cancelled
    await asyncio.sleep(0.01)  # what its last read raises is nobody's


@pytest.mark.parametrize("error", [False, True])
async def test_answer_that_ended_for_its_reader_is_not_followed_any_longer(error: bool) -> None:
    call = Call()
    answer = answer_of(call)
    call.messages.put_nowait(
        grpc.aio.AioRpcError(*_status(grpc.StatusCode.UNAVAILABLE)) if error else None
    )
    with pytest.raises(grpc.aio.AioRpcError if error else StopAsyncIteration):
        await anext(answer)
    assert await asyncio.wait_for(answer.follow(asyncio.Event()), 10) is not error


async def test_only_the_first_messages_are_read_ahead() -> None:
    call, count = Call(), 2 * AHEAD_MAX
    for message in range(count):
        call.messages.put_nowait(message)
    answer, remaining = answer_of(call), list[int]()
    for _ in range(count):
        await anext(answer)
        await asyncio.sleep(0)  # a read that was begun takes its message
        remaining.append(call.messages.qsize())
    ahead = [count - taken - remaining[taken - 1] for taken in range(1, count + 1)]
    assert ahead == [1] * (AHEAD_MAX - 1) + [0] * (count - AHEAD_MAX + 1)
