"""Asks each cluster's Spark what it holds. Nothing is written, and no HAProc is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from haproc.config.model import Config
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.copies import CopyTable, Inventory
from haproc.engine.copying import SparkCopies
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import TableState
from haproc.pin.sqltypes import quote_name
from haproc.ring.adopting import Held, Holdings, Sort, definition_of, table_of
from haproc.ring.settings import RingError

PROBE_S: Final = 60.0
"""A Spark that has just been started takes so long for its first statement. Chosen."""
READ_S: Final = 6 * 3600.0
"""Reading one table. Chosen: a TiB at 50 MiB/s."""
TABLES_AT_ONCE: Final = 4
"""Tables of a cluster that are read side by side. Chosen."""


async def holdings(config: Config, show: Callable[[str, str], None]) -> dict[str, Holdings]:
    """Return what each cluster of the ring holds; raises RingError.

    ``show`` is given each step: the cluster's name, and what is done.
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
    places = asyncio.Semaphore(TABLES_AT_ONCE)

    async def table(each: CopyTable) -> tuple[Held, str]:
        async with places:
            return await _table(engine, copies, each)

    async def other(schema: str, name: str) -> Held:
        async with places:
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
    """Return schema and name of the tables that a copy does not take."""
    parts = (name.partition(".") for name, _ in inventory.others)
    return [(schema, name) for schema, dot, name in parts if dot]


async def _table(
    engine: SparkConnectEngine, copies: SparkCopies, table: CopyTable
) -> tuple[Held, str]:
    """Return a Delta table, and why it cannot be copied; empty: it can."""
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
    """Return a table's number of rows, their checksum and its columns'; None: unreadable."""
    try:
        rows, content, columns = (await engine.checksum(state, timeout_s=READ_S)).split(":")
    except EngineError as error:
        if error.kind is not ErrorKind.APPLICATION:
            raise
        return None, "", ""
    return int(rows), content, columns


def _name(schema: str, name: str) -> str:
    return ".".join(("spark_catalog", quote_name(schema), quote_name(name)))
