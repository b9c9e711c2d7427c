"""Rows that came with a client's request and are too many for one record.

Their operation is in the log first; then, at its turn, they follow in parts, like those that a
query gives. Until they are there only the operation's origin has them, from the request: whoever
acts in its place cannot but reject the operation, with a class that says that the same request,
sent again, brings them again.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from haproc.classify.model import RefusedError
from haproc.config.limits import Limits
from haproc.engine.interface import Chunk
from haproc.failure import ErrorClass
from haproc.replicate.apply.filling import ComputedRows
from haproc.replicate.apply.keeping import Keep, Keeping
from haproc.replicate.apply.parts import Parts


class RowsSource(Protocol):
    """Rows in Spark's plain form; each time it is iterated, all of them from the beginning."""

    def __aiter__(self) -> AsyncGenerator[Chunk, None]: ...


async def collected(rows: RowsSource, schema: bytes, keep: Keep, limits: Limits) -> ComputedRows:
    """Return the rows in parts, no more than two of which are in memory at a time."""
    parts = Parts(limits.part_bytes_max, limits.part_rows_max)
    async with Keeping(keep) as kept, aclosing(aiter(rows)) as chunks:
        async for chunk in chunks:
            for part in parts.add(chunk.data):
                await kept.add(part)
        count, size_bytes, rest = parts.rows, parts.size_bytes, parts.rest()
        if kept.empty:
            return ComputedRows(schema, count, rest, (), size_bytes)
        await kept.add(rest)
        return ComputedRows(schema, count, b"", await kept.places(), size_bytes)


def rows_gone(origin: str) -> RefusedError:
    """Return why a write is rejected whose rows never came into the log; it may be sent again."""
    return RefusedError(
        ErrorClass.ROWS_GONE,
        f"cluster {origin} had the rows of the request and lost them before they were in the log",
        "send the request again, with its rows and under its request_id",
    )
