"""Clients' own calls in the Spark session behind theirs, as bytes.

Only the names in a request change on its way (`rewriting`); answers come back as they were sent,
and errors as Spark gave them. A session that is lost is noticed as for every other call, since the
server's own id goes with each of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import grpc
import grpc.aio

from haproc.engine import failure
from haproc.engine.errors import EngineError, session_lost
from haproc.engine.remote import USER, RemoteSession
from haproc.engine.rewriting import to_spark
from haproc.engine.tasks import Phase, Planned

_ATTEMPTS_MAX = 3
"""Chosen: one for the call, one for a restarted server, one for a session id that was spent."""


class SparkRelay:
    """Implements Relay. ``begin`` and ``recover`` are as for a QueryStream."""

    def __init__(
        self,
        remote: RemoteSession,
        *,
        begin: Callable[[], Awaitable[int]],
        recover: Callable[[EngineError, int], Awaitable[bool]],
        in_use: Callable[[], contextlib.AbstractContextManager[None]],
        changing: Callable[[], None],
    ) -> None:
        self._channel = remote.channel
        self._remote = remote
        self._begin = begin
        self._recover = recover
        self._in_use = in_use
        self._changing = changing

    async def unary(
        self, rpc: str, request: bytes, *, timeout_s: float, changes: bool = False
    ) -> bytes:
        """See Relay."""

        async def call(request: bytes) -> Any:
            return await self._channel.relay(rpc)(request, timeout_s)

        return await self._once(rpc, (request,), lambda made: call(made[0]), changes=changes)

    async def upload(
        self, rpc: str, requests: Sequence[bytes], *, timeout_s: float, changes: bool = False
    ) -> bytes:
        """See Relay."""

        async def call(made: Sequence[bytes]) -> Any:
            return await self._channel.relay(rpc)(_each(made), timeout_s)

        return await self._once(rpc, requests, call, changes=changes)

    async def execute(
        self,
        request: bytes,
        operation_id: str,
        *,
        timeout_s: float,
        changes: bool = False,
        planned: Planned | None = None,
    ) -> AsyncGenerator[bytes, None]:
        """See Relay."""
        with self._in_use():
            for attempt in range(1, _ATTEMPTS_MAX + 1):
                epoch, given = await self._fit(changes=changes), False
                begin = self._begun(request, operation_id)
                answering = self._remote.answer(
                    begin, operation_id, timeout_s, raw=True, planned=planned
                )
                del begin
                try:
                    async with answering as answer:
                        async for response in answer:
                            given = True
                            yield response
                    return
                except EngineError as error:
                    refused_unrun = not given and attempt < _ATTEMPTS_MAX
                    if planned is not None and session_lost(error.error_class):
                        planned(Phase.PLANNED)  # making it anew may wait for the log
                    if not (refused_unrun and await self._recover(error, epoch)):
                        raise

    def _begun(self, request: bytes, operation_id: str) -> Callable[[float], Any]:
        """Return the begin of a plan in the present session."""
        made = to_spark("ExecutePlan", request, self._remote.names, USER, operation_id)
        self._channel.check_bytes(len(made))
        return partial(self._channel.relay("ExecutePlan"), made)

    async def _once(
        self,
        rpc: str,
        requests: Sequence[bytes],
        call: Callable[[Sequence[bytes]], Awaitable[Any]],
        *,
        changes: bool,
    ) -> bytes:
        """Make a call with one answer; again if the server only lost the session."""
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            epoch = await self._fit(changes=changes)
            made = [to_spark(rpc, each, self._remote.names, USER) for each in requests]
            for each in made:
                self._channel.check_bytes(len(each))
            try:
                return bytes(await call(made))
            except grpc.aio.AioRpcError as error:
                end = failure.relayed(error)
                if attempt == _ATTEMPTS_MAX or not await self._recover(end, epoch):
                    raise end from error
        raise AssertionError("the last attempt returns or raises")

    async def _fit(self, *, changes: bool) -> int:
        """Return the session's epoch, once the server's own id of it is known."""
        epoch = await self._begin()
        if not self._remote.names.server_id:
            await self._remote.open()
            epoch = await self._begin()
        if changes:
            self._changing()
        return epoch


async def _each(messages: Sequence[bytes]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message
