"""A lane: the applier's own Spark session, in which one replicated statement runs at a time.

Delta's marks are session settings, and a statement reads them when it commits. So no statement may
ever meet another one's settings, or it would commit under the other's mark and the other be skipped
for good. A lane changes its settings only when the server has answered everything before. After a
broken connection, a deadline or a cancellation, and on first use (an earlier HAProc may have left
something under way), it stops what runs in its session and moves on to a new one, which late
requests for the old one can't reach. The ids are derived from the ring's and the cluster's name and
a generation, which is what lets a lane find what an earlier incarnation left.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from typing import Any

from haproc.engine import arrow
from haproc.engine.configured import ConfiguredSession, Defaults
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Applied, Mark, RowsWrite, Settings, SqlWrite
from haproc.engine.remote import RemoteSession, append_plan, sql_plan

_NAMESPACE = uuid.UUID("6d0c6a0e-54ad-5b27-8a2e-8d8f4d0f6d51")


def lane_session_id(ring: str, cluster: str, index: int, generation: int) -> uuid.UUID:
    """Return the session id of a lane; the generation rises when an id is spent."""
    return uuid.uuid5(_NAMESPACE, f"{ring}/{cluster}/{index}/{generation}")


class SparkLane:
    """Implements Lane."""

    def __init__(
        self,
        remote: RemoteSession,
        defaults: Defaults,
        *,
        small_statement_timeout_s: float,
        applied_bytes_max: int,
    ) -> None:
        self._remote = remote
        self._session = ConfiguredSession(remote, defaults, small_statement_timeout_s)
        self._applied_bytes_max = applied_bytes_max
        self._one_at_a_time = asyncio.Lock()
        self._in_doubt = True
        self._epoch_known = remote.epoch

    async def apply(
        self,
        write: SqlWrite | RowsWrite,
        settings: Settings,
        mark: Mark | None,
        *,
        timeout_s: float,
    ) -> Applied:
        """Run the write under these settings and mark; raises EngineError."""
        async with self._one_at_a_time:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._apply(write, settings, mark, timeout_s)
            except TimeoutError as error:
                raise EngineError(
                    ErrorKind.AVAILABILITY,
                    f"The cluster did not answer within {timeout_s} s",
                    error_class="DEADLINE_EXCEEDED",
                ) from error

    async def fence(self) -> None:
        """Return when nothing given to this lane before, by whoever, runs or will ever run."""
        async with self._one_at_a_time:
            await self._fence()

    async def _fence(self) -> None:
        self._in_doubt = True
        await self._remote.move_on()
        self._in_doubt = False

    async def _apply(
        self, write: SqlWrite | RowsWrite, settings: Settings, mark: Mark | None, timeout_s: float
    ) -> Applied:
        if self._in_doubt:
            await self._fence()
        epoch = self._remote.epoch
        if epoch != self._epoch_known:
            self._session.forget(session_is_new=True)
            self._epoch_known = epoch
        self._in_doubt = True
        try:
            await self._session.ensure(settings, mark)
            applied = await self._run(_plan(write), timeout_s, epoch)
        except EngineError as error:
            # A lost session is not made anew behind the applier's back: it may have been taken
            # away by another incarnation, and the applier must find that out first.
            lost = self._remote.renew(error, epoch)
            self._in_doubt = lost or error.kind is ErrorKind.AVAILABILITY
            raise
        self._in_doubt = False
        return applied

    async def _run(self, plan: Any, timeout_s: float, epoch: int) -> Applied:
        chunks: list[bytes] = []
        size = 0
        async with contextlib.aclosing(
            self._remote.execute(plan, str(uuid.uuid4()), timeout_s, epoch=epoch)
        ) as responses:
            async for response in responses:
                if response.HasField("arrow_batch"):
                    size += len(response.arrow_batch.data)
                    if size <= self._applied_bytes_max:
                        chunks.append(response.arrow_batch.data)
        return Applied(tuple(chunks), arrow.affected_rows(chunks))


def _plan(write: SqlWrite | RowsWrite) -> Any:
    if isinstance(write, SqlWrite):
        return sql_plan(write.sql)
    return append_plan(write.table, write.rows)
