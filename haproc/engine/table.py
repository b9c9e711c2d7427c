"""What the engine asks about tables: their columns, and the last mark that each one holds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

from haproc.engine import arrow, confs
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Column
from haproc.engine.remote import RemoteSession, sql_plan
from haproc.engine.type_text import type_text
from haproc.failure import ErrorClass

HISTORY_TIMEOUT_S = 60.0
"""Chosen: a history of 64 commits takes 0.3 s on a quiet machine."""
WAIT_S_MAX = 3600.0
"""How long a statement may wait for a busy cluster in all. Chosen."""


def columns_of(schema: Any) -> list[Column]:
    """Return the columns of a schema message."""
    return [
        Column(field.name, type_text(field.data_type), field.nullable)
        for field in schema.struct.fields
    ]


def metadata_of(schema: Any) -> frozenset[str]:
    """Return the keys of the metadata in a schema message, of its fields at any depth."""
    found: set[str] = set()
    below = [schema]
    while below:
        kind = below.pop()
        for field in kind.struct.fields:
            found.update(json.loads(field.metadata) if field.metadata else ())
            below.append(field.data_type)
        below += [kind.array.element_type] if kind.HasField("array") else []
        below += [kind.map.key_type, kind.map.value_type] if kind.HasField("map") else []
    return frozenset(found)


async def all_rows(
    remote: RemoteSession,
    query: str | Any,
    timeout_s: float,
    *,
    operation_id: str = "",
    hear: Callable[[Any], None] = lambda _: None,
) -> AsyncIterator[dict[str, Any]]:
    """Run a query, a text or a plan, and yield its rows, for small results.

    ``hear`` is given each message.
    """
    plan = sql_plan(query) if isinstance(query, str) else query
    async with contextlib.aclosing(
        remote.execute(plan, operation_id or str(uuid.uuid4()), timeout_s)
    ) as responses:
        async for response in responses:
            hear(response)
            if response.HasField("arrow_batch"):
                for row in arrow.rows([response.arrow_batch.data]):
                    yield row


async def rows_in_turn(
    remote: RemoteSession, query: str | Any, timeout_s: float
) -> list[dict[str, Any]]:
    """Return the rows of a query, a text or a plan; raises EngineError.

    ``timeout_s`` begins anew for as long as the cluster is busy with others of ours.
    """
    wait, operation_id = remote.channel.tasks.wait(), str(uuid.uuid4())

    async def read() -> list[dict[str, Any]]:
        found = all_rows(
            remote, query, WAIT_S_MAX, operation_id=operation_id, hear=wait.report.hear
        )
        return [row async for row in found]

    reading = asyncio.ensure_future(read())
    try:
        while not (await asyncio.wait({reading}, timeout=timeout_s))[0]:
            if not wait.is_excused():
                wait.is_over(answered=False)
                raise _late(timeout_s, is_held=wait.is_held)
        rows = await reading
        wait.is_over(answered=True)
        return rows
    finally:
        if not reading.done():
            remote.stop_soon(operation_id)
            reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


def _late(timeout_s: float, *, is_held: bool) -> EngineError:
    said = f"The cluster did not answer within {timeout_s} s"
    if not is_held:
        return EngineError(ErrorKind.AVAILABILITY, said, error_class="DEADLINE_EXCEEDED")
    said += ": tasks of statements that were given up hold its cores, until Spark has ended them"
    return EngineError(ErrorKind.AVAILABILITY, said, error_class=ErrorClass.CORES_HELD)


async def single_row(remote: RemoteSession, sql: str, timeout_s: float) -> dict[str, Any]:
    """Run a query that gives one row."""
    rows = [row async for row in all_rows(remote, sql, timeout_s)]
    return rows[0]


async def last_version(
    remote: RemoteSession, table: str, application: str, history_rows: int
) -> int | None:
    """Return the highest mark version in a Delta table's history; None if there is none in it.

    ``table`` as SQL has it. A mark itself can't be read by SQL; the note in the same commit can
    (confs.user_metadata). The newest note is the highest. Only if the newest commits have none is
    the whole history read. Raises EngineError, also if it is no Delta table.
    """
    for limit in (f" LIMIT {history_rows}", ""):
        versions, commits = [], 0
        async for row in all_rows(remote, f"DESCRIBE HISTORY {table}{limit}", HISTORY_TIMEOUT_S):
            commits += 1
            found = confs.version_in(row["userMetadata"] or "", application)
            if found is not None:
                versions.append(found)
        if versions or commits < history_rows:
            break
    return max(versions, default=None)
