"""A result as one Arrow IPC stream, put together while the cluster makes it.

Each of the cluster's chunks is a whole stream; they become one by leaving out the further schemas
and end markers. The next chunk is taken only once somebody wants the next piece.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

from haproc.engine.arrow import empty_stream
from haproc.engine.frames import END_OF_STREAM, continuation, opening
from haproc.engine.interface import Chunk, ResultStream
from haproc.offloop import by_size
from haproc.statements.cut import Cutter
from haproc.statements.plain_arrow import readable
from haproc.statements.request import Delivery


async def arrow_stream(result: ResultStream, delivery: Delivery) -> AsyncGenerator[memoryview]:
    """Yield the stream's pieces, cut at the client's limits; the first one has the schema."""
    cutter = Cutter(delivery.rows_max, delivery.bytes_max)
    chunks = aiter(result)
    first = await anext(chunks, None) or Chunk(empty_stream(), 0)
    changes = (made := readable(first.data)) is not first.data
    taken = cutter.take(Chunk(made, first.rows))
    assert taken is not None  # the first chunk always passes, if only with its schema
    yield opening(taken.data)
    while not cutter.done and (chunk := await anext(chunks, None)) is not None:
        if changes:
            chunk = Chunk(await by_size(len(chunk.data), readable, chunk.data), chunk.rows)
        if (taken := cutter.take(chunk)) is not None:
            yield continuation(taken.data)
    yield memoryview(END_OF_STREAM)
