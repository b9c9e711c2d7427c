"""The duration of a replay, and the comparison with a copy of tables."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from haproc.engine.interface import Applied
from haproc.engine.statement import Statement
from haproc.replicate.queue.backlog import (
    COPY_BYTES_PER_S,
    COPY_TABLE_S,
    FACTOR,
    FOREVER_S,
    WORTH_S,
    CatchUpEstimate,
    Sample,
    copy_s,
    rate_per_s,
    replay_s,
)
from tests.simulation.clock import run
from tests.unit.draining_rig import NullEngine, member
from tests.unit.operations import update

BEFORE = Sample(0, 0, 1000)


def test_replay_time_includes_records_written_meanwhile() -> None:
    assert replay_s(BEFORE, Sample(10, 100, 1000)) == 90
    assert replay_s(BEFORE, Sample(10, 100, 1050)) == 190
    assert replay_s(BEFORE, Sample(10, 100, 1100)) is None
    assert replay_s(BEFORE, Sample(10, 1000, 1000)) == 0
    assert rate_per_s(BEFORE, Sample(10, 100, 1050)) == 10


def test_copy_time_has_a_part_per_table_and_a_part_per_byte() -> None:
    assert copy_s([0, 0]) == 2 * COPY_TABLE_S
    assert copy_s([10 * COPY_BYTES_PER_S]) == COPY_TABLE_S + 10


def test_copy_counts_as_faster_only_by_a_factor_and_for_a_long_replay() -> None:
    long = CatchUpEstimate(FACTOR * WORTH_S, copy_s=WORTH_S - 1)
    assert long.copy_is_faster
    assert not replace(long, copy_s=WORTH_S).copy_is_faster
    assert not replace(long, copy_s=None).copy_is_faster
    assert not CatchUpEstimate(WORTH_S, copy_s=0).copy_is_faster


def test_replay_that_never_ends_counts_as_an_hour() -> None:
    assert CatchUpEstimate(None, copy_s=FOREVER_S / FACTOR - 1).copy_is_faster
    assert not CatchUpEstimate(None, copy_s=FOREVER_S / FACTOR).copy_is_faster


def test_estimate_text_contains_both_rates() -> None:
    found = CatchUpEstimate(640, 55.5, copy_s(8 * [1 << 20]), 8, 8 << 20)
    assert str(found) == (
        "the replay takes 640 s at 55.5 operations/s, "
        "a copy 24 s (8 tables, 8.0 MiB, at 50 MiB/s and 3 s each)"
    )
    assert str(CatchUpEstimate(None)) == "the replay never ends at 0.0 operations/s"


class SlowEngine(NullEngine):
    async def apply(self, write: Statement) -> Applied:
        await asyncio.sleep(2)
        return Applied()


def test_backlog_of_slow_statements_has_an_estimate_until_it_is_drained() -> None:
    async def main() -> None:
        backlog = (update(f"{n}", "t") for n in range(100))
        async with member(backlog, SlowEngine()) as replica:
            assert replica.catch_up_estimate == CatchUpEstimate()
            await asyncio.sleep(60)
            found = replica.catch_up_estimate
            assert found.replay_s is not None and 100 < found.replay_s < 200
            assert 0.4 < found.rate_per_s < 0.6
            assert found.copy_s is None  # there is no other cluster
            await asyncio.sleep(200)
            assert replica.catch_up_estimate == CatchUpEstimate()

    run(main())
