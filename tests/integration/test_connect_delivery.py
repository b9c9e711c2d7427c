"""Tests of PySpark's own client: it reads results whose delivering process is killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from haproc.ring.process import free_port
from haproc.ring.spark import LocalSpark

pytestmark = pytest.mark.spark

ROWS = 1_000_000
"""Some 30 MB: many times the size of all buffers."""


class Deliverers:
    """Two processes in front of one Spark, and a PySpark session with both in this order."""

    def __init__(self, spark: LocalSpark) -> None:
        self._environment = {**os.environ, "SPARK_TOKEN": spark.token}
        self._spark_port = spark.port
        self.ports = [free_port(), free_port()]
        self.processes = [self._start(port) for port in self.ports]
        self.session = self._connect()

    def _start(self, port: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.integration.delivering"]
        process = subprocess.Popen(
            [*command, str(port), str(self._spark_port)],
            env=self._environment,
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        return process

    def _connect(self) -> Any:
        from pyspark.sql.connect.client import DefaultChannelBuilder
        from pyspark.sql.connect.session import SparkSession

        target = "ipv4:" + ",".join(f"127.0.0.1:{port}" for port in self.ports)

        class Both(DefaultChannelBuilder):
            def toChannel(self) -> Any:
                return self._insecure_channel(target)

        builder: Any = SparkSession.builder
        return builder.channelBuilder(Both(f"sc://127.0.0.1:{self.ports[0]}")).create()

    def kill(self, index: int) -> None:
        self.processes[index].kill()
        self.processes[index].wait()

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.session.stop()
        for process in self.processes:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
async def deliverers(spark: LocalSpark) -> AsyncIterator[Deliverers]:
    made = await asyncio.to_thread(Deliverers, spark)
    yield made
    await asyncio.to_thread(made.close)


def rows(frame: Any, at_row: int, then: Callable[[], None]) -> Iterator[Any]:
    """Yield a frame's rows as they arrive, and call a function at one of them."""
    for index, row in enumerate(frame.toLocalIterator()):
        if index == at_row:
            then()
        yield row


@pytest.mark.thorough
async def test_result_whose_deliverer_is_killed_is_delivered_whole(deliverers: Deliverers) -> None:
    session = deliverers.session

    def other_batches_then_kill() -> None:
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "7777")
        deliverers.kill(0)

    def read() -> int:
        count = 0
        query = "select id, if(id % 7 = 0, null, concat('row ', id)) as a from range(0, {}, 1, 5)"
        frame = session.sql(query.format(ROWS))
        for row in rows(frame, 1000, other_batches_then_kill):
            expected = None if count % 7 == 0 else f"row {count}"
            assert (row.id, row.a) == (count, expected)
            count += 1
        return count

    assert await asyncio.to_thread(read) == ROWS


async def test_result_with_random_values_whose_deliverer_is_killed_ends_with_a_clear_error(
    deliverers: Deliverers,
) -> None:
    def read() -> None:
        frame = deliverers.session.sql(f"select id, uuid() as a from range(0, {ROWS}, 1, 5)")
        for _ in rows(frame, 1000, lambda: deliverers.kill(0)):
            pass

    from pyspark.errors.exceptions.connect import SparkConnectGrpcException

    with pytest.raises(SparkConnectGrpcException, match="HAPROC_RESULT_CHANGED"):
        await asyncio.to_thread(read)
