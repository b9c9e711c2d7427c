"""Parts are kept one after another, each while the next one is gathered."""

from __future__ import annotations

import asyncio

import pytest

from haproc.replicate.apply.materialise import Keeping


class Log:
    """Takes parts as slowly as it is told."""

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


async def test_next_part_is_gathered_while_one_is_kept_and_waits_for_it() -> None:
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
async def test_part_that_cannot_be_kept_is_told_before_anything_names_it(more: bool) -> None:
    log = Log()
    log.takes.set()
    with pytest.raises(ValueError, match="bad"):
        async with Keeping(log.keep) as kept:
            await kept.append_part(b"bad")
            await (kept.append_part(b"c") if more else kept.places())
    assert not log.parts


async def test_nothing_is_under_way_behind_it() -> None:
    log = Log()
    with pytest.raises(KeyError):
        async with Keeping(log.keep) as kept:
            await kept.append_part(b"a")
            await turns()
            assert log.under_way
            raise KeyError
    assert not log.under_way and not log.parts
