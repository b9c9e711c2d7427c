"""The cost of serving the log to an archive: ``python -m bench.bench_archive [RECORDS]``.

A log of a usual mix of operations (plain INSERTs, other DML, rows in Arrow, DDL with its decision,
errors) is filled, then read in pages, as the archive's program asks for them: read twice, judged,
masked, made into Arrow. The yardstick is reading the same log bare, in the same run. Both are of
one core's time (this process's CPU time, its threads' too), so that a busy machine matters little.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import uvloop

from bench.draining import WINDOW, operation
from bench.report import Row, report
from dmq import Cursor, Log, Record, open_log, open_store
from haproc.classify.model import Kind, OperationClass
from haproc.config.sections import Archive
from haproc.engine.arrow import stream_of
from haproc.engine.statement import ArrowRows
from haproc.replicate.archive.pages import ROWS_MAX, Pages
from haproc.replicate.records.operation import (
    Decision,
    DecisionKind,
    FailureReport,
    Operation,
    to_record,
)
from haproc.replicate.records.rows import ApplicationFailure
from tests.unit.archive_rig import pages_of

RECORDS = 200_000
BATCH = 2_000
BAR = 20_000.0
"""Records per second of processor time."""


def _operation(number: int) -> Operation:
    match number % 20:
        case 0 | 1:
            rows = stream_of(pa.table({"id": pa.array(range(20)), "name": ["x"] * 20}))
            table = "spark_catalog.sales.lines"
            return Operation(
                f"request-{number}",
                OperationClass.ASYNCHRONOUS,
                Kind.ROWS,
                "a",
                "f",
                ArrowRows(table, rows),
                user="etl",
                writes=frozenset({table}),
                created_ms=1_700_000_000_000 + number,
                since=max(0, number - 1000),
                window=WINDOW,
            )
        case 2:
            sql = f"CREATE TABLE sales.t{number} (id BIGINT, name STRING) USING delta"
        case 3 | 4 | 5:
            sql = (
                f"UPDATE sales.orders SET amount = amount + {number}, note = 'n {number}' "
                f"WHERE id = {number} AND region IN ('north', 'south')"
            )
        case 6:
            sql = f"DELETE FROM sales.orders WHERE id < {number} AND state = 'old'"
        case _:
            sql = f"INSERT INTO sales.orders VALUES ({number}, 'customer {number}', 12.50, NULL)"
    op = operation(number, sql)
    return replace(op, redefines=op.writes) if op.synchronous else op


async def fill(log: Log, records: int) -> None:
    """Append about this number of records to the log."""
    batch: list[Record] = []
    offset = number = 0
    while offset < records:
        op = _operation(number)
        batch.append(to_record(op))
        if op.synchronous:
            batch.append(to_record(Decision(offset, op.id, DecisionKind.COMMIT, "a", 0)))
        elif number % 500 == 0:
            batch.append(
                to_record(FailureReport(offset, "b", 0, ApplicationFailure("E", "42000", "wrong")))
            )
        number, offset = number + 1, offset + 1 + (op.synchronous or number % 500 == 0)
        if len(batch) >= BATCH:
            await log.append(batch)
            batch.clear()
    await log.append(batch)


async def bare(log: Log) -> int:
    """Read the log and ignore its records; return its end."""
    position = 0
    while entries := await log.read(position, records_max=256, bytes_max=4 << 20):
        position = entries[-1].offset + 1
    return position


async def count_operations(pages: Pages, end: int) -> int:
    """Read the archive page by page; return the number of operations."""
    position = count = 0
    while position < end:
        page = await pages.page(position, ROWS_MAX)
        position, count = page.end, count + page.count
    return count


async def timed(call: Callable[[], Awaitable[int]]) -> tuple[int, float]:
    """Return what a call came to, and the seconds of CPU that it took."""
    began = time.process_time()
    return await call(), time.process_time() - began


async def measure(folder: Path, records: int) -> list[Row]:
    """Fill a log, read it through the archive, and return the figures."""
    url = f"sqlite://{folder}/log.db"
    log, store = await open_log(url), await open_store(url)
    try:
        await fill(log, records)
        end = await log.end()
        for name in "abc":
            await log.commit_cursor(name, Cursor(end))
        pages = pages_of(log, store, Archive(user="archive"))
        _, bare_s = await timed(lambda: bare(log))
        count, archive_s = await timed(lambda: count_operations(pages, end))
        await pages.page(0, 1)
        _, again_s = await timed(lambda: _one(pages, end - 1000))
    finally:
        await store.close()
        await log.close()
    return [
        Row("records told", "records/s of a core", end / archive_s, "the bar", BAR),
        Row("records told", "records/s of a core", end / archive_s, "read bare", end / bare_s),
        Row("operations among them", "operations", float(count), "records", float(end)),
        Row("first page after a restart", "s of a core", again_s),
    ]


async def _one(pages: Pages, start: int) -> int:
    return (await pages.page(start, ROWS_MAX)).count


def main() -> None:
    """Measure and report."""
    records = int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS
    gc.freeze()  # as `haproc serve` does
    with tempfile.TemporaryDirectory() as folder:
        rows = uvloop.run(measure(Path(folder), records))
    report("archive", rows)


if __name__ == "__main__":
    main()
