"""Whether clusters hold the same: each table's row count and checksum, asked of each Spark.

The checksum is independent of row order. It is the sum over all rows of a 64-bit hash of the row,
reduced so that it cannot overflow; unlike an exclusive-or, it also tells rows that stand twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from haproc.classify.names import OWN_SCHEMAS
from haproc.config.model import Config
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.interface import Session, Settings
from haproc.engine.statement import SqlText

TIMEOUT_S = 300.0
SETTINGS = Settings(confs=(("spark.sql.legacy.allowHashOnMapType", "true"),))
"""Spark hashes no maps otherwise, because equal ones may stand in another order. Here they don't:
all clusters ran the same statements."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a table holds, comparable between clusters."""

    rows: int
    checksum: int


async def contents(
    config: Config, tables: Sequence[str] | None = None
) -> dict[str, dict[str, Content | None]]:
    """Return for each cluster what each table holds; None for a table that is not there.

    Without ``tables``: every table of every schema of the default catalog.
    """
    found = await asyncio.gather(
        *(_contents_of(config, cluster.name, tables) for cluster in config.clusters)
    )
    names = sorted({name for each in found for name in each})
    return {
        cluster.name: {name: each.get(name) for name in names}
        for cluster, each in zip(config.clusters, found, strict=True)
    }


def differences(found: Mapping[str, Mapping[str, Content | None]]) -> list[str]:
    """Return a sentence for each table that is not the same on all clusters."""
    tables = sorted({table for each in found.values() for table in each})
    lines = []
    for table in tables:
        values = {cluster: each.get(table) for cluster, each in found.items()}
        if len(set(values.values())) > 1:
            lines.append(f"{table} differs: {values}")
    return lines


async def _contents_of(
    config: Config, cluster: str, tables: Sequence[str] | None
) -> dict[str, Content]:
    engine = SparkConnectEngine(
        config.cluster(cluster).spark, ring=config.ring, cluster=f"{cluster}/compare"
    )
    try:
        session = engine.session("compare")
        await session.configure(SETTINGS)
        wanted = list(tables) if tables is not None else await _all_tables(session)
        return {table: await _content(session, table) for table in wanted}
    finally:
        await engine.aclose()


async def _all_tables(session: Session) -> list[str]:
    """Return every table; views, which SHOW TABLES lists too, hold nothing of their own."""
    found: list[str] = []
    for row in await _rows(session, "SHOW SCHEMAS"):
        schema = str(row["namespace"])
        if schema in OWN_SCHEMAS:
            continue
        views = {view["viewName"] for view in await _rows(session, f"SHOW VIEWS IN `{schema}`")}
        tables = await _rows(session, f"SHOW TABLES IN `{schema}`")
        names = (table["tableName"] for table in tables if not table["isTemporary"])
        found += [f"{schema}.{name}" for name in names if name not in views]
    return found


async def _content(session: Session, table: str) -> Content:
    sql = (
        "SELECT count(*) AS n, coalesce(sum(CAST(xxhash64(*) AS DECIMAL(38, 0))), 0) AS h "
        f"FROM {table}"
    )
    (row,) = await _rows(session, sql)
    return Content(int(row["n"]), int(row["h"]))


async def _rows(session: Session, sql: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    async with contextlib.aclosing(
        await session.query(SqlText(sql), timeout_s=TIMEOUT_S)
    ) as result:
        async for chunk in result:
            with pa.ipc.open_stream(io.BytesIO(chunk.data)) as reader:
                rows.extend(reader.read_all().to_pylist())
    return rows
