"""Runs the query of a write, and puts its rows into parts.

What the query gives may be more than its cluster's driver has room for, which collects a result as
fast as it is made. So only the first rows are asked for, as many as a driver bears. Where those are
not all, or do not come soon, Spark puts the rows into a staging table, from which they are read in
pieces. So a query may run twice: what it gave the first time is forgotten.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Final, TypeAlias

import pyarrow as pa

from haproc.classify.model import RefusedError
from haproc.config.limits import Limits
from haproc.engine import arrow, pieces, staging
from haproc.engine.errors import EngineError
from haproc.engine.interface import Observed, Queries, Session
from haproc.engine.statement import Statement
from haproc.failure import ErrorClass
from haproc.replicate.apply.filling import ComputedRows
from haproc.replicate.apply.keeping import Keep, Keeping
from haproc.replicate.apply.parts import Parts
from haproc.replicate.apply.staging_tables import of_environment

ATTEMPT_S: Final = 3.0
"""What asking for the first rows costs at most. Chosen: several times what a staging table does."""
Stage: TypeAlias = Callable[[], AbstractAsyncContextManager[tuple[str, Session]]]
"""Gives a staging table's name that was never used, and a session to read it in, which has no
client's settings. Whoever gives it has the table dropped."""


async def materialise(
    query: Statement,
    session: Queries,
    stage: Stage,
    keep: Keep,
    limits: Limits,
    timeout_s: float,
) -> ComputedRows:
    """Return what the query gives; raises EngineError, and RefusedError if that is too much.

    No more of it than two parts is in memory at a time.
    """
    schema = await session.schema(query)
    found = await _first(query, session, schema, limits, timeout_s)
    if found is not None:
        return found
    if why := pieces.unstaged(schema):
        raise _unfit(why)
    async with stage() as (table, reading):
        with _no_word_on_the_query():
            await _run(reading, staging.MAKE_SCHEMA, timeout_s)
        observed: list[bytes] = []
        await _run(session, staging.fill(table, query, schema), timeout_s, observed.append)
        with _no_word_on_the_query():
            found = await _read(table, reading, schema, keep, limits, timeout_s)
        return replace(found, observed=tuple(observed))


async def _first(
    query: Statement, session: Queries, schema: bytes, limits: Limits, timeout_s: float
) -> ComputedRows | None:
    """Return what the query gives if that is one part, and soon known."""
    attempt = pieces.attempt(query, schema, limits.part_rows_max)
    parts = Parts(limits.part_bytes_max, limits.part_rows_max)
    observed: list[bytes] = []
    try:
        async with asyncio.timeout(ATTEMPT_S):
            if not await _fits(attempt, session, parts, timeout_s, observed.append):
                return None
    except TimeoutError:
        return None
    count, size_bytes = parts.rows, parts.size_bytes
    return ComputedRows(schema, count, parts.rest(), (), size_bytes, observed=tuple(observed))


async def _fits(
    attempt: pieces.FirstRows, session: Queries, parts: Parts, timeout_s: float, observed: Observed
) -> bool:
    """Put all rows of a query into one part, if they fit in and the driver bears them."""
    async with contextlib.aclosing(_batches(session, attempt.plan, timeout_s, observed)) as batches:
        async for schema, batch in batches:
            columns = range(len(schema) - 1)
            parts.of(pa.schema([schema.field(at) for at in columns]))
            if batch is None:
                continue
            wide = batch.column(len(columns)).true_count
            if wide or any(parts.take(batch.select(list(columns)))):
                return False
    return parts.rows <= attempt.rows_max


async def _read(
    table: str, reading: Queries, schema: bytes, keep: Keep, limits: Limits, timeout_s: float
) -> ComputedRows:
    """Read a staging table, piece by piece."""
    parts = Parts(limits.part_bytes_max, limits.part_rows_max)
    async with Keeping(keep) as kept:
        async for piece in _pieces(reading, table, schema, timeout_s):
            rows = pieces.rows_of(table, pieces.count(schema), piece)
            async with contextlib.aclosing(_batches(reading, rows, timeout_s)) as batches:
                async for found, batch in batches:
                    parts.of(found)
                    for part in parts.take(batch) if batch is not None else ():
                        await kept.add(part)
                    if parts.size_bytes > limits.staged_bytes_max:
                        raise _too_large(limits.staged_bytes_max)
        count, size_bytes, rest = parts.rows, parts.size_bytes, parts.rest()
        if kept.empty:
            return ComputedRows(schema, count, rest, (), size_bytes, table)
        await kept.add(rest)
        return ComputedRows(schema, count, b"", await kept.places(), size_bytes, table)


async def _pieces(
    reading: Queries, table: str, schema: bytes, timeout_s: float
) -> AsyncIterator[pieces.RowsPiece]:
    """Yield what of a staging table is to be read at a time, which is all of it together."""
    found = await _rows(reading, pieces.sizes(table, schema), timeout_s)
    files = [pieces.StagingFile(row["name"], row["bytes"]) for row in found]
    for each in pieces.whole(files):
        if isinstance(each, pieces.RowsPiece):
            yield each
            continue
        rows = await _rows(reading, pieces.widths(table, schema, each.name), timeout_s)
        for piece in pieces.cut(each.name, [row["bytes"] for row in rows]):
            yield piece


async def _rows(session: Queries, query: Statement, timeout_s: float) -> list[dict[str, Any]]:
    """Return the rows of a small result."""
    stream = await session.query(query, timeout_s=timeout_s)
    async with contextlib.aclosing(stream):
        return [row async for chunk in stream for row in arrow.rows([chunk.data])]


async def _batches(
    session: Queries, statement: Statement, timeout_s: float, observed: Observed | None = None
) -> AsyncGenerator[tuple[pa.Schema, pa.RecordBatch | None], None]:
    """Yield what a statement gives, with its columns, which come first without any rows."""
    stream = await session.query(statement, timeout_s=timeout_s, observed=observed)
    async with contextlib.aclosing(stream):
        async for chunk in stream:
            with pa.ipc.open_stream(chunk.data) as reader:
                yield reader.schema, None
                for batch in reader:
                    yield reader.schema, batch


async def _run(
    session: Queries, statement: Statement, timeout_s: float, observed: Observed | None = None
) -> None:
    async with contextlib.aclosing(_batches(session, statement, timeout_s, observed)) as batches:
        async for _ in batches:
            pass


@contextlib.contextmanager
def _no_word_on_the_query() -> Iterator[None]:
    """Raise errors as the cluster's: of another statement than the query."""
    try:
        yield
    except EngineError as error:
        raise of_environment(error) from error


def _too_large(bytes_max: int) -> RefusedError:
    return RefusedError(
        ErrorClass.TOO_LARGE_TO_MATERIALISE,
        "the write has to be replicated as rows, but its query gives more than "
        f"{bytes_max} bytes of them",
        "write it so that it means the same on every cluster, write in several steps, or raise "
        "limits.staged_bytes_max",
    )


def _unfit(why: str) -> RefusedError:
    return RefusedError(
        ErrorClass.CANNOT_MATERIALISE,
        "the write has to be replicated as rows, which are more than one record holds, and a table "
        f"in which clusters gather them holds no {why}",
        "write it so that it means the same on every cluster, cast them, or write in several steps",
    )
