"""Rings and Spark servers for benchmarks, and work that runs while something is measured."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pyspark.sql.connect.session import SparkSession

import haclient
from haproc.engine.interface import EngineAddress
from haproc.ring.local import LocalRing
from haproc.ring.process import free_port
from haproc.ring.spark import LocalSpark

# Work beside what is measured.


@contextmanager
def beside(*works: Callable[[threading.Event], None]) -> Iterator[None]:
    """While the block runs, run each function in a thread, until the event it receives is set.

    If one function fails, the event is set for all; its error is raised at the end of the block.
    """
    stopped = threading.Event()
    failed: list[Exception] = []

    def run(work: Callable[[threading.Event], None]) -> None:
        try:
            work(stopped)
        except Exception as error:
            failed.append(error)
            stopped.set()

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopped.set()
        for thread in threads:
            thread.join()
    if failed:
        raise failed[0]


@contextmanager
def writing(writer: haclient.Connection, table: str) -> Iterator[None]:
    """While the block runs, let a client insert one row after another into ``table``."""

    def write(stopped: threading.Event) -> None:
        number = 0
        while not stopped.is_set():
            number += 1
            writer.execute(f"INSERT INTO {table} VALUES ({number})")

    with beside(write):
        yield


# A ring for a benchmark, and PySpark's way past it; or one Spark without a ring.


def _progress(who: str, what: str = "") -> None:
    print(f"  {who}: {what}" if what else f"  {who}", file=sys.stderr)


@contextmanager
def ring_of(clusters: int, **options: Any) -> Iterator[LocalRing]:
    """Yield a ring that is not started yet; at the end stop it and delete its folder.

    ``options``: those of `LocalRing.open_or_create`.
    """
    with tempfile.TemporaryDirectory(prefix="haproc-bench-") as folder:
        ring = LocalRing.open_or_create(
            Path(folder),
            clusters=clusters,
            progress=_progress,
            **options,
        )
        try:
            yield ring
        finally:
            asyncio.run(ring.down())


def status_of(ring: LocalRing, name: str) -> Any:
    """Return the /clusterStatus document of the HAProc of cluster ``name``."""
    url = ring.config.peer_url(name) + "/clusterStatus"
    with urllib.request.urlopen(url, timeout=10) as response:
        return json.load(response)


@asynccontextmanager
async def spark_or_given(folder: Path) -> AsyncIterator[EngineAddress]:
    """Yield a Spark server: a new one, or the one that argument 2 names as HOST:PORT:TOKEN."""
    if len(sys.argv) > 2:
        host, port, token = sys.argv[2].split(":")
        yield EngineAddress(host, int(port), token)
        return
    server = LocalSpark("bench", folder, free_port(), uuid.uuid4().hex, progress=_progress)
    await server.start(warm=True)
    try:
        yield EngineAddress("127.0.0.1", server.port, server.token)
    finally:
        await server.stop()


def past_ring(spark: LocalSpark) -> SparkSession:
    """Return a PySpark session directly on a cluster's Spark server, not through HAProc."""
    remote = f"sc://127.0.0.1:{spark.port}/;authorization={quote(f'Bearer {spark.token}')}"
    return SparkSession.builder.remote(remote).create()
