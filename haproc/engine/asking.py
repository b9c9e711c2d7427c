"""The calls in a Spark session: HAProc's own queries, and calls that clients sent."""

from __future__ import annotations

import contextlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import grpc
import grpc.aio

from haproc.engine import arrow, channel
from haproc.engine.arrow import empty_stream
from haproc.engine.errors import EngineError, session_lost
from haproc.engine.interface import Chunk, Column, Observed, ResultStream
from haproc.engine.remote import USER, RemoteSession, plan_of
from haproc.engine.rewriting import to_spark
from haproc.engine.statement import SparkPlan, SqlText, Statement, reading_plan, sql_relation
from haproc.engine.table import columns_of
from haproc.engine.tasks import Phase, Planned
from haproc.offloop import by_size

_ATTEMPTS_MAX = 3
"""The most attempts of a call. Chosen: the first one, one after a restart of the server, one after
a session id that the server does not take any more."""


# Queries of a session, and the schemas of their results.
#
# A result's pieces are whole Arrow IPC streams, and are not parsed. The reader pulls them from the
# server: so a slow reader slows the query down, and memory does not fill.


class Asking(ABC):
    """Implements Queries. Its subclasses decide what to do when Spark has lost the session."""

    def __init__(self, remote: RemoteSession) -> None:
        self._remote = remote

    @abstractmethod
    async def begin(self) -> int:
        """Return the session's epoch, once its content is restored; raises EngineError."""

    @abstractmethod
    async def recover(self, error: EngineError, epoch: int) -> bool:
        """Recreate the session if the error shows that it is lost; False for any other error."""

    @abstractmethod
    def in_use(self) -> AbstractContextManager[None]:
        """Keep the session open until the returned context manager is left."""

    async def may_repeat(
        self, error: EngineError, epoch: int, planned: Planned | None, *, unrun: bool
    ) -> bool:
        """Recreate the session if Spark had lost it; True if the statement can then run again.

        ``unrun``: True if the statement has given no result yet and has an attempt left.
        """
        if planned is not None and session_lost(error.error_class):
            planned(Phase.PLANNED)  # making the session anew may wait for the log
        return unrun and await self.recover(error, epoch)

    async def query(
        self,
        statement: Statement,
        *,
        timeout_s: float,
        planned: Planned | None = None,
        observed: Observed | None = None,
    ) -> ResultStream:
        """Start a statement that changes nothing but this session; return its rows as they come."""
        return self._stream(plan_of(statement), timeout_s, planned, observed)

    async def reading(
        self,
        statement: SqlText | SparkPlan,
        *,
        timeout_s: float,
        parsed_only: bool = False,
    ) -> str:
        """Return the plan reading of a statement, as JSON; the statement does not run.

        `Queries.reading` describes it.
        """
        given = statement.sql if isinstance(statement, SqlText) else statement.plan
        plan = await by_size(len(given), reading_plan, statement, parsed_only=parsed_only)
        async with contextlib.aclosing(self._stream(plan, timeout_s)) as stream:
            chunks = [chunk.data async for chunk in stream]
        return await by_size(sum(map(len, chunks)), _only_value, chunks)

    async def _stream(
        self,
        plan: Any,
        timeout_s: float,
        planned: Planned | None = None,
        observed: Observed | None = None,
    ) -> AsyncGenerator[Chunk, None]:
        """Run the plan, again if Spark had lost the session; stop it when the reader leaves.

        ``observed`` receives the results of the plan's observations.
        """
        with self.in_use():
            for attempt in range(1, _ATTEMPTS_MAX + 1):
                epoch, operation_id = await self.begin(), str(uuid.uuid4())
                running = self._remote.execute(
                    plan, operation_id, timeout_s, epoch=epoch, reads_only=True, planned=planned
                )
                chunks_given = 0
                try:
                    async with contextlib.aclosing(running):
                        async for response in running:
                            if response.HasField("arrow_batch"):
                                chunks_given += 1
                                batch = response.arrow_batch
                                yield Chunk(batch.data, batch.row_count)
                            if observed is not None:
                                for found in response.observed_metrics:
                                    observed(found.SerializeToString())
                    if not chunks_given:
                        yield Chunk(empty_stream(), 0)
                    return
                except EngineError as error:
                    unrun = not chunks_given and attempt < _ATTEMPTS_MAX
                    if not await self.may_repeat(error, epoch, planned, unrun=unrun):
                        raise

    async def columns(self, sql: str) -> list[Column]:
        """Return a query's columns without running it. Not for commands: Spark would run them."""
        return columns_of(await self._schema(sql_relation(sql)))

    async def schema(self, query: Statement) -> bytes:
        """Return a query's schema, a serialized ``spark.connect.DataType``, without running it."""
        return bytes((await self._schema(plan_of(query).root)).SerializeToString())

    async def _schema(self, relation: Any) -> Any:
        epoch = await self.begin()
        try:
            return await self._remote.schema(relation)
        except EngineError as error:
            if not await self.recover(error, epoch):
                raise
            return await self._remote.schema(relation)


def _only_value(chunks: Sequence[bytes]) -> str:
    (row,) = arrow.rows(chunks)
    (value,) = row.values()
    return str(value)


# Clients' own calls, relayed as bytes to the Spark session that stands for theirs.
#
# Only the names in a request are replaced (`rewriting`). Answers and errors come back as Spark sent
# them. Each request carries the server's own id of the session, so a lost session is noticed.


class SparkRelay:
    """Implements Relay. ``changing`` is called before each call that may change the session."""

    def __init__(
        self, remote: RemoteSession, session: Asking, changing: Callable[[], None]
    ) -> None:
        self._channel = remote.channel
        self._remote = remote
        self._session = session
        self._changing = changing

    async def unary(
        self, rpc: str, request: bytes, *, timeout_s: float, changes: bool = False
    ) -> bytes:
        """Make a call with one request and one answer."""

        async def call(request: bytes) -> Any:
            return await self._channel.relay(rpc)(request, timeout_s)

        return await self._once(rpc, (request,), lambda made: call(made[0]), changes=changes)

    async def upload(
        self, rpc: str, requests: Sequence[bytes], *, timeout_s: float, changes: bool = False
    ) -> bytes:
        """Make a call with several requests and one answer."""

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
        """Run a plan with this Spark Connect operation id, and yield the server's messages."""
        with self._session.in_use():
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
                    unrun = not given and attempt < _ATTEMPTS_MAX
                    if not await self._session.may_repeat(error, epoch, planned, unrun=unrun):
                        raise

    def _begun(self, request: bytes, operation_id: str) -> Callable[[float], Any]:
        """Return the function that sends an ExecutePlan request; its argument is a time limit."""
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
        """Make a call with one answer; repeat it if Spark had lost the session."""
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            epoch = await self._fit(changes=changes)
            made = [to_spark(rpc, each, self._remote.names, USER) for each in requests]
            for each in made:
                self._channel.check_bytes(len(each))
            try:
                return bytes(await call(made))
            except grpc.aio.AioRpcError as error:
                end = channel.relayed(error)
                if attempt == _ATTEMPTS_MAX or not await self._session.recover(end, epoch):
                    raise end from error
        raise AssertionError("the last attempt returns or raises")

    async def _fit(self, *, changes: bool) -> int:
        """Return the session's epoch, after learning the id that the server gave the session.

        ``changes``: True if the call that follows may change the session.
        """
        epoch = await self._session.begin()
        if not self._remote.names.server_id:
            await self._remote.open()
            epoch = await self._session.begin()
        if changes:
            self._changing()
        return epoch


async def _each(messages: Sequence[bytes]) -> AsyncIterator[bytes]:
    for message in messages:
        yield message
