"""Reads the clusters and the log directly, without the HAProcs.

During the run: loads a cluster's stored progress from the log, then reads a table from its Spark,
so that a cursor beyond the data is noticed even while the HAProc is dead. In the end: all tables of
all clusters, and every operation in the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pyarrow as pa

from dmq import Log, LogError
from dmq.opening import open_log
from haproc.config.model import Config
from haproc.config.services import kafka_options
from haproc.engine.connect import SparkConnectEngine
from haproc.engine.errors import EngineError
from haproc.engine.interface import Session, Settings
from haproc.engine.statement import SqlText
from haproc.replicate.log_state.definitions import Definitions
from haproc.replicate.records.control import Fence
from haproc.replicate.records.operation import Operation, from_record
from haproc.replicate.records.progress import from_cursor
from haproc.ring.holdings import contents
from tests.fault.torture.history import (
    COLUMNS,
    Content,
    History,
    Position,
    content_json,
    position_json,
)
from tests.fault.torture.part import Part
from tests.fault.torture.workloads import TABLES, content_of, select

_PAUSE_S = (2.0, 8.0)
_READ_S = 20.0
_FINAL_READ_S = 120.0
_LOG_ENTRIES_A_LINE = 200


class Auditor(Part):
    """Audits now and then until stopped."""

    def __init__(self, config: Config, seed: int, history: History) -> None:
        super().__init__("auditor", history)
        self._config = config
        self._random = random.Random(f"{seed} auditor")

    def work(self) -> None:
        """Audit one table of one cluster after another."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                async with opened_log(self._config) as log:
                    await self._audit_often(log)
            except (LogError, OSError, TimeoutError) as error:
                self._history.write("audit-failed", cluster="", error=str(error)[:200])
                await self._pause()

    async def _pause(self) -> bool:
        """Wait a moment; return whether to continue."""
        pause_s = self._random.uniform(*_PAUSE_S)
        return not await asyncio.to_thread(self._stopped.wait, pause_s)

    async def _audit_often(self, log: Log) -> None:
        while await self._pause():
            cluster = self._random.choice([each.name for each in self._config.clusters])
            table = self._random.choice(list(TABLES))
            try:
                await self._audit(log, cluster, table)
            except (EngineError, LogError, OSError, TimeoutError) as error:
                self._history.write("audit-failed", cluster=cluster, error=str(error)[:200])

    async def _audit(self, log: Log, cluster: str, table: str) -> None:
        async with asyncio.timeout(_READ_S + 5):
            invoked = self._history.now()
            position = await position_of(log, cluster)
            async with opened_session(self._config, cluster) as session:
                rows = await read_rows(session, select(table), _READ_S)
        self._history.write(
            "read",
            process=self.name,
            invoked=round(invoked, 4),
            table=table,
            cluster=cluster,
            content=content_json(content_of(table, rows)),
            position=position_json(position),
        )


@contextlib.asynccontextmanager
async def opened_log(config: Config) -> AsyncIterator[Log]:
    """Open the ring's log for reading."""
    log = await open_log(config.log, kafka=kafka_options(config))
    try:
        yield log
    finally:
        await log.close()


@contextlib.asynccontextmanager
async def opened_session(config: Config, cluster: str) -> AsyncIterator[Session]:
    """Open a session on a cluster's Spark."""
    address = config.cluster(cluster).spark
    engine = SparkConnectEngine(address, ring=config.ring, cluster=f"{cluster}/audit-{os.getpid()}")
    try:
        session = engine.session("audit")
        await session.configure(Settings())
        yield session
    finally:
        await engine.aclose()


async def position_of(log: Log, cluster: str) -> Position | None:
    """Return a cluster's stored progress; None if it has none yet, or copies another's tables."""
    cursor = await log.load_cursor(cluster)
    if cursor is None:
        return None
    progress = from_cursor(cursor)
    if progress.copying is not None:
        return None
    return Position(progress.low, progress.done, await log.end())


async def read_rows(session: Session, sql: str, timeout_s: float) -> list[tuple[Any, ...]]:
    """Run a query and return its rows."""
    rows: list[tuple[Any, ...]] = []
    async with contextlib.aclosing(
        await session.query(SqlText(sql), timeout_s=timeout_s)
    ) as result:
        async for chunk in result:
            with pa.ipc.open_stream(io.BytesIO(chunk.data)) as reader:
                rows += [tuple(row.values()) for row in reader.read_all().to_pylist()]
    return rows


# -- in the end ----------------------------------------------------------------------------------


async def finish(config: Config, tables: Sequence[str] | None, history: History) -> None:
    """Write the whole log into the history, and (with ``tables``) the content of every cluster."""
    async with opened_log(config) as log:
        await _write_log(log, config.limits.window_records, history)
        if tables is None:
            return
        held = {}
        for cluster in config.clusters:
            async with opened_session(config, cluster.name) as session:
                held[cluster.name] = await _held(session, tables)
        # Those of this run alone: a ring of many tests has many more, and each takes a query.
        there = [
            table for table in tables if all(found[table] is not None for found in held.values())
        ]
        checksums = await contents(config, there)
        for name, found in held.items():
            history.write(
                "final",
                cluster=name,
                position=position_json(await position_of(log, name)),
                tables={table: content_json(content) for table, content in found.items()},
                checksums={
                    table: f"{each.rows} rows, {each.checksum:x}"
                    for table, each in checksums[name].items()
                    if each is not None
                },
            )


async def _write_log(log: Log, window_records: int, history: History) -> None:
    """Write the log's operations into the history, except those that every cluster passes over."""
    entries: list[tuple[int, str]] = []
    definitions, at = Definitions(window_records), await log.start()
    definitions.begin(at)
    while batch := await log.read(at):
        for entry in batch:
            message = from_record(entry.record)
            if isinstance(message, Operation) and not definitions.stale(entry.offset, message):
                entries.append((entry.offset, message.id))
            if isinstance(message, Operation | Fence):
                definitions.note(entry.offset, message)
        at = batch[-1].offset + 1
    for first in range(0, max(1, len(entries)), _LOG_ENTRIES_A_LINE):
        history.write("log", entries=entries[first : first + _LOG_ENTRIES_A_LINE])


async def _held(session: Session, tables: Sequence[str]) -> dict[str, Content | None]:
    there = {str(row[1]) for row in await read_rows(session, "SHOW TABLES", _FINAL_READ_S)}
    held: dict[str, Content | None] = {}
    for table in tables:
        if table not in there:
            held[table] = None
            continue
        rows = await read_rows(session, select(table), _FINAL_READ_S)
        held[table] = content_of(table, rows)
        if table not in TABLES:
            described = await read_rows(session, f"DESCRIBE TABLE {table}", _FINAL_READ_S)
            names = [str(row[0]) for row in described]
            columns = tuple(
                int(name[1:]) for name in names if name[:1] == "c" and name[1:].isdigit()
            )
            held[table] = {**held[table], COLUMNS: columns}  # type: ignore[dict-item]
    return held
