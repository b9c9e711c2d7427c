"""A ring for a benchmark, PySpark's way past it, and what goes on beside what is measured."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pyspark.sql.connect.session import SparkSession

import haclient
from haproc.ring.local import LocalRing
from haproc.ring.spark import LocalSpark

# What goes on beside what is measured.


@contextmanager
def writing(writer: haclient.Connection, table: str) -> Iterator[None]:
    """Have a client write one row after another into a table of numbers meanwhile."""
    stopped = threading.Event()

    def write() -> None:
        number = 0
        while not stopped.is_set():
            number += 1
            writer.execute(f"INSERT INTO {table} VALUES ({number})")

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


# A ring for a benchmark, and PySpark's way past it.


@contextmanager
def ring_of(clusters: int, **options: Any) -> Iterator[LocalRing]:
    """Make a ring that is yet to be started; in the end it is stopped, and its folder removed.

    ``options``: those of `LocalRing.open_or_create`.
    """
    with tempfile.TemporaryDirectory(prefix="haproc-bench-") as folder:
        ring = LocalRing.open_or_create(
            Path(folder),
            clusters=clusters,
            progress=lambda who, what: print(f"  {who}: {what}", file=sys.stderr),
            **options,
        )
        try:
            yield ring
        finally:
            asyncio.run(ring.down())


def past_ring(spark: LocalSpark) -> SparkSession:
    """Return a session of PySpark's own on a cluster's server."""
    remote = f"sc://127.0.0.1:{spark.port}/;authorization={quote(f'Bearer {spark.token}')}"
    return SparkSession.builder.remote(remote).create()
