"""Tests of waiting for a condition: every waiter wakes up when its condition holds."""

from __future__ import annotations

import asyncio

import pytest

from haproc.replicate.member.condition import News


async def test_until_returns_at_once_if_the_condition_holds_already() -> None:
    async with asyncio.timeout(1):
        await News().until(lambda: True)


async def test_until_wakes_exactly_the_waiters_whose_condition_holds() -> None:
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


async def test_until_notices_a_condition_that_became_true_between_two_checks() -> None:
    news, true = News(), False
    waiting = asyncio.ensure_future(news.until(lambda: true))
    await asyncio.sleep(0)
    news.moved()
    true = True
    async with asyncio.timeout(1):
        await waiting


async def test_startable_wakes_up_on_changed_and_not_on_moved() -> None:
    news = News()
    news.moved()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await news.startable()
    news.changed()
    async with asyncio.timeout(1):
        await news.startable()
