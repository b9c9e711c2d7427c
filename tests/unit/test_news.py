"""Waiting until something holds: nobody sleeps through it, however many wait."""

from __future__ import annotations

import asyncio

import pytest

from haproc.replicate.member.condition import News


async def test_until_what_holds_already_returns_at_once() -> None:
    async with asyncio.timeout(1):
        await News().until(lambda: True)


async def test_until_wakes_everybody_for_whom_it_holds_and_nobody_else() -> None:
    news, low = News(), 0
    waiting = [asyncio.ensure_future(news.until(lambda at=at: low >= at)) for at in (1, 2, 2, 3)]  # type: ignore[misc]
    while low < 2:
        await asyncio.sleep(0)
        low += 1
        news.moved()
    async with asyncio.timeout(1):
        await asyncio.gather(*waiting[:3])
    assert not waiting[3].done()
    waiting[3].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_until_sees_what_became_true_between_two_looks() -> None:
    news, true = News(), False
    waiting = asyncio.ensure_future(news.until(lambda: true))
    await asyncio.sleep(0)
    news.moved()
    true = True
    async with asyncio.timeout(1):
        await waiting


async def test_startable_hears_of_changes_and_not_of_what_only_moved() -> None:
    news = News()
    news.moved()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await news.startable()
    news.changed()
    async with asyncio.timeout(1):
        await news.startable()
