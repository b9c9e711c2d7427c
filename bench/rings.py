"""A ring for a benchmark, and PySpark's way past it."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pyspark.sql.connect.session import SparkSession

from haproc.ring.local import LocalRing
from haproc.ring.spark import LocalSpark


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
