"""Users' queries take turns at a cluster's cores."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from haproc.engine.connect import SparkConnectEngine
from haproc.engine.interface import Session, Settings, pool_of
from tests.integration.engine_calls import rows

pytestmark = pytest.mark.spark

LONG = "SELECT sum(hash(id) % 7) FROM range(0, 40000000, 1, 80)"
"""Tasks for half a minute, where the small one needs two cores twice."""
SMALL = "SELECT count(*) FROM range(0, 10, 1, 2)"


async def ended_before(small: Session, long: Sequence[Session]) -> int:
    """Return how many long queries end before a small one that came behind them."""
    running = [asyncio.create_task(rows(session, LONG)) for session in long]
    try:
        await asyncio.sleep(1)
        await rows(small, SMALL)
        return sum(each.done() for each in running)
    finally:
        for session in long:
            await session.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_query_does_not_wait_for_the_end_of_another_users(
    engine: SparkConnectEngine,
) -> None:
    long = [engine.session(f"long/{n}", pool=pool_of("ada")) for n in range(3)]
    small = engine.session("small", pool=pool_of("bob"))
    for session in (*long, small):
        await session.configure(Settings())
        await rows(session, SMALL)
    assert await ended_before(small, long) == 0
