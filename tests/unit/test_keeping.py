"""Tests of Keeping: parts are stored one after another, each while the next one is gathered."""

from __future__ import annotations

import asyncio

import pytest

from haproc.replicate.apply.materialise import Keeping


class Log:
    """Stores parts, once the test allows it."""

    def __init__(self) -> None:
        self.parts: list[tuple[int, bytes]] = []
        self.under_way = 0
        self.takes = asyncio.Event()

    async def keep(self, number: int, part: bytes) -> int:
        assert not self.under_way, "one part at a time"
        self.under_way += 1
        try:
            await self.takes.wait()
        finally:
            self.under_way -= 1
        if part == b"bad":
            raise ValueError(part)
        self.parts.append((number, part))
        return 100 + number


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_next_part_is_gathered_while_one_is_stored_and_waits_for_it() -> None:
    log = Log()
    async with Keeping(log.keep) as kept:
        assert kept.empty
        await kept.append_part(b"a")
        assert not kept.empty
        second = asyncio.ensure_future(kept.append_part(b"b"))
        await turns()
        assert log.under_way == 1 and not second.done(), "no third one is in memory"
        log.takes.set()
        await second
        assert await kept.places() == (100, 101)
    assert log.parts == [(0, b"a"), (1, b"b")]


@pytest.mark.parametrize("more", [True, False])
async def test_error_of_a_part_that_cannot_be_stored_is_raised_before_its_offset_is_returned(
    more: bool,
) -> None:
    log = Log()
    log.takes.set()
    with pytest.raises(ValueError, match="bad"):
        async with Keeping(log.keep) as kept:
            await kept.append_part(b"bad")
            await (kept.append_part(b"c") if more else kept.places())
    assert not log.parts


async def test_storing_is_cancelled_when_the_block_ends_with_an_error() -> None:
    log = Log()
    with pytest.raises(KeyError):
        async with Keeping(log.keep) as kept:
            await kept.append_part(b"a")
            await turns()
            assert log.under_way
            raise KeyError
    assert not log.under_way and not log.parts
