"""Asks each cluster's Spark for the marks on its tables. Nothing is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from haproc.config.model import Config
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import EngineError, ErrorKind
from haproc.ring.founding import Mark, marks_of
from haproc.ring.settings import RingError

COMMITS_MAX: Final = 1000
"""Commits of a table that are looked at, the newest ones. Chosen: a history of 64 takes 0.3 s."""
TABLES_AT_ONCE: Final = 4
_PROBE_S: Final = 60.0


async def marks(
    config: Config, show: Callable[[str, str], None]
) -> dict[str, dict[str, Sequence[Mark]]]:
    """Return the marks of this ring's logs on each cluster's Delta tables; raises RingError.

    ``show`` is given each step: the cluster's name, and what is done.
    """

    async def one(name: str) -> dict[str, Sequence[Mark]]:
        engine = _engine(config, name)
        try:
            await engine.probe(timeout_s=_PROBE_S)
            histories = engine.histories()
            tables = sorted(await histories.newest())
            show(name, f"reads the histories of {len(tables)} tables")
            places = asyncio.Semaphore(TABLES_AT_ONCE)

            async def history(table: str) -> Sequence[Mark]:
                async with places:
                    return marks_of(config.ring, await histories.commits(table, COMMITS_MAX))

            found = await asyncio.gather(*map(history, tables))
            return dict(zip(tables, found, strict=True))
        except EngineError as error:
            raise RingError(f"the Spark of {name} cannot be asked: {error.message}") from error
        finally:
            await engine.aclose()

    names = [cluster.name for cluster in config.clusters]
    return dict(zip(names, await asyncio.gather(*map(one, names)), strict=True))


async def not_copied(config: Config, name: str) -> Mapping[str, str]:
    """Return what a cluster holds that a copy of it would not take, and why; raises RingError."""
    engine = _engine(config, name)
    try:
        copies = engine.copies()
        inventory = await copies.inventory()
        found = dict(inventory.others)
        for table in inventory.tables:
            try:
                await copies.check(table)
            except EngineError as error:
                if error.kind is not ErrorKind.APPLICATION:
                    raise
                found[table.full_name] = error.message
        return found
    except EngineError as error:
        raise RingError(f"the Spark of {name} cannot be asked: {error.message}") from error
    finally:
        await engine.aclose()


def _engine(config: Config, name: str) -> SparkConnectEngine:
    address = config.cluster(name).spark
    return SparkConnectEngine(address, ring=config.ring, cluster=f"{name}/found")
