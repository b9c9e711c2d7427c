"""A lane: the applier's own Spark session, in which one replicated statement runs at a time.

Delta's transaction markers are session settings, and a statement reads them when it commits. So no
statement may run under the settings of another one. Otherwise it would commit under the wrong
marker, and the other statement would be skipped for ever. A lane changes its settings only when the
server has answered everything before. After a broken connection, a deadline or a cancellation, and
at the first use (an earlier HAProc may have left statements), it stops all statements of its
session and has the session made anew: late requests for the old one are refused. It does the same
when it is *renewed*, after DDL in another lane, because a session keeps the functions, tables of
files and current schema that it has looked up. The session ids are derived from the names of the
ring and the cluster, so a lane finds the statements of an earlier incarnation.

A statement runs only in a session for which the process was *authorised* after it was made. A
process that takes over first records this where `authorise` looks, and then ends all sessions. So a
replaced process, however long it slept, either has a session that is gone, or asks for permission
after the takeover and gets none.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Final, TypeAlias, TypeVar

from haproc.engine import arrow
from haproc.engine.configured import ConfiguredSession, Defaults
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Applied, Settings, TransactionMarker
from haproc.engine.remote import RemoteSession, plan_bytes
from haproc.engine.statement import Statement

_Result = TypeVar("_Result")
_NAMESPACE = uuid.UUID("6d0c6a0e-54ad-5b27-8a2e-8d8f4d0f6d51")
IDS_SEARCHED: Final = 4
"""The least number of a lane's session ids under which a new process searches for earlier
statements. Spark ends the use of an id when its session was idle for an hour: the second id is used
only after an hour without any HAProc. Spark remembers the last 1,000 such ids; all ids behind those
are searched."""
Authorise: TypeAlias = Callable[[], Awaitable[None]]
"""Returns if this process may apply operations; otherwise it never returns, or raises an error."""


async def anybody() -> None:
    """Authorise every caller: for tools that no other process can replace."""


def lane_session_id(ring: str, cluster: str, index: int, generation: int) -> uuid.UUID:
    """Return the id of a lane's session.

    ``generation``: a number that rises when an id cannot be used any more.
    """
    return uuid.uuid5(_NAMESPACE, f"{ring}/{cluster}/{index}/{generation}")


class SparkLane:
    """Implements Lane over Spark Connect."""

    def __init__(
        self,
        remote: RemoteSession,
        defaults: Defaults,
        authorise: Authorise = anybody,
        *,
        pool: str = "",
    ) -> None:
        self._remote = remote
        self._session = ConfiguredSession(remote, defaults, pool)
        self._applied_bytes_max = remote.channel.limits.applied_bytes_max
        self._one_at_a_time = asyncio.Lock()
        self._authorise = authorise
        self._in_doubt = True
        self._outdated = False
        self._first = True
        self._open = False
        self._epoch_known = remote.epoch
        self._settings: Settings | None = None

    async def apply(
        self,
        write: Statement,
        settings: Settings,
        marker: TransactionMarker | None,
        *,
        timeout_s: float,
    ) -> Applied:
        """Run the write under these settings and this transaction marker; raises EngineError."""
        async with self._one_at_a_time:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self._apply(write, settings, marker, timeout_s)
            except TimeoutError as error:
                raise EngineError(
                    ErrorKind.AVAILABILITY,
                    f"The cluster did not answer within {timeout_s} s",
                    error_class="DEADLINE_EXCEEDED",
                ) from error

    async def guarded(self, call: Callable[[RemoteSession], Awaitable[_Result]]) -> _Result:
        """Call ``call`` with the lane's session, whatever its settings are; raises EngineError."""
        async with self._one_at_a_time:
            epoch = await self._begin()
            self._in_doubt = True
            try:
                result = await call(self._remote)
            except EngineError as error:
                lost = self._remote.renew(error, epoch)
                self._in_doubt = lost or error.kind is ErrorKind.AVAILABILITY
                raise
            self._in_doubt = False
            return result

    async def fence(self) -> None:
        """Return when no statement of this lane, from any process, runs or can run later."""
        async with self._one_at_a_time:
            await self._fence()

    def renew(self) -> None:
        """Have the lane's next statement run in a new Spark session, which has nothing cached.

        A statement that runs in this lane now does not depend on the new definitions.
        """
        self._outdated = True

    async def prepare(self) -> None:
        """Make the lane's new Spark session now, so that no statement waits for it; no errors."""
        async with self._one_at_a_time:
            if not self._outdated or self._in_doubt or self._settings is None:
                return
            with contextlib.suppress(EngineError):  # the next statement fences, and gets the error
                await self._begin()
                self._in_doubt = True
                await self._session.ensure(self._settings, None)
                self._in_doubt = False

    async def _fence(self) -> None:
        self._in_doubt = True
        await self._authorise()  # a replaced process must not disturb its successor
        self._open = self._outdated = False
        await self._remote.move_on(IDS_SEARCHED if self._first else 1)
        self._first = self._in_doubt = False

    async def _open_session(self) -> None:
        self._in_doubt = True
        await self._remote.open()
        await self._authorise()
        self._open, self._in_doubt = True, False

    async def touch(self) -> None:
        """Make a call so that the server keeps the idle session; an error shows at the next one."""
        if self._open and not (self._in_doubt or self._outdated):
            await self._remote.touch()

    async def _apply(
        self,
        write: Statement,
        settings: Settings,
        marker: TransactionMarker | None,
        timeout_s: float,
    ) -> Applied:
        epoch = await self._begin()
        self._in_doubt, self._settings = True, settings
        try:
            await self._session.ensure(settings, marker)
            plan, statement_id = await plan_bytes(write), str(uuid.uuid4())
            running = self._remote.execute(plan, statement_id, timeout_s, epoch=epoch)
            del plan  # large, and sent before the first answer
            applied = await self._applied(running)
        except EngineError as error:
            # A lost session is not made anew without the applier's knowledge: another incarnation
            # may have taken it away, and the applier must find that out first.
            lost = self._remote.renew(error, epoch)
            self._in_doubt = lost or error.kind is ErrorKind.AVAILABILITY
            raise
        self._in_doubt = False
        return applied

    async def _begin(self) -> int:
        """Return the epoch of the lane's session; a new session is made first if that is needed."""
        if self._in_doubt or self._outdated:
            await self._fence()
        if not self._open:
            await self._open_session()
        epoch = self._remote.epoch
        if epoch != self._epoch_known:
            self._session.forget(session_is_new=True)
            self._epoch_known = epoch
        return epoch

    async def _applied(self, running: AsyncGenerator[Any, None]) -> Applied:
        chunks: list[bytes] = []
        observed: list[bytes] = []
        size = 0
        async with contextlib.aclosing(running):
            async for response in running:
                if data := _rows_in(response):
                    size += len(data)
                    if size <= self._applied_bytes_max:
                        chunks.append(data)
                observed += [each.SerializeToString() for each in response.observed_metrics]
        if sum(map(len, observed)) > self._applied_bytes_max:
            observed = []
        return Applied(tuple(chunks), arrow.affected_rows(chunks), tuple(observed))


def _rows_in(response: Any) -> bytes:
    """Return the rows in a message; for a SQL command they are inside a relation."""
    if response.HasField("arrow_batch"):
        return bytes(response.arrow_batch.data)
    return bytes(response.sql_command_result.relation.local_relation.data)
