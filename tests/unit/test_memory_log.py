"""Tests of the log in memory on a virtual clock, as simulations use it."""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Coroutine
from typing import TypeVar

import pytest

from dmq import Cursor, LogError, MemoryLog, MemoryStore, Record, RecordTooLargeError

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time jumps to the next timer instead of passing."""

    def __init__(self) -> None:
        super().__init__(_JumpingSelector(self))
        self.now = 0.0

    def time(self) -> float:
        return self.now


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout > 0:
            self._loop.now += timeout
        return super().select(0)


def run(main: Coroutine[object, object, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def test_wait_on_a_virtual_clock_ends_exactly_at_its_deadline_without_real_time() -> None:
    async def main() -> tuple[bool, float]:
        return await MemoryLog().wait(0, 3600.0), asyncio.get_running_loop().time()

    began = time.monotonic()
    assert run(main()) == (False, pytest.approx(3600.0))
    assert time.monotonic() - began < 10


def test_wait_on_a_virtual_clock_ends_at_the_time_of_the_append() -> None:
    async def main() -> tuple[bool, float]:
        store = MemoryStore()
        writer, reader = MemoryLog(store), MemoryLog(store)
        waiting = asyncio.create_task(reader.wait(0, 100.0))
        await asyncio.sleep(7.0)
        await writer.append([Record("test")])
        return await waiting, asyncio.get_running_loop().time()

    assert run(main()) == (True, pytest.approx(7.0))


def test_wait_of_many_readers_ends_in_the_order_of_their_arrival() -> None:
    async def main() -> list[int]:
        store = MemoryStore()
        woken: list[int] = []

        async def reader(number: int) -> None:
            await MemoryLog(store).wait(0, 100.0)
            woken.append(number)

        tasks = [asyncio.create_task(reader(number)) for number in range(20)]
        await asyncio.sleep(1)
        await MemoryLog(store).append([Record("test")])
        await asyncio.gather(*tasks)
        return woken

    assert run(main()) == list(range(20))


def test_log_in_memory_starts_no_thread() -> None:
    async def main() -> int:
        log = MemoryLog()
        await log.append([Record("test")])
        await log.commit_cursor("a", Cursor(1))
        await log.wait(1, 1.0)
        return threading.active_count()

    before = threading.active_count()
    assert run(main()) == before


def test_store_outlives_the_closed_log_of_a_process() -> None:
    async def main() -> None:
        store = MemoryStore()
        log = MemoryLog(store)
        await log.append([Record("test", "a")])
        await log.commit_cursor("reader", Cursor(1, "note"))
        await log.close()
        with pytest.raises(LogError, match="closed"):
            await log.end()
        again = MemoryLog(store)
        assert [entry.record.key for entry in await again.read(0)] == ["a"]
        assert await again.load_cursor("reader") == Cursor(1, "note")

    run(main())


def test_store_record_limit_is_configurable() -> None:
    async def main() -> None:
        log = MemoryLog(MemoryStore(record_bytes_max=100))
        with pytest.raises(RecordTooLargeError):
            await log.append([Record("test", payload=bytes(100))])
        assert await log.end() == 0

    run(main())
