"""Tests of large rows in memory: a few at a time on their way in, none while they wait."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dmq import open_log
from dmq.log import Record
from haproc import protos
from haproc.classify.model import Kind
from haproc.config.sections import Limits
from haproc.config.shares import Shares
from haproc.engine.arrow import joined, stream_of
from haproc.engine.interface import Applied, Column
from haproc.engine.placeholder import FEW
from haproc.engine.remote import plan_bytes
from haproc.engine.statement import ArrowRows, RowsInLog, Statement
from haproc.failure import RequestError
from haproc.replicate.queue.units import LEFT_FROM_BYTES, left_in_log
from haproc.replicate.records.operation import Operation
from haproc.route.rows.forms import ARROW, Form, FormKind
from haproc.route.spooled import (
    PASSING_BYTES_MAX,
    RECORD_BYTES_MAX,
    PassingBytes,
    SpooledBody,
    Spools,
)
from tests.unit.draining_rig import NullEngine, member
from tests.unit.operations import insert
from tests.unit.test_spooled_rows import Tidy, encoded, spooled

COLUMNS = [Column("n", "bigint"), Column("s", "string")]
CSV = Form(FormKind.CSV, columns="n,s")
PIECES = 8
PIECE_BYTES = 5 << 20


@pytest.fixture
def spools(tmp_path: Path) -> Iterator[Spools]:
    made = Tidy(tmp_path / "bodies", Limits())
    made.shares = Shares(1 << 30)
    yield made
    made.tidy()


def rows_of(size: int, first: int = 0) -> pa.Table:
    """Return a table of about this many bytes."""
    texts = ["x" * 1000] * (size // 1000)
    return pa.table({"n": range(first, first + len(texts)), "s": texts})


def rows_operation(op_id: str, table: pa.Table) -> Operation:
    write = ArrowRows("t", stream_of(table))
    return replace(insert(op_id, "t"), kind=Kind.ROWS, write=write, insert=None)


@pytest.mark.parametrize("form", [ARROW, CSV])
async def test_rows_on_their_way_into_the_log_are_bounded_for_any_number_of_bodies(
    spools: Spools, form: Form
) -> None:
    table = rows_of(PIECE_BYTES)
    data = encoded(table) if form is ARROW else b"7,%s\n" % (b"x" * 1000) * 5000
    passing = most = 0

    async def load(body: SpooledBody) -> None:
        nonlocal passing, most
        found = await body.fit(COLUMNS)
        assert found.few is not None
        passing += len(found.few)
        most = max(most, passing)
        await asyncio.sleep(0.01)  # the log takes its time
        passing -= len(found.few)
        body.passed()

    bodies = [await spooled(spools, data, form=form) for _ in range(PIECES)]
    await asyncio.gather(*map(load, bodies))
    assert PIECE_BYTES * 0.9 < most <= PASSING_BYTES_MAX
    assert PIECES * PIECE_BYTES > PASSING_BYTES_MAX, "else it shows nothing"


async def test_body_that_passed_failed_or_was_released_lets_the_next_one_pass(
    spools: Spools,
) -> None:
    spools.passing = PassingBytes(RECORD_BYTES_MAX)
    whole = encoded(rows_of(RECORD_BYTES_MAX // 2))
    wrong = encoded(pa.table({"other": ["x" * 1000] * 9_000}))
    async with asyncio.timeout(20):
        with pytest.raises(RequestError, match="other"):
            await (await spooled(spools, wrong)).fit(COLUMNS)
        first = await spooled(spools, whole)
        await first.fit(COLUMNS)
        first.release()
        second = await spooled(spools, whole)
        await second.fit(COLUMNS)
        second.passed()
        second.passed()
        await (await spooled(spools, whole)).fit(COLUMNS)


async def test_body_of_many_records_does_not_block_others_while_it_is_checked(
    tmp_path: Path,
) -> None:
    spools = Tidy(tmp_path, Limits(operation_bytes_max=1 << 20, staged_bytes_max=1 << 30))
    spools.passing = PassingBytes(RECORD_BYTES_MAX)
    long = await spooled(spools, b"7,x\n" * 500_000, form=CSV)
    async with asyncio.timeout(20):
        assert (await long.fit(COLUMNS)).few is None
        assert (await (await spooled(spools, b"7,x\n", form=CSV)).fit(COLUMNS)).few is not None
    spools.tidy()


async def test_bytes_pass_in_the_order_of_arrival_and_a_cancelled_waiter_is_skipped() -> None:
    passing, order = PassingBytes(10), list[str]()

    async def take(name: str, size: int) -> None:
        await passing.take(size)
        order.append(name)

    await passing.take(8)
    waiting = [asyncio.create_task(take(*each)) for each in (("a", 9), ("b", 20), ("c", 1))]
    await asyncio.sleep(0)
    assert order == []
    waiting[0].cancel()
    passing.give_back(8)
    await asyncio.wait(waiting, timeout=0.01)
    assert order == ["b"], "larger than all: alone"
    passing.give_back(10)
    await asyncio.gather(*waiting, return_exceptions=True)
    assert order == ["b", "c"]


# -- in the queue ------------------------------------------------------------------------------


class Sent(NullEngine):
    """An engine that reads each write to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.held_bytes: list[int] = []
        self.plans: list[bytes] = []

    async def apply(self, write: Statement) -> Applied:
        if not isinstance(write, ArrowRows):
            return Applied()
        self.held_bytes.append(len(write.rows))
        self.plans.append(b"".join(await plan_bytes(write)))  # type: ignore[arg-type]
        return Applied()


async def test_rows_stay_in_the_log_and_reach_the_cluster_complete_and_in_order() -> None:
    tables = [rows_of(2 * LEFT_FROM_BYTES, first) for first in (0, 10_000)]
    tables.insert(1, rows_of(5_000, 5_000))
    operations = [rows_operation(f"r{n}", table) for n, table in enumerate(tables)]
    engine = Sent()
    async with member(operations, engine) as replica, asyncio.timeout(20):
        core, end = replica.core, await replica.read_end()
        await core.news.until(lambda: core.schedule.low >= end)
    assert sum(engine.held_bytes) < LEFT_FROM_BYTES, "no statement brings rows itself"
    assert _values(engine.plans) == [n for each in tables for n in each["n"].to_pylist()]


def _values(plans: list[bytes]) -> list[int]:
    found: list[int] = []
    for plan in plans:
        relation: Any = protos.base.Plan.FromString(plan).command.write_operation_v2.input
        data = relation.to_df.input.project.input.local_relation.data
        if data:
            rows = pa.ipc.open_stream(data).read_all().column(0).to_pylist()
            found += [row["c1"] for each in rows for row in each]
        else:
            data = relation.local_relation.data
            found += pa.ipc.open_stream(data).read_all().column("n").to_pylist()
    return found


async def test_plan_of_fetched_rows_equals_the_plan_of_rows_in_memory() -> None:
    numbers = random.Random(7)
    for sizes in ([3, 4], [FEW, 1], [5_000, 2, 9_000]):
        streams = [
            stream_of(pa.table({"n": [numbers.random() for _ in range(size)]})) for size in sizes
        ]

        async def fetch() -> Any:
            for each in streams:  # noqa: B023
                yield each

        schema = stream_of(pa.table({"n": pa.array([], pa.float64())}))
        count = sum(sizes)
        late = RowsInLog("t", schema, size_bytes=1, count=count, fetch=fetch)
        whole = await plan_bytes(ArrowRows("t", joined(streams)))
        assert b"".join(await plan_bytes(late)) == b"".join(whole)  # type: ignore[arg-type]


def test_only_large_rows_are_left_in_the_log() -> None:
    small, text = rows_operation("r", rows_of(5_000)), insert("i", "t")
    assert left_in_log(small) is small and left_in_log(text) is text
    large = rows_operation("r", rows_of(2 * LEFT_FROM_BYTES))
    left = left_in_log(large)
    assert isinstance(left.write, RowsInLog)
    assert left.size_bytes == large.size_bytes
    assert left.write.count == 2 * LEFT_FROM_BYTES // 1000


# -- in the log --------------------------------------------------------------------------------


async def test_large_record_is_written_once_between_small_ones(tmp_path: Path) -> None:
    payloads = [b"a", b"b" * 100_000, b"c", *(b"%d" % n for n in range(200)), b"d" * 70_000]
    log = await open_log(f"sqlite:{tmp_path}/log.db")
    try:
        offsets = await log.append([Record("k", payload=each) for each in payloads])
        assert offsets == list(range(len(payloads)))
        read = await log.read(0, records_max=1000)
        assert [bytes(entry.record.payload) for entry in read] == payloads
    finally:
        await log.close()
