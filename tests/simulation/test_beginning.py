"""Processes that begin where more is missed than is read ahead."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from haproc.replicate.member.steps import Step
from tests.simulation.directed import Stage, ddl, story
from tests.simulation.ring import LIMITS
from tests.simulation.scenario import insert


def test_cluster_that_missed_more_bytes_than_are_read_ahead_comes_back() -> None:
    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        stage.node("c").kill()
        for number in range(30):
            await stage.submit("a", insert(str(number), "t", "a"))
        stage.node("c").start()
        await stage.settle()

    story(tell, limits=replace(LIMITS, look_ahead_bytes_max=300))


def test_insert_that_the_beginning_had_not_read_is_applied_once() -> None:
    """It committed, and its process died before it stored that. The next one reads less ahead."""

    async def tell(stage: Stage) -> None:
        await stage.submit("a", ddl("a"))
        await stage.submit("a", ddl("a", "create another", "CREATE TABLE u (x)"))
        await stage.ready("a")
        spark = stage.node("a").spark
        spark.held.add("u")
        before = asyncio.ensure_future(stage.submit("a", insert("before", "u", "a")))
        await stage.until(lambda: stage.replica("a").core.schedule.pending == 1)
        stage.at("a", Step.APPLY_AFTER, lambda node: node.kill())
        sent = asyncio.ensure_future(stage.submit("a", insert("one", "t", "a")))
        await stage.until(lambda: stage.alive_state("a") is None)
        before.cancel()
        sent.cancel()
        assert spark.dump()["t"] == [("one",)]
        spark.held.clear()
        stage.ring.configure(limits=replace(LIMITS, look_ahead_records_max=1))
        stage.node("a").start()
        await stage.settle()

    story(tell)
