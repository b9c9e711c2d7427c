"""Rolling maintenance on a virtual clock: a drained cluster takes nothing new and misses none."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest

from dmq.memory import MemoryLog
from haproc.classify.model import Kind
from haproc.failure import RequestError, WriteOutcome
from haproc.membership.state import State, beneath
from haproc.replicate.member.steps import Step
from haproc.replicate.queue.outcomes import OutcomeStatus
from haproc.replicate.records.operation import Operation, from_record
from tests.simulation.clock import run
from tests.simulation.network import Refused
from tests.simulation.ring import Node, Ring
from tests.simulation.scenario import insert, operation

CLIENTS = 4


def state(node: Node) -> State | None:
    return node.replica.core.condition.state if node.replica is not None else None


async def until(condition: Any, timeout_s: float = 120) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


class Load:
    """Clients that write for ever, each at the node where it was until that one refuses."""

    def __init__(self, ring: Ring, seed: int) -> None:
        self.ring = ring
        self.rng = random.Random(f"{seed}/load")
        self.written: list[str] = []
        self.unknown: list[RequestError] = []
        self._tasks = [asyncio.ensure_future(self._client(n)) for n in range(CLIENTS)]

    async def _client(self, number: int) -> None:
        order = list(self.ring.names)
        order = order[number % 3 :] + order[: number % 3]
        for n in range(100_000):
            await asyncio.sleep(self.rng.expovariate(5))
            op_id = f"c{number}n{n}"
            while not await self._at(order[0], op_id):
                order.append(order.pop(0))
            self.written.append(op_id)

    async def _at(self, name: str, op_id: str) -> bool:
        try:
            _, outcome = await self.ring.submit(name, insert(op_id, "ids", name), 30)
        except Refused:
            return False
        except RequestError as error:
            if error.outcome is not WriteOutcome.NOT_SENT:
                self.unknown.append(error)
            return False
        assert outcome.status is OutcomeStatus.APPLIED
        return True

    async def goes_on(self) -> None:
        count = len(self.written) + 20
        await until(lambda: len(self.written) >= count)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def begun(seed: int) -> tuple[Ring, Load]:
    ring = Ring(seed)
    for node in ring.nodes.values():
        node.start()
    await ring.settled()
    await ring.submit("a", operation("ids", Kind.CREATE_TABLE, "CREATE TABLE ids (id)", "a"), 60)
    return ring, Load(ring, seed)


async def origins(ring: Ring) -> Counter[str]:
    entries = await MemoryLog(ring.store).read(0, records_max=1_000_000, bytes_max=1 << 30)
    messages = [from_record(entry.record) for entry in entries]
    return Counter(m.origin for m in messages if isinstance(m, Operation))


def check_equal(ring: Ring, load: Load) -> None:
    ids = {name: Counter(row[0] for row in node.spark.dump()["ids"]) for name, node in nodes(ring)}
    for counted in ids.values():
        assert set(counted.values()) == {1}, "nothing twice"
        assert counted.keys() >= set(load.written), "nothing lost"
    assert ids["a"] == ids["b"] == ids["c"]


def nodes(ring: Ring) -> Any:
    return ring.nodes.items()


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("part", ["nothing", "haproc", "spark", "both"])
def test_clusters_drained_and_restarted_one_after_another_fail_no_request(
    seed: int, part: str
) -> None:
    async def main() -> None:
        ring, load = await begun(seed)
        await load.goes_on()
        for node in ring.nodes.values():
            node.drain(drained=True)
            taken = (await origins(ring))[node.name]
            replica = node.replica
            assert replica is not None
            await load.goes_on()
            # what was let in before may still have been appended, by each client once
            assert (await origins(ring))[node.name] <= taken + CLIENTS
            taken = (await origins(ring))[node.name]
            if part in ("spark", "both"):
                node.spark.kill()
                await until(lambda core=replica.core: not core.condition.now.cluster_up)
            if part in ("haproc", "both"):
                node.kill()
                node.start()
            await load.goes_on()
            assert state(node) is State.DRAINING
            node.spark.restart()
            end = ring.store.end
            await until(lambda node=node, end=end: node.replica.core.schedule.low >= end)
            assert state(node) is State.DRAINING, "in sync, and still away from clients"
            assert (await origins(ring))[node.name] == taken
            node.drain(drained=False)
            await until(lambda node=node: state(node) is State.READY)
            await load.goes_on()
        await load.end()
        await ring.settled()
        assert load.unknown == [], "nobody was left in doubt"
        check_equal(ring, load)
        assert ring.errors == []

    run(main())


def test_write_under_way_when_its_cluster_is_drained_gets_its_answer() -> None:
    async def main() -> None:
        ring = Ring(1)
        for node in ring.nodes.values():
            node.start()
        await ring.settled()
        ddl = operation("ids", Kind.CREATE_TABLE, "CREATE TABLE ids (id)", "a")
        await ring.submit("a", ddl, 60)

        def drain_at(node: Node, step: Step) -> None:
            if node.name == "a" and step is Step.APPEND_BEFORE:
                node.drain(drained=True)

        ring.on_step = drain_at
        _, outcome = await ring.submit("a", insert("x", "ids", "a"), 60)
        assert outcome.status is OutcomeStatus.APPLIED
        assert state(ring.nodes["a"]) is State.DRAINING
        with pytest.raises(RequestError) as caught:
            await ring.submit("a", insert("y", "ids", "a"), 60)
        assert caught.value.error_class == "HAPROC_DRAINING"
        assert caught.value.outcome is WriteOutcome.NOT_SENT

    run(main())


def test_synchronous_write_of_a_drained_origin_is_not_taken_over_while_it_runs() -> None:
    async def main() -> None:
        ring = Ring(2)
        for node in ring.nodes.values():
            node.start()
        await ring.settled()

        def drain_at(node: Node, step: Step) -> None:
            if node.name == "a" and step is Step.APPEND_AFTER:
                node.drain(drained=True)

        ring.on_step = drain_at
        ddl = operation("ids", Kind.CREATE_TABLE, "CREATE TABLE ids (id)", "a")
        _, outcome = await ring.submit("a", ddl, 60)
        assert outcome.status is OutcomeStatus.APPLIED
        assert outcome.clusters is not None and set(outcome.clusters) == {"a", "b", "c"}
        core = ring.nodes["a"].replica.core  # type: ignore[union-attr]
        assert (core.condition.state, beneath(core.condition.now)) == (State.DRAINING, State.READY)
        ring.nodes["a"].drain(drained=False)
        await ring.settled()
        assert all("ids" in node.spark.dump() for _, node in nodes(ring))

    run(main())
