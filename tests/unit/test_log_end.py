"""Tests of LogEnd: a caller gets an end that was read after its call, and shares the request."""

from __future__ import annotations

import asyncio

import pytest

from dmq import LogUnavailableError
from haproc.route.attempts import LogEnd


class Log:
    """Reads its end when a call begins; returns it when the test allows."""

    def __init__(self) -> None:
        self.end = 0
        self.calls: list[asyncio.Future[None]] = []

    async def read(self) -> int:
        end, gone = self.end, asyncio.get_running_loop().create_future()
        self.calls.append(gone)
        await gone
        return end


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_log_end_is_read_after_the_call_that_asks_for_it() -> None:
    log = Log()
    ends = LogEnd(log.read)
    first = asyncio.ensure_future(ends.read_log_end())
    await turns()
    log.end = 5  # written and acknowledged while the first call is under way
    later = [asyncio.ensure_future(ends.read_log_end()) for _ in range(3)]
    await turns()
    assert len(log.calls) == 1
    log.calls[0].set_result(None)
    assert await first == 0
    await turns()
    assert len(log.calls) == 2  # one for all three
    log.calls[1].set_result(None)
    assert await asyncio.gather(*later) == [5, 5, 5]


async def test_callers_at_the_same_time_share_one_request() -> None:
    log = Log()
    ends = LogEnd(log.read)
    reads = [asyncio.ensure_future(ends.read_log_end()) for _ in range(10)]
    await turns()
    assert len(log.calls) == 1
    reads[0].cancel()  # others wait for it still
    log.calls[0].set_result(None)
    assert await asyncio.gather(*reads[1:]) == [0] * 9


async def test_failed_request_fails_only_the_callers_that_shared_it() -> None:
    log = Log()
    ends = LogEnd(log.read)
    first = asyncio.ensure_future(ends.read_log_end())
    await turns()
    second = asyncio.ensure_future(ends.read_log_end())
    await turns()
    log.calls[0].set_exception(LogUnavailableError("away"))
    with pytest.raises(LogUnavailableError):
        await first
    await turns()
    log.calls[1].set_result(None)
    assert await second == 0
    third = asyncio.ensure_future(ends.read_log_end())
    await turns()
    log.calls[2].set_result(None)
    assert await third == 0
