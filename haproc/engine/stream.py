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
from haproc.engine.interface import Chunk, Observed
from haproc.engine.remote import RemoteSession
from haproc.engine.status import session_lost
from haproc.engine.tasks import Phase, Planned

_ATTEMPTS_MAX = 3
"""Chosen: one for the call, one for a restarted server, one for a session id that was spent."""


class QueryStream:
    """Implements ResultStream; begins when first read.

    ``begin`` waits until the session is fit for a statement and tells its epoch; ``recover`` makes
    it fit again after an error, or returns False. ``in_use`` is entered while the statement runs.
    """

    def __init__(
        self,
        remote: RemoteSession,
        plan: Any,
        timeout_s: float,
        *,
        begin: Callable[[], Awaitable[int]],
        recover: Callable[[EngineError, int], Awaitable[bool]],
        in_use: Callable[[], contextlib.AbstractContextManager[None]],
        planned: Planned | None = None,
        observed: Observed | None = None,
    ) -> None:
        self._remote = remote
        self._plan = plan
        self._timeout_s = timeout_s
        self._begin = begin
        self._recover = recover
        self._in_use = in_use
        self._planned = planned
        self._observed = observed
        self._chunks = self._read()

    def __aiter__(self) -> AsyncIterator[Chunk]:
        return self

    async def __anext__(self) -> Chunk:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        """Let go of the result; a statement that still runs is stopped on the cluster."""
        await self._chunks.aclose()

    async def _read(self) -> AsyncGenerator[Chunk, None]:
        with self._in_use():
            async with contextlib.aclosing(self._attempts()) as chunks:
                async for chunk in chunks:
                    yield chunk

    async def _attempts(self) -> AsyncGenerator[Chunk, None]:
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            epoch = await self._begin()
            chunks_given = 0
            try:
                async with contextlib.aclosing(self._run(epoch)) as chunks:
                    async for chunk in chunks:
                        chunks_given += 1
                        yield chunk
                if not chunks_given:
                    yield Chunk(empty_stream(), 0)
                return
            except EngineError as error:
                refused_unrun = not chunks_given and attempt < _ATTEMPTS_MAX
                if self._planned is not None and session_lost(error.error_class):
                    self._planned(Phase.PLANNED)  # making it anew may wait for the log
                if not (refused_unrun and await self._recover(error, epoch)):
                    raise

    async def _run(self, epoch: int) -> AsyncGenerator[Chunk, None]:
        """Run the statement once; however this is left, it is stopped unless it ended."""
        async with contextlib.aclosing(
            self._remote.execute(
                self._plan,
                str(uuid.uuid4()),
                self._timeout_s,
                epoch=epoch,
                reads_only=True,
                planned=self._planned,
            )
        ) as responses:
            async for response in responses:
                if response.HasField("arrow_batch"):
                    batch = response.arrow_batch
                    yield Chunk(batch.data, batch.row_count)
                for found in response.observed_metrics:
                    if self._observed is not None:
                        self._observed(found.SerializeToString())
