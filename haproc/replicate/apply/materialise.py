"""Runs the query of a write, puts its rows into parts, and the parts into the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from haproc.classify.model import RefusedError
from haproc.config.sections import Limits
from haproc.engine import arrow, pieces
from haproc.engine.interface import Chunk, Observed, Queries, Session, Settings
from haproc.engine.placeholder import (
    append_template,
    empty_query,
    plan_of_query,
    plan_with_rows,
    rests_on_handles,
    sql_with_rows,
)
from haproc.engine.statement import SparkPlan, SqlText, Statement
from haproc.failure import ErrorClass
from haproc.replicate.apply.staging_tables import errors_of_cluster
from haproc.replicate.log_state.failure_votes import taken_back
from haproc.replicate.records.operation import Operation
from haproc.replicate.records.rows import ComputedPlan, Filling, QueryWrite, SpooledRows

logger = logging.getLogger(__name__)

OBSERVED_BYTES_MAX: Final = 64 << 10
"""The most bytes of the results of Spark's observations in a record; one row each. Chosen."""


@dataclass(frozen=True, slots=True)
class ComputedRows:
    """A query's result: its ``rows`` if they are one part, else the offsets of its ``parts``.

    ``table``: the staging table that holds the rows, too, if there is one. ``observed``: the
    results of Spark's observations (`DataFrame.observe`) in that run.
    """

    schema: bytes
    count: int
    rows: bytes
    parts: tuple[int, ...]
    size_bytes: int
    table: str = ""
    observed: tuple[bytes, ...] = ()


class Parts:
    """Joins the pieces of a result to parts, each of which fits a record and Spark's memory.

    A part is one Arrow IPC stream. Types are passed on as they came: values are not read.

    ``rows`` and ``size_bytes`` count all rows that were added.

    A part has no more than ``bytes_max`` and ``rows_max``, unless a single row is larger.
    """

    def __init__(self, bytes_max: int, rows_max: int) -> None:
        self._bytes_max, self._rows_max = bytes_max, rows_max
        self._schema: pa.Schema | None = None
        self._batches: list[pa.RecordBatch] = []
        self._bytes = self._rows = 0
        self.rows = self.size_bytes = 0

    def add_chunk(self, chunk: bytes) -> Iterator[bytes]:
        """Add the rows of an Arrow IPC stream; yield each part that becomes full."""
        with pa.ipc.open_stream(chunk) as reader:
            self.of(reader.schema)
            for batch in reader:
                yield from self.take(batch)

    def of(self, schema: pa.Schema) -> None:
        """Set the columns, unless they are set already. A result without rows has columns, too."""
        if self._schema is None:
            self._schema = schema

    def take(self, batch: pa.RecordBatch) -> Iterator[bytes]:
        """Add a batch of rows; yield each part that becomes full."""
        self.rows += batch.num_rows
        self.size_bytes += batch.nbytes
        rows_max = self._rows_of_a_part(batch)
        for begin in range(0, batch.num_rows, rows_max):
            piece = batch.slice(begin, rows_max)
            over = self._bytes + piece.nbytes > self._bytes_max or (
                self._rows + piece.num_rows > self._rows_max
            )
            if self._batches and over:
                yield self.rest()
            self._batches.append(piece)
            self._bytes += piece.nbytes
            self._rows += piece.num_rows

    def rest(self) -> bytes:
        """Return the rows since the last part as a part, perhaps an empty one; begin the next."""
        assert self._schema is not None
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self._schema) as writer:
            for batch in self._batches:
                writer.write_batch(batch)
        self._batches.clear()
        self._bytes = self._rows = 0
        return bytes(sink.getvalue().to_pybytes())

    def _rows_of_a_part(self, batch: pa.RecordBatch) -> int:
        """Return the number of a batch's rows that fit one part, if all are of one size."""
        pieces = -(-batch.nbytes // self._bytes_max) or 1
        return max(1, min(self._rows_max, -(-int(batch.num_rows) // int(pieces))))


Keep: TypeAlias = Callable[[int, bytes], Awaitable[int]]
"""Appends a part to the log, given its number and rows; returns its offset."""


class Keeping:
    """Appends parts to the log, each while the next one is collected.

    The parts are appended one after another. `places` waits for the last: the record that names
    them must come after them all. At the end of this context no append runs."""

    def __init__(self, keep: Keep) -> None:
        self._keep = keep
        self._places: list[int] = []
        self._under_way: asyncio.Future[int] | None = None

    async def __aenter__(self) -> Keeping:
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)

    @property
    def empty(self) -> bool:
        """True if no part was given to `append_part` so far."""
        return not self._places and self._under_way is None

    async def append_part(self, part: bytes) -> None:
        """Begin to append a part once the one before is durable; raises an error of that one."""
        await self._settle()
        self._under_way = asyncio.ensure_future(self._keep(len(self._places), part))

    async def places(self) -> tuple[int, ...]:
        """Return the offsets of the parts, once all of them are durable; raises their error."""
        await self._settle()
        return tuple(self._places)

    async def _settle(self) -> None:
        if self._under_way is not None:
            place = await self._under_way
            self._under_way = None
            self._places.append(place)


# The query that gives an operation's rows: its statement, its session and its time budget. And the
# statement that all clusters run for these rows.


T = TypeVar("T")


def query_of(op: Operation) -> Statement:
    """Return the query that gives an operation's rows."""
    if isinstance(op.write, ComputedPlan):
        return SparkPlan(plan_of_query(op.write.query))
    if isinstance(op.write, SpooledRows):
        return SparkPlan(empty_query(op.write.schema))
    assert isinstance(op.write, QueryWrite)
    return SqlText(op.write.query)


def filling_of(op: Operation, found: ComputedRows) -> Filling:
    """Return the plan that writes the computed rows of an operation, with these rows."""
    match op.write:
        case QueryWrite():
            plan = sql_with_rows(op.write.head, found.schema)
        case ComputedPlan():
            plan = plan_with_rows(op.write.template, found.schema)
        case SpooledRows():
            plan = plan_with_rows(append_template(op.write.table), found.schema)
        case _:
            raise AssertionError("it has no rows to be computed")
    observed = _bounded(found.observed)
    return Filling(plan, found.rows, found.parts, found.size_bytes, observed)


def _bounded(observed: tuple[bytes, ...]) -> tuple[bytes, ...]:
    size_bytes = sum(map(len, observed))
    if size_bytes <= OBSERVED_BYTES_MAX:
        return observed
    logger.warning("a write's observations are not returned: %d bytes are too many", size_bytes)
    return ()


def settings_of_query(op: Operation) -> Settings:
    """Return the settings for the operation's query: its own, and those of its client's session."""
    if not isinstance(op.write, QueryWrite | ComputedPlan):
        return op.settings
    confs = {**dict(op.settings.confs), **dict(op.write.confs)}
    return replace(op.settings, confs=tuple(sorted(confs.items())))


def of_one_session(op: Operation) -> bool:
    """True if only the origin can compute the rows: the query needs the client's own session.

    Also for rows that came with the request: only the origin has them.
    """
    if isinstance(op.write, SpooledRows):
        return True
    if isinstance(op.write, ComputedPlan):
        return op.write.session is not None and rests_on_handles(op.write.query)
    return isinstance(op.write, QueryWrite) and op.write.of_session and op.write.session is None


async def in_budget(op: Operation, work: Coroutine[Any, Any, T]) -> T:
    """Await ``work``, and return its result.

    Raises RefusedError if that takes longer than the operation's time budget.
    """
    budget = asyncio.timeout(op.apply_budget_s)
    try:
        async with budget:
            return await work
    except TimeoutError as error:
        if not budget.expired():
            raise
        why = taken_back(f"its time budget ({op.apply_budget_s:g} s)")
        raise RefusedError(ErrorClass.REVOKED, why) from error


# Rows that came with a client's request and are too many for one record.
#
# The operation is appended first. In its turn the rows follow in parts, like the rows of a query.
# Until then only the operation's origin has them, from the request. A cluster that computes in the
# origin's place can only reject the operation. The error's class says that the client can send the
# request again, with its rows.


class RowsSource(Protocol):
    """Rows that came with a request, as Arrow chunks; each iteration starts at the first row."""

    def __aiter__(self) -> AsyncGenerator[Chunk, None]: ...


async def collected(rows: RowsSource, schema: bytes, keep: Keep, limits: Limits) -> ComputedRows:
    """Return the rows of a request; if they are more than one part, append the parts to the log.

    No more than two parts are in memory at a time.
    """
    parts = Parts(limits.part_bytes_max, limits.part_rows_max)
    async with Keeping(keep) as kept, aclosing(aiter(rows)) as chunks:
        async for chunk in chunks:
            for part in parts.add_chunk(chunk.data):
                await kept.append_part(part)
        return await _all_rows(parts, kept, schema)


async def _all_rows(parts: Parts, kept: Keeping, schema: bytes, table: str = "") -> ComputedRows:
    """Return all rows as one result; if there are several parts, append the last one, too."""
    rest = parts.rest()
    if kept.empty:
        return ComputedRows(schema, parts.rows, rest, (), parts.size_bytes, table)
    await kept.append_part(rest)
    return ComputedRows(schema, parts.rows, b"", await kept.places(), parts.size_bytes, table)


def rows_gone(origin: str) -> RefusedError:
    """Return the error of a write whose rows were lost before they were in the log.

    The client may send the write again.
    """
    return RefusedError(
        ErrorClass.ROWS_GONE,
        f"cluster {origin} had the rows of the request and lost them before they were in the log",
        "send the request again, with its rows and under its request_id",
    )


# Runs the query of a write, and puts its rows into parts.
#
# The result may be larger than the memory of the cluster's driver, which collects it as fast as it
# is made. So first only as many rows are asked for as a driver can hold. If there are more, or they
# do not come soon, Spark writes the rows to a staging table, from which they are read in pieces. So
# a query may run twice; its first result is dropped then.


ATTEMPT_S: Final = 3.0
"""The longest wait for the rows of a query; then a staging table is made. Chosen: several times
its cost."""
Stage: TypeAlias = Callable[[], AbstractAsyncContextManager[tuple[str, Session]]]
"""Yields a new staging table's name, and a session to read it in, without a client's settings. The
table is dropped when it is not needed any more."""


async def materialise(
    query: Statement,
    session: Queries,
    stage: Stage,
    keep: Keep,
    limits: Limits,
    timeout_s: float,
) -> ComputedRows:
    """Run a query, and return its rows; append them to the log if they are more than one part.

    Raises EngineError, and RefusedError if the rows cannot be replicated. No more than two parts
    are in memory at a time.
    """
    schema = await session.schema(query)
    found = await _first(query, session, schema, limits, timeout_s)
    if found is not None:
        return found
    if why := pieces.unstaged(schema):
        raise _unfit(why)
    async with stage() as (table, reading):
        with errors_of_cluster():
            await _run(reading, pieces.MAKE_SCHEMA, timeout_s)
        observed: list[bytes] = []
        await _run(session, pieces.fill(table, query, schema), timeout_s, observed.append)
        with errors_of_cluster():
            found = await _read(table, reading, schema, keep, limits, timeout_s)
        return replace(found, observed=tuple(observed))


async def _first(
    query: Statement, session: Queries, schema: bytes, limits: Limits, timeout_s: float
) -> ComputedRows | None:
    """Return the query's rows if they are one part and come within ATTEMPT_S; else None."""
    attempt = pieces.attempt(query, schema, limits.part_rows_max)
    parts = Parts(limits.part_bytes_max, limits.part_rows_max)
    observed: list[bytes] = []
    try:
        async with asyncio.timeout(ATTEMPT_S):
            if not await _fits(attempt, session, parts, timeout_s, observed.append):
                return None
    except TimeoutError:
        return None
    rest = parts.rest()
    return ComputedRows(schema, parts.rows, rest, (), parts.size_bytes, observed=tuple(observed))


async def _fits(
    attempt: pieces.FirstRows, session: Queries, parts: Parts, timeout_s: float, observed: Observed
) -> bool:
    """Add all rows of a query to ``parts``; False if they are more than one part.

    Also False if the driver would have to hold too much.
    """
    async with aclosing(_batches(session, attempt.plan, timeout_s, observed)) as batches:
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
    """Read a staging table piece by piece; return its rows, and append them to the log in parts."""
    parts = Parts(limits.part_bytes_max, limits.part_rows_max)
    async with Keeping(keep) as kept:
        async for piece in _pieces(reading, table, schema, timeout_s):
            rows = pieces.rows_of(table, pieces.count(schema), piece)
            async with aclosing(_batches(reading, rows, timeout_s)) as batches:
                async for found, batch in batches:
                    parts.of(found)
                    for part in parts.take(batch) if batch is not None else ():
                        await kept.append_part(part)
                    if parts.size_bytes > limits.staged_bytes_max:
                        raise _too_large(limits.staged_bytes_max)
        return await _all_rows(parts, kept, schema, table)


async def _pieces(
    reading: Queries, table: str, schema: bytes, timeout_s: float
) -> AsyncIterator[pieces.RowsPiece]:
    """Yield the pieces of a staging table, each small enough for one read."""
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
    """Run a query with a small result, and return its rows."""
    stream = await session.query(query, timeout_s=timeout_s)
    async with aclosing(stream):
        return [row async for chunk in stream for row in arrow.rows([chunk.data])]


async def _batches(
    session: Queries, statement: Statement, timeout_s: float, observed: Observed | None = None
) -> AsyncGenerator[tuple[pa.Schema, pa.RecordBatch | None], None]:
    """Run a statement; yield its columns with None, and then with each batch of its rows."""
    stream = await session.query(statement, timeout_s=timeout_s, observed=observed)
    async with aclosing(stream):
        async for chunk in stream:
            with pa.ipc.open_stream(chunk.data) as reader:
                yield reader.schema, None
                for batch in reader:
                    yield reader.schema, batch


async def _run(
    session: Queries, statement: Statement, timeout_s: float, observed: Observed | None = None
) -> None:
    async with aclosing(_batches(session, statement, timeout_s, observed)) as batches:
        async for _ in batches:
            pass


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
