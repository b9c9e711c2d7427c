"""Reads the objects of each cluster's Spark, and compares them. Nothing is written."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from haproc.classify.names import OWN_SCHEMAS
from haproc.config.model import Config
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.copies import CopyTable, Inventory
from haproc.engine.copying import SparkCopies
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Session, Settings, TableState
from haproc.engine.statement import SqlText
from haproc.pin.sqltypes import quote_name
from haproc.ring.adopting import Held, Holdings, Sort, definition_of, table_of
from haproc.ring.settings import RingError

PROBE_S: Final = 60.0
"""A Spark that has just been started needs this long for its first statement. Chosen."""
READ_S: Final = 6 * 3600.0
"""Time to read one table. Chosen: a TiB at 50 MiB/s."""
TABLES_AT_ONCE: Final = 4
"""The tables of a cluster that are read at the same time. Chosen."""


async def holdings(config: Config, show: Callable[[str, str], None]) -> dict[str, Holdings]:
    """Return the objects of each cluster of the ring; raises RingError.

    ``show`` is called before each step with the cluster's name and the step.
    """

    async def one(name: str) -> Holdings:
        address = config.cluster(name).spark
        engine = SparkConnectEngine(address, ring=config.ring, cluster=f"{name}/adopt")
        try:
            return await _of(engine, lambda what: show(name, what))
        except EngineError as error:
            raise RingError(f"the Spark of {name} cannot be asked: {error.message}") from error
        finally:
            await engine.aclose()

    names = [cluster.name for cluster in config.clusters]
    return dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))


async def _of(engine: SparkConnectEngine, show: Callable[[str], None]) -> Holdings:
    await engine.probe(timeout_s=PROBE_S)
    copies = engine.copies()
    inventory = await copies.inventory()
    show(f"reads {len(inventory.tables)} tables")
    permits = asyncio.Semaphore(TABLES_AT_ONCE)

    async def table(each: CopyTable) -> tuple[Held, str]:
        async with permits:
            return await _table(engine, copies, each)

    async def other(schema: str, name: str) -> Held:
        async with permits:
            rows, content, columns = await _content(engine, TableState(_name(schema, name)))
            return Held(Sort.TABLE, f"{schema}.{name}", "not Delta", columns, rows, content)

    tables = await asyncio.gather(*map(table, inventory.tables))
    others = await asyncio.gather(*(other(*each) for each in _other_tables(inventory)))
    show("is read")
    not_copied = [(held.name, why) for held, why in tables if why]
    return Holdings(
        (*_defined(inventory), *(held for held, _ in tables), *others),
        (*inventory.others, *not_copied),
    )


def _defined(inventory: Inventory) -> Iterable[Held]:
    schemas = {str(each["name"]) for each in inventory.schemas}
    for each in inventory.schemas:
        yield Held(Sort.SCHEMA, str(each["name"]), definition_of(each))
    for sort, found in ((Sort.VIEW, inventory.views), (Sort.FUNCTION, inventory.functions)):
        for each in found:
            yield Held(sort, f"{each['schema']}.{each['name']}", definition_of(each))
    for name, _ in inventory.others:
        if "." not in name and name not in schemas:
            yield Held(Sort.CATALOG, name)


def _other_tables(inventory: Inventory) -> list[tuple[str, str]]:
    """Return schema and name of the tables that cannot be copied."""
    parts = (name.partition(".") for name, _ in inventory.others)
    return [(schema, name) for schema, dot, name in parts if dot]


async def _table(
    engine: SparkConnectEngine, copies: SparkCopies, table: CopyTable
) -> tuple[Held, str]:
    """Return a Delta table, and the reason why it cannot be copied; empty if it can."""
    why, definition, columns = "", "", ""
    try:
        definition, columns = table_of(await copies.state(table))  # type: ignore[arg-type]
        await copies.check(table)
    except EngineError as error:
        if error.kind is not ErrorKind.APPLICATION:
            raise
        why = error.message
    state = TableState(_name(*table.key), table.version)
    rows, content, _ = await _content(engine, state)
    return Held(Sort.TABLE, ".".join(table.key), definition, columns, rows, content), why


async def _content(engine: SparkConnectEngine, state: TableState) -> tuple[int | None, str, str]:
    """Return a table's row count, the rows' checksum and the columns'; None if it is unreadable."""
    try:
        rows, content, columns = (await engine.checksum(state, timeout_s=READ_S)).split(":")
    except EngineError as error:
        if error.kind is not ErrorKind.APPLICATION:
            raise
        return None, "", ""
    return int(rows), content, columns


def _name(schema: str, name: str) -> str:
    return ".".join(("spark_catalog", quote_name(schema), quote_name(name)))


# The comparison of clusters: each table's row count and checksum, asked of each Spark.
#
# The checksum is independent of row order. It is the sum over all rows of a 64-bit hash of the row,
# reduced so that it cannot overflow. Unlike an exclusive-or, it also shows duplicate rows.


TIMEOUT_S = 300.0
SETTINGS = Settings(confs=(("spark.sql.legacy.allowHashOnMapType", "true"),))
"""By default Spark hashes no maps, because the entries of equal maps may have different orders.
Here they have the same order: all clusters ran the same statements."""


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a table, comparable between clusters."""

    rows: int
    checksum: int


async def contents(
    config: Config, tables: Sequence[str] | None = None
) -> dict[str, dict[str, Content | None]]:
    """Return the content of each table by cluster; None for a table that does not exist.

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
        return {table: await _content_of_table(session, table) for table in wanted}
    finally:
        await engine.aclose()


async def _all_tables(session: Session) -> list[str]:
    """Return every table. SHOW TABLES lists views, too; they are left out: they hold no rows."""
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


async def _content_of_table(session: Session, table: str) -> Content:
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
