"""A cluster returns while clients go on with slow writes."""

from __future__ import annotations

import asyncio
import contextlib

from haproc.membership.state import State
from tests.simulation.directed import Stage, story
from tests.simulation.scenario import build


async def return_under_load(stage: Stage) -> None:
    """Run slow updates of one table while a cluster is killed and returns."""
    for node in stage.ring.nodes.values():
        node.spark.statement_s = 1.2

    async def write() -> None:
        number = 0
        while True:
            await stage.submit("a", build("register", f"u{number}", "a", number))
            number += 1

    writers = [asyncio.ensure_future(write()) for _ in range(2)]
    await asyncio.sleep(5)
    stage.node("b").kill()
    await asyncio.sleep(5)
    stage.node("b").start()
    await stage.until(lambda: stage.alive_state("b") is State.READY, 90)
    assert not any(writer.done() for writer in writers)
    for writer in writers:
        writer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writer
    await stage.settle()


def test_cluster_that_returns_under_steady_slow_writes_becomes_ready() -> None:
    story(return_under_load)
