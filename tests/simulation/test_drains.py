"""Tests of rolling maintenance on a virtual clock: a drained cluster takes no new write."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from haproc.failure import RequestError, WriteOutcome
from haproc.membership.state import State, beneath
from haproc.replicate.member.steps import Step
from haproc.replicate.records.operation import Operation
from tests.simulation.directed import Stage, as_story, ddl, story
from tests.simulation.network import Refused
from tests.simulation.ring import Node
from tests.simulation.scenario import insert

CLIENTS = 4
IDS = "CREATE TABLE ids (id)"


class Load:
    """Clients that write without end; each stays at a node until that node refuses a write."""

    def __init__(self, stage: Stage, seed: int) -> None:
        self.stage = stage
        self.rng = random.Random(f"{seed}/load")
        self.written: list[str] = []
        self.unknown: list[RequestError] = []
        self._tasks = [asyncio.ensure_future(self._client(n)) for n in range(CLIENTS)]

    async def _client(self, number: int) -> None:
        order = self.stage.ring.order(number)
        for n in range(100_000):
            await asyncio.sleep(self.rng.expovariate(5))
            op_id = f"c{number}n{n}"
            while not await self._at(order[0], op_id):
                order.append(order.pop(0))
            self.written.append(op_id)

    async def _at(self, name: str, op_id: str) -> bool:
        try:
            await self.stage.apply(name, insert(op_id, "ids", name))
        except Refused:
            return False
        except RequestError as error:
            if error.outcome is not WriteOutcome.NOT_SENT:
                self.unknown.append(error)
            return False
        return True

    async def goes_on(self) -> None:
        count = len(self.written) + 20
        await self.stage.until(lambda: len(self.written) >= count, 120)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def taken_by(stage: Stage, name: str) -> int:
    """Return how many operations in the log a cluster has received."""
    return sum(op.origin == name for op in stage.records(Operation))


def check_ids(stage: Stage, load: Load) -> None:
    """Every cluster has each row that was acknowledged, once."""
    for node in stage.ring.nodes.values():
        counted = Counter(row[0] for row in node.spark.dump()["ids"])
        assert set(counted.values()) == {1}, "nothing twice"
        assert counted.keys() >= set(load.written), "nothing lost"
    stage.check_equal(*"abc")


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("part", ["nothing", "haproc", "spark", "both"])
def test_clusters_drained_and_restarted_one_after_another_fail_no_request(
    seed: int, part: str
) -> None:
    async def script(stage: Stage) -> None:
        await stage.submit("a", ddl("a", sql=IDS), 60)
        load = Load(stage, seed)
        await load.goes_on()
        for name in "abc":
            await drained(stage, load, name, part)
        await load.end()
        await stage.ring.settled()
        assert load.unknown == [], "nobody was left in doubt"
        check_ids(stage, load)

    story(script, seed)


async def drained(stage: Stage, load: Load, name: str, part: str) -> None:
    """Drain a cluster under load, restart a part of it, and give it back."""
    node = stage.node(name)
    node.drain(drained=True)
    taken = taken_by(stage, name)
    core = stage.replica(name).core
    await load.goes_on()
    # what was let in before may still have been appended, by each client once
    assert taken_by(stage, name) <= taken + CLIENTS
    taken = taken_by(stage, name)
    if part in ("spark", "both"):
        node.spark.kill()
        await stage.until(lambda: not core.condition.now.cluster_up, 120)
    if part in ("haproc", "both"):
        node.restart()
    await load.goes_on()
    assert stage.state(name) is State.DRAINING
    node.spark.restart()
    end = stage.ring.store.end
    await stage.until(lambda: stage.replica(name).core.schedule.low >= end, 120)
    assert stage.state(name) is State.DRAINING, "in sync, and still away from clients"
    assert taken_by(stage, name) == taken
    node.drain(drained=False)
    await stage.until(lambda: stage.state(name) is State.READY, 120)
    await load.goes_on()


def drain(node: Node) -> None:
    node.drain(drained=True)


@as_story()
async def test_running_write_of_a_cluster_that_is_drained_gets_its_answer(stage: Stage) -> None:
    await stage.submit("a", ddl("a", sql=IDS), 60)
    stage.at("a", Step.APPEND_BEFORE, drain)
    await stage.apply("a", insert("x", "ids", "a"), 60)
    assert stage.state("a") is State.DRAINING
    with pytest.raises(RequestError) as caught:
        await stage.submit("a", insert("y", "ids", "a"), 60)
    assert caught.value.error_class == "HAPROC_DRAINING"
    assert caught.value.outcome is WriteOutcome.NOT_SENT


@as_story()
async def test_synchronous_write_of_a_drained_origin_is_not_taken_over_while_it_runs(
    stage: Stage,
) -> None:
    stage.at("a", Step.APPEND_AFTER, drain)
    outcome = await stage.apply("a", ddl("a", sql=IDS), 60)
    assert outcome.clusters is not None and set(outcome.clusters) == {"a", "b", "c"}
    condition = stage.replica("a").core.condition
    assert (condition.state, beneath(condition.now)) == (State.DRAINING, State.READY)
    stage.node("a").drain(drained=False)
    await stage.ring.settled()
    assert all("ids" in stage.tables(name) for name in "abc")
