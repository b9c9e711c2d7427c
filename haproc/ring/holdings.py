"""Reads the objects of each cluster's Spark, and compares them. Nothing is written."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from haproc.classify.names import OWN_SCHEMAS
from haproc.config.model import Config
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.copies import CopyTable, Inventory, catalog_name
from haproc.engine.copying import SparkCopies
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Session, TableState
from haproc.engine.table import rows_in_session
from haproc.ring.adopting import Held, Holdings, Sort, definition_of, table_of
from haproc.ring.settings import RingError

PROBE_S: Final = 60.0
"""The time limit of the first statement: a Spark that has just been started needs long for it.
Chosen."""
READ_S: Final = 6 * 3600.0
"""The time limit of reading one table. Chosen: a TiB at 50 MiB/s."""
TABLES_AT_ONCE: Final = 4
"""The number of tables of a cluster that are read at the same time. Chosen."""
_Result = TypeVar("_Result")


async def holdings(config: Config, show: Callable[[str, str], None]) -> dict[str, Holdings]:
    """Return the objects of each cluster of the ring; raises RingError.

    ``show`` is called before each step with the cluster's name and the step.
    """

    async def one(name: str) -> Holdings:
        async with asked(config, name, "adopt") as engine:
            return await _of(engine, lambda what: show(name, what))

    return await of_each(config, one)


async def of_each(config: Config, read: Callable[[str], Awaitable[_Result]]) -> dict[str, _Result]:
    """Call ``read`` with each cluster's name, all at the same time; return the results by name."""
    names = [cluster.name for cluster in config.clusters]
    return dict(zip(names, await asyncio.gather(*map(read, names)), strict=True))


@contextlib.asynccontextmanager
async def asked(config: Config, name: str, purpose: str) -> AsyncIterator[SparkConnectEngine]:
    """Open a connection to a cluster's Spark for the caller; close it in the end.

    An EngineError becomes a RingError. ``purpose``: a part of the names of its sessions.
    """
    address = config.cluster(name).spark
    engine = SparkConnectEngine(address, ring=config.ring, cluster=f"{name}/{purpose}")
    try:
        yield engine
    except EngineError as error:
        raise RingError(f"the Spark of {name} cannot be asked: {error.message}") from error
    finally:
        await engine.aclose()


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
            rows, content, columns = await _content(engine, TableState(catalog_name(schema, name)))
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
    """Return schema and name of each table among the objects that cannot be copied."""
    parts = (name.partition(".") for name, _ in inventory.others)
    return [(schema, name) for schema, dot, name in parts if dot]


async def _table(
    engine: SparkConnectEngine, copies: SparkCopies, table: CopyTable
) -> tuple[Held, str]:
    """Read a Delta table; also return the reason why it cannot be copied (empty if it can)."""
    why, definition, columns = "", "", ""
    try:
        definition, columns = table_of(await copies.state(table))  # type: ignore[arg-type]
        await copies.check(table)
    except EngineError as error:
        if error.kind is not ErrorKind.APPLICATION:
            raise
        why = error.message
    state = TableState(catalog_name(*table.key), table.version)
    rows, content, _ = await _content(engine, state)
    return Held(Sort.TABLE, ".".join(table.key), definition, columns, rows, content), why


async def _content(engine: SparkConnectEngine, state: TableState) -> tuple[int | None, str, str]:
    """Return a table's row count, and checksums of its rows and of its columns.

    If the table cannot be read, the count is None and the checksums are empty.
    """
    try:
        rows, content, columns = (await engine.checksum(state, timeout_s=READ_S)).split(":")
    except EngineError as error:
        if error.kind is not ErrorKind.APPLICATION:
            raise
        return None, "", ""
    return int(rows), content, columns


# The comparison of clusters: each table's row count and checksum, asked of each Spark.


TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Content:
    """A table's content in a form that can be compared between clusters."""

    rows: int
    checksum: int


async def contents(
    config: Config, tables: Sequence[str] | None = None
) -> dict[str, dict[str, Content | None]]:
    """Return the content of each table, by the names of cluster and table.

    Without ``tables``: every table of every schema of the default catalog; None for a table that
    only other clusters have. With ``tables``: raises EngineError for one that does not exist.
    """
    found = await of_each(config, lambda name: _contents_of(config, name, tables))
    names = sorted({name for each in found.values() for name in each})
    return {cluster: {name: each.get(name) for name in names} for cluster, each in found.items()}


def differences(found: Mapping[str, Mapping[str, Content | None]]) -> list[str]:
    """Return a sentence for each table whose content is not the same on all clusters."""
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
        if tables is None:
            tables = await _all_tables(engine.session("compare"))
        return {table: await _content_of_table(engine, table) for table in tables}
    finally:
        await engine.aclose()


async def _all_tables(session: Session) -> list[str]:
    """Return the names of all tables. Views hold no rows, so they are left out."""
    found: list[str] = []
    for row in await rows_in_session(session, "SHOW SCHEMAS"):
        schema = str(row["namespace"])
        if schema in OWN_SCHEMAS:
            continue
        views = {
            view["viewName"] for view in await rows_in_session(session, f"SHOW VIEWS IN `{schema}`")
        }
        tables = await rows_in_session(session, f"SHOW TABLES IN `{schema}`")
        names = (table["tableName"] for table in tables if not table["isTemporary"])
        found += [f"{schema}.{name}" for name in names if name not in views]
    return found


async def _content_of_table(engine: SparkConnectEngine, table: str) -> Content:
    checksum = await engine.checksum(TableState(table), timeout_s=TIMEOUT_S)
    rows, content, _ = checksum.split(":")
    return Content(int(rows), int(content, 16))
