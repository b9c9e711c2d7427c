"""Reading a result to its end into chunks that are kept for the client.

The cluster's chunks (one for each of its tasks, often small) are gathered into chunks of about
`CHUNK_BYTES` in the form the client asked for. Large ones are converted in a thread, so that
the event loop, and with it the heartbeat, goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from haproc.engine.frames import joined
from haproc.engine.interface import Chunk, Column
from haproc.failure import ErrorClass, FailureKind, RequestError, refused
from haproc.route.model import Answer
from haproc.statements import json_rows
from haproc.statements.cut import Cutter
from haproc.statements.plain_arrow import readable
from haproc.statements.request import Delivery, Disposition, Format
from haproc.statements.spark_types import columns_of
from haproc.statements.store import Kept, ResultStore

CHUNK_BYTES: Final = 4 << 20
"""A chunk is closed once it has this size; chosen, not measured."""
THREAD_BYTES: Final = 256 << 10
"""A conversion of this size takes some milliseconds: more than the event loop should wait."""


class Collector:
    """Gathers a user's result. ``make_room(user, bytes)`` frees space, or says no."""

    def __init__(
        self,
        store: ResultStore,
        delivery: Delivery,
        inline_bytes_max: int,
        user: str,
        make_room: Callable[[str, int], bool],
    ) -> None:
        self._store = store
        self._delivery = delivery
        self._make_room = make_room
        self._inline_bytes_max = inline_bytes_max
        self._json = delivery.format is Format.JSON_ARRAY
        self._parts: list[bytes] = []
        self._part_bytes = 0
        self._part_rows = 0
        self.kept = Kept(user)

    async def collect(self, answer: Answer) -> Kept:
        """Read the answer's result; raises RequestError, EngineError. The stream is closed."""
        cutter = Cutter(self._delivery.rows_max, self._delivery.bytes_max)
        columns = answer.columns
        try:
            async for chunk in answer.result:
                taken = cutter.take(chunk)
                if taken is not None:
                    found = await self._add(taken)
                    columns = columns or found
                if cutter.done:
                    break
        finally:
            await answer.result.aclose()
        await self._flush()
        self.kept.columns = columns or ()
        self.kept.truncated = cutter.truncated
        return self.kept

    async def _add(self, chunk: Chunk) -> tuple[Column, ...]:
        columns: tuple[Column, ...] = ()
        data = chunk.data
        if len(chunk.data) > THREAD_BYTES:
            columns, data = await asyncio.to_thread(self._convert, chunk.data)
        else:
            columns, data = self._convert(chunk.data)
        self._parts.append(data)
        self._part_bytes += len(data)
        self._part_rows += chunk.rows
        self._check_size()
        if self._part_bytes >= CHUNK_BYTES:
            await self._flush()
        return columns

    def _convert(self, data: bytes) -> tuple[tuple[Column, ...], bytes]:
        columns, data = columns_of(json_rows.schema_of(data)), readable(data)
        return columns, json_rows.dumps(json_rows.rows_of(data)[1]) if self._json else data

    def _check_size(self) -> None:
        total = self.kept.bytes + self._part_bytes
        inline = self._delivery.disposition is Disposition.INLINE
        if inline and total > self._inline_bytes_max:
            raise refused(
                ErrorClass.RESULT_TOO_LARGE,
                f"the result is larger than {self._inline_bytes_max} bytes",
                "ask for disposition EXTERNAL_LINKS or for the Arrow stream, or set row_limit",
            )

    async def _flush(self) -> None:
        if not self._parts:
            return
        data = _json_joined(self._parts) if self._json else joined(self._parts)
        if not self._make_room(self.kept.user, len(data)):
            raise RequestError(
                FailureKind.AVAILABILITY,
                "this HAProc keeps as many results, or as many of this user, as it may "
                "(limits.results_kept_bytes_max, limits.user_share)",
                error_class=ErrorClass.RESULTS_FULL,
                hint="fetch kept results, ask for the Arrow stream, or try the next HAProc",
            )
        await self._store.add(self.kept, data, self._part_rows)
        self._parts, self._part_bytes, self._part_rows = [], 0, 0


def _json_joined(parts: list[bytes]) -> bytes:
    """Return one JSON array of all arrays' items."""
    if len(parts) == 1:
        return parts[0]
    inner = [part[1:-1] for part in parts]
    return b"[" + b",".join(part for part in inner if part) + b"]"
