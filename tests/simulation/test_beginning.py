"""Tests of processes that begin with more missed records than are read ahead."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from haproc.replicate.member.steps import Step
from tests.simulation.directed import Stage, as_story, ddl
from tests.simulation.ring import LIMITS, Node
from tests.simulation.scenario import insert


@as_story(limits=replace(LIMITS, look_ahead_bytes_max=300))
async def test_cluster_that_missed_more_bytes_than_are_read_ahead_recovers(stage: Stage) -> None:
    await stage.submit("a", ddl("a"))
    stage.node("c").kill()
    for number in range(30):
        await stage.submit("a", insert(str(number), "t", "a"))
    stage.node("c").start()
    await stage.settle()


@as_story()
async def test_committed_insert_that_is_not_read_ahead_is_applied_once(stage: Stage) -> None:
    """It commits, and its process dies before it stores that. The next process reads less ahead."""
    await stage.submit("a", ddl("a"))
    await stage.submit("a", ddl("a", "create another", "CREATE TABLE u (x)"))
    await stage.ready("a")
    spark = stage.node("a").spark
    spark.held.add("u")
    before = asyncio.ensure_future(stage.submit("a", insert("before", "u", "a")))
    await stage.until(lambda: stage.replica("a").core.schedule.pending == 1)
    stage.at("a", Step.APPLY_AFTER, Node.kill)
    sent = asyncio.ensure_future(stage.submit("a", insert("one", "t", "a")))
    await stage.until(lambda: stage.alive_state("a") is None)
    before.cancel()
    sent.cancel()
    assert spark.dump()["t"] == [("one",)]
    spark.held.clear()
    stage.ring.configure(limits=replace(LIMITS, look_ahead_records_max=1))
    stage.node("a").start()
    await stage.settle()
