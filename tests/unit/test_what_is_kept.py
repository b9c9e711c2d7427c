"""Tests that a statement takes memory only while it waits or runs."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from haproc.classify.model import Kind
from haproc.config.sections import Limits
from haproc.engine.arrow import stream_of
from haproc.engine.statement import ArrowRows, SparkPlan, SqlText
from haproc.replicate.records.operation import Operation
from tests.simulation.clock import run
from tests.unit.draining_rig import NullEngine, member
from tests.unit.operations import insert, update

SIZE = 1 << 20
EACH = 16
LIMITS = Limits(look_ahead_bytes_max=4 * SIZE, batch_bytes_max=2 * SIZE)


def large(number: int) -> Iterator[Operation]:
    """Yield operations of each form, of one mebibyte each."""
    text = str(number) * (SIZE // len(str(number)))
    plain = insert(f"insert {number}", "t")
    assert isinstance(plain.write, SqlText) and plain.insert is not None
    head = plain.write.sql[: plain.insert.values_at]
    yield replace(plain, write=SqlText(f"{head}('{text}')"))
    yield replace(update(f"update {number}", "t"), write=SqlText(f"UPDATE t SET x = '{text}'"))
    yield replace(update(f"plan {number}", "u"), write=SparkPlan(text.encode()))
    rows = ArrowRows("v", stream_of(pa.table({"x": [text]})))
    yield replace(update(f"rows {number}", "v"), kind=Kind.ROWS, write=rows)


def test_applied_statements_leave_only_their_facts_in_memory() -> None:
    operations = (op for number in range(100, 100 + EACH) for op in large(number))

    async def drained() -> None:
        async with member(operations, NullEngine(), LIMITS) as replica:
            end = await replica.read_end()
            async with asyncio.timeout(600):
                await replica.core.news.until(lambda: replica.core.schedule.low >= end)
            known = replica.core.outcomes.find(("anonymous", f"plan {99 + EACH}"))
            assert known is not None and known.outcome is not None
            kept.append(tracemalloc.get_traced_memory()[0] - before)

    kept: list[int] = []
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        run(drained())
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert kept[0] < 4 * SIZE
    assert peak < 56 * SIZE
