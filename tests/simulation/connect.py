"""Spark Connect between lanes and a simulated cluster: the real messages, no network.

Replaces `haproc.engine.channel.Channel`, so that the real lanes run in the simulation.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from haproc import protos
from haproc.engine import confs
from haproc.engine.channel import Channel, EngineLimits
from haproc.engine.errors import EngineError, ErrorKind
from haproc.engine.interface import Applied, TransactionMarker
from haproc.engine.tasks import Tasks
from tests.simulation.plans import text_of

if TYPE_CHECKING:
    from tests.simulation.spark import SimSpark

_base = protos.base
_RUNNING = _base.GetStatusResponse.OperationStatus.OPERATION_STATE_RUNNING


@dataclass
class SimSession:
    """A session on the server, with the server's own id."""

    server_id: str
    confs: dict[str, str] = field(default_factory=dict)
    running: dict[str, asyncio.Task[Applied]] = field(default_factory=dict)

    @property
    def mark(self) -> TransactionMarker | None:
        """The marker of a statement in this session now."""
        note = self.confs.get(confs.MARKER_CONFS[2])
        if note is None:
            return None
        _, application, version = note.split(":")
        return TransactionMarker(
            application, int(version), guarded=confs.MARKER_CONFS[0] in self.confs
        )


class SimChannel(Channel):
    """The calls of one process; ``check`` blocks them while it is frozen or dead."""

    def __init__(self, spark: SimSpark, check: Callable[[], Awaitable[None]]) -> None:
        self.limits = EngineLimits(small_statement_timeout_s=10, applied_bytes_max=1024)
        self.tasks = Tasks(lambda: asyncio.get_running_loop().time())
        self._spark = spark
        self._alive = check

    async def unary(self, name: str, request: Any, timeout_s: float) -> Any:
        """Make a call that has one answer."""
        await self._alive()
        await self._spark.travel()
        answer = getattr(self, f"_{name}")(request)
        await self._spark.travel()
        await self._alive()
        return answer

    def execute(self, request: bytes, timeout_s: float) -> Any:
        """Start ExecutePlan."""
        return _Call(self._statement(_base.ExecutePlanRequest.FromString(request)))

    def in_background(self, call: Coroutine[Any, Any, None]) -> None:
        """Fail: nothing here is done in the background."""
        raise NotImplementedError

    def _Interrupt(self, request: Any) -> Any:
        session = self._session(request, make=False)
        self._spark.interrupt(session)
        return _base.InterruptResponse(server_side_session_id=session.server_id)

    def _GetStatus(self, request: Any) -> Any:
        session = self._session(request, make=False)
        answer = _base.GetStatusResponse(server_side_session_id=session.server_id)
        for operation_id in session.running:
            answer.operation_statuses.add(operation_id=operation_id, state=_RUNNING)
        return answer

    def _ReleaseSession(self, request: Any) -> Any:
        self._spark.release(request.session_id, reconnect=request.allow_reconnect)
        return _base.ReleaseSessionResponse()

    def _Config(self, request: Any) -> Any:
        session = self._session(request, make=True)
        for pair in request.operation.set.pairs:
            session.confs[pair.key] = pair.value
        for key in request.operation.unset.keys:
            session.confs.pop(key, None)
        return _base.ConfigResponse(server_side_session_id=session.server_id)

    async def _statement(self, request: Any) -> AsyncIterator[Any]:
        await self._alive()
        await self._spark.travel()
        session = self._session(request, make=True)
        sql = text_of(request.plan)
        task = self._spark.start(session, request.operation_id, sql)
        await asyncio.wait([task])
        await self._alive()
        if task.cancelled():
            raise EngineError(ErrorKind.AVAILABILITY, "interrupted")
        await task
        yield _base.ExecutePlanResponse(server_side_session_id=session.server_id)

    def _session(self, request: Any, *, make: bool) -> Any:
        observed = request.client_observed_server_side_session_id
        return self._spark.session(request.session_id, observed, make=make)


class _Call:
    """A running ExecutePlan; the server goes on when its caller leaves."""

    def __init__(self, responses: AsyncIterator[Any]) -> None:
        self._responses = responses

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._responses

    def cancel(self) -> None:
        """Leave."""
