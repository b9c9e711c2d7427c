"""A running query's result, piece by piece, as the cluster makes it.

Pieces are handed on as they come: whole Arrow IPC streams, not parsed. Reading is what pulls them
from the server, so a slow reader slows the query down instead of filling memory.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

from haproc.engine.arrow import empty_stream
from haproc.engine.errors import EngineError
from haproc.engine.interface import Chunk
from haproc.engine.remote import RemoteSession

_ATTEMPTS_MAX = 3
"""Chosen: one for the call, one for a restarted server, one for a session id that was spent."""


class QueryStream:
    """Implements ResultStream; begins when first read.

    ``begin`` waits until the session is fit for a statement and tells its epoch; ``recover`` makes
    it fit again after an error, or returns False.
    """

    def __init__(
        self,
        remote: RemoteSession,
        plan: Any,
        timeout_s: float,
        *,
        begin: Callable[[], Awaitable[int]],
        recover: Callable[[EngineError, int], Awaitable[bool]],
    ) -> None:
        self._remote = remote
        self._plan = plan
        self._timeout_s = timeout_s
        self._begin = begin
        self._recover = recover
        self._operation_id = ""
        self._running = False
        self._chunks = self._read()

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        """Let go of the result; a statement that still runs is stopped on the cluster."""
        stopped_early = self._running
        await self._chunks.aclose()
        if stopped_early:
            with contextlib.suppress(EngineError):
                await self._remote.interrupt(self._operation_id)

    async def _read(self) -> AsyncGenerator[Chunk, None]:
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            self._operation_id = str(uuid.uuid4())
            epoch = await self._begin()
            self._running = True
            chunks_given = 0
            try:
                async with contextlib.aclosing(
                    self._remote.execute(
                        self._plan, self._operation_id, self._timeout_s, epoch=epoch
                    )
                ) as responses:
                    async for response in responses:
                        if response.HasField("arrow_batch"):
                            chunks_given += 1
                            batch = response.arrow_batch
                            yield Chunk(batch.data, batch.row_count)
                self._running = False
                if not chunks_given:
                    yield Chunk(empty_stream(), 0)
                return
            except EngineError as error:
                self._running = False
                refused_unrun = not chunks_given and attempt < _ATTEMPTS_MAX
                if not (refused_unrun and await self._recover(error, epoch)):
                    raise
