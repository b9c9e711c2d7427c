"""Tests of a large body of rows, from client to table, with a real Spark and little memory."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import haclient.aio
from haproc.config.model import Address
from haproc.config.sections import Limits
from haproc.doors.apps import SPOOLS, client_app
from haproc.doors.http.listener import Listener
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.interface import Settings
from haproc.failure import ErrorClass
from haproc.metrics import Metrics
from haproc.ring.spark import LocalSpark
from tests.integration.conftest import address_of
from tests.integration.engine_calls import apply, rows
from tests.integration.one_cluster import one_cluster
from tests.unit.canned import CannedStatus
from tests.unit.door_rig import make_config

pytestmark = pytest.mark.spark

BATCHES, ROWS_OF_ONE = 50, 10_000
LIMITS = Limits(operation_bytes_max=8 << 20)


def batches(last: Any = "text") -> Iterator[pa.RecordBatch]:
    """Yield some 50 MB of rows."""
    text = "x" * 90
    for number in range(BATCHES):
        ids = range(number * ROWS_OF_ONE, (number + 1) * ROWS_OF_ONE)
        texts = [f"{text}{n}" for n in ids]
        if number == BATCHES - 1:
            texts[-1] = last
        columns = {"n": pa.array(ids, pa.int64()), "s": pa.array(texts, pa.string())}
        yield pa.record_batch(columns)


def memory_bytes() -> int:
    fields = Path("/proc/self/status").read_text().splitlines()
    (resident,) = [line.split()[1] for line in fields if line.startswith("VmRSS")]
    return int(resident) << 10


async def peak_during(work: Any) -> tuple[Any, int]:
    """Return the result of the work, and the growth of this process during it."""
    before, peak, task = memory_bytes(), 0, asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait({task}, timeout=0.02)
        peak = max(peak, memory_bytes())
    return task.result(), peak - before


@pytest.fixture
async def connection(
    spark: LocalSpark, engine: SparkConnectEngine, schema: str, tmp_path: Path
) -> AsyncIterator[Any]:
    table = "CREATE TABLE t (n BIGINT, s STRING NOT NULL) USING delta"
    await apply(engine, table, settings=Settings(schema=schema))
    config = make_config(tmp_path, limits=LIMITS)
    async with one_cluster(address_of(spark)) as (service, _):
        app = client_app(config, "a", service, CannedStatus(), Metrics("demo", "a", ["READY"]))
        listener = Listener(app, Address("127.0.0.1", 0), shutdown_s=1.0)
        await listener.open()
        try:
            url = f"http://127.0.0.1:{listener.port}"
            async with haclient.aio.connect(url, schema=schema, timeout_s=240) as opened:
                yield opened
            assert app[SPOOLS].shares.taken == 0
        finally:
            await listener.aclose()


@pytest.mark.thorough
async def test_fifty_megabytes_are_appended_once_in_one_commit_with_little_memory(
    connection: Any, engine: SparkConnectEngine, schema: str
) -> None:
    request_id = uuid.uuid4().hex
    report, grew = await peak_during(connection.append("t", batches, request_id=request_id))
    assert report["affected_rows"] == BATCHES * ROWS_OF_ONE
    again = await connection.append("t", batches, request_id=request_id, age_s=60)
    assert again["log_offset"] == report["log_offset"], "the client's retry finds it"
    query = f"SELECT count(*), count(DISTINCT n), sum(n) FROM {schema}.t"
    count = BATCHES * ROWS_OF_ONE
    assert await rows(engine.session("look"), query) == [(count, count, count * (count - 1) // 2)]
    history = await rows(engine.session("look"), f"DESCRIBE HISTORY {schema}.t")
    assert len(history) == 2, "the table, and all rows at once"
    # The client, which is in this process too, and a log in memory, which keeps all of it.
    assert grew < (50 << 20) + (200 << 20), f"{grew >> 20} MiB"


async def test_misfit_in_the_last_row_appends_nothing(
    connection: Any, engine: SparkConnectEngine, schema: str
) -> None:
    with pytest.raises(haclient.DatabaseError) as caught:
        await connection.append("t", lambda: batches(last=None))
    assert caught.value.error_class == ErrorClass.ROWS_MISFIT
    assert await rows(engine.session("look"), f"SELECT count(*) FROM {schema}.t") == [(0,)]
