"""Runs the query inside a write once, so that its rows can be replicated in its place."""

from __future__ import annotations

import asyncio
from typing import Final

import pyarrow as pa

from haproc.config.model import Limits
from haproc.engine.interface import Session
from haproc.engine.statement import SqlText
from haproc.pin import materialise as rows
from haproc.pin.model import Source

THREAD_BYTES: Final = 64 << 10
"""More rows than that are written as text beside the event loop: 100,000 took a second."""


async def materialise(
    source: Source, session: Session, limits: Limits, timeout_s: float
) -> tuple[str, int]:
    """Return the statement with its query's rows instead of the query, and how many they are.

    Raises RefusedError if there are too many rows or a type has no literals, and EngineError.
    """
    bounds = rows.Limits(limits.materialise_rows_max, limits.materialise_bytes_max)
    columns = [
        rows.QueryColumn(column.name, column.type_text)
        for column in await session.columns(source.query)
    ]
    stream = await session.query(
        SqlText(rows.fetch_query(source.query, columns)), timeout_s=timeout_s
    )
    tables: list[pa.Table] = []
    try:
        async for chunk in stream:
            with pa.ipc.open_stream(chunk.data) as reader:
                tables.append(reader.read_all())
            # Stop as soon as it is too much, not when all of it is here.
            rows.check_size(pa.concat_tables(tables), bounds)
    finally:
        await stream.aclose()
    found = pa.concat_tables(tables)

    def written() -> str:
        return rows.materialised(source, found, columns, bounds)

    text = written() if found.nbytes <= THREAD_BYTES else await asyncio.to_thread(written)
    return text, found.num_rows
