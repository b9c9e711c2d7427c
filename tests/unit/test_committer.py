"""Storing progress: one commit at a time, shared by its waiters, never older than their calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from haproc.replicate.member.core import Committer
from tests.simulation.clock import run

COMMIT_S = 1.0


class Disk:
    """Stores the newest value; slow, and detects concurrent commits."""

    def __init__(self) -> None:
        self.newest = 0
        self.stored: list[int] = []
        self._busy = False

    async def commit(self) -> None:
        assert not self._busy
        self._busy = True
        value = self.newest
        await asyncio.sleep(COMMIT_S)
        self.stored.append(value)
        self._busy = False


def committing(test: Callable[[Disk, Committer], Awaitable[None]]) -> Callable[[], None]:
    """Run a test with a committer's task, on a virtual clock."""

    async def main() -> None:
        disk = Disk()
        committer = Committer(disk.commit)
        task = asyncio.create_task(committer.run_forever())
        await test(disk, committer)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    return lambda: run(main())


@committing
async def test_call_returns_when_the_value_at_its_time_is_stored(
    disk: Disk, store: Committer
) -> None:
    disk.newest = 1
    await store()
    assert disk.stored == [1]


@committing
async def test_concurrent_calls_share_one_commit(disk: Disk, store: Committer) -> None:
    disk.newest = 7
    await asyncio.gather(*(store() for _ in range(50)))
    assert disk.stored == [7]


@committing
async def test_call_during_a_commit_waits_for_the_next_one(disk: Disk, store: Committer) -> None:
    disk.newest = 1
    first = asyncio.create_task(store())
    await asyncio.sleep(COMMIT_S / 2)
    disk.newest = 2
    await store()
    assert first.done()
    assert disk.stored == [1, 2]


@committing
async def test_cancelled_call_does_not_disturb_the_others(disk: Disk, store: Committer) -> None:
    cancelled = asyncio.create_task(store())
    stays = asyncio.create_task(store())
    await asyncio.sleep(COMMIT_S / 2)
    cancelled.cancel()
    await stays
    assert disk.stored == [0]


@committing
async def test_soon_commits_without_a_waiter(disk: Disk, store: Committer) -> None:
    disk.newest = 3
    store.soon()
    store.soon()
    await asyncio.sleep(10 * COMMIT_S)
    assert disk.stored == [3]


def test_failed_commit_ends_the_task() -> None:
    async def broken() -> None:
        raise ValueError("the note is too long")

    async def main() -> None:
        committer = Committer(broken)
        committer.soon()
        with pytest.raises(ValueError, match="too long"):
            await committer.run_forever()

    run(main())
