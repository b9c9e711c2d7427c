"""A backlog whose replay takes longer than copying its tables says so."""

from __future__ import annotations

import asyncio

from haproc.engine.interface import Applied
from haproc.engine.statement import Statement
from haproc.replicate.queue.catch_up_estimate import CatchUpEstimate, Sample, estimate
from tests.simulation.clock import run
from tests.unit.draining_rig import NullEngine, member
from tests.unit.operations import update

BEFORE = Sample(0, 0, 1000)


def test_outlook_counts_what_is_written_meanwhile() -> None:
    assert estimate(BEFORE, Sample(10, 100, 1000), (), 1).replay_s == 90
    assert estimate(BEFORE, Sample(10, 100, 1050), (), 1).replay_s == 190
    assert estimate(BEFORE, Sample(10, 100, 1100), (), 1).replay_s is None
    assert estimate(BEFORE, Sample(10, 1000, 1000), (), 1).replay_s == 0


def test_outlook_copy_is_faster_only_where_all_sizes_are_known_and_the_replay_is_long() -> None:
    slow, soon = Sample(10, 100, 1000), Sample(10, 900, 1000)
    assert estimate(BEFORE, slow, [40, 49], 1).copy_is_faster
    assert not estimate(BEFORE, slow, [40, 50], 1).copy_is_faster
    assert not estimate(BEFORE, slow, [40, None], 1).copy_is_faster
    assert not estimate(BEFORE, slow, [], 1).copy_is_faster
    assert not estimate(BEFORE, soon, [0], 1).copy_is_faster
    assert estimate(BEFORE, Sample(10, 0, 1000), [10**6], 1).copy_is_faster, "it never ends"


class SlowEngine(NullEngine):
    async def apply(self, write: Statement) -> Applied:
        await asyncio.sleep(2)
        return Applied()


def test_backlog_of_slow_statements_on_a_small_table_says_so_until_it_is_drained() -> None:
    engine = SlowEngine()
    engine.sizes = {"t": 1 << 20}

    async def main() -> None:
        async with member((update(f"{n}", "t") for n in range(100)), engine) as replica:
            assert replica.catch_up_estimate == CatchUpEstimate()
            await asyncio.sleep(60)
            found = replica.catch_up_estimate
            assert found.copy_is_faster and (found.tables, found.bytes) == (1, 1 << 20)
            assert found.replay_s is not None and 100 < found.replay_s < 200
            await asyncio.sleep(200)
            assert replica.catch_up_estimate == CatchUpEstimate()

    run(main())
