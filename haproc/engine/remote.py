"""One Spark session on the server; turns each failure of its calls into an EngineError.

A session has an id that HAProc chooses, and one that the server adds. Once learned, the server's id
goes with every request. A restarted server would make a fresh session under our id, without our
settings and views; with its id in the request it refuses the call *before* it does anything. So a
statement that depends on the session's state never runs on a session that lost it (`session_lost`
in haproc/engine/errors.py). Running the refused call again on a renewed session is safe.

`move_on` makes a session anew under the same id. The new session has another server id, so all
requests for the old one are refused, also by a server that was restarted in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from copy import copy
from enum import Enum, auto
from functools import partial
from typing import Any

import grpc
import grpc.aio
import pyarrow as pa

from haproc import protos, wire
from haproc.backoff import Backoff
from haproc.engine import channel, placeholder
from haproc.engine.answer import SparkAnswer
from haproc.engine.channel import Channel
from haproc.engine.errors import (
    SESSION_CHANGED,
    EngineError,
    ErrorKind,
    has_ended,
    session_id_spent,
    session_lost,
)
from haproc.engine.rewriting import Names, replaced_plan
from haproc.engine.statement import ArrowRows, RowsInLog, SparkPlan, SqlText, Statement, sql_plan
from haproc.engine.tasks import Phase, Planned
from haproc.offloop import by_size
from haproc.wire import Piece

USER = "haproc"
_POLL_INTERVAL_S, _POLL_INTERVAL_MAX_S = 0.05, 1.0
_ANY_CONF = "spark.sql.ansi.enabled"
"""A setting that is read only to find out if there is a session."""
_base = protos.base
_STATUS = _base.GetStatusResponse.OperationStatus
_ACTIVE = frozenset({_STATUS.OPERATION_STATE_RUNNING})
"""The states of Spark Connect operations that still run. TERMINATING is none of them: the server
reports it once the statement has finished, failed or been cancelled, and has only to forget that.
If two threads of the server do that at once (Spark 4.2.1: a statement is interrupted just when its
caller leaves), it reports that state for ever."""
_ENDED = frozenset(
    {
        _STATUS.OPERATION_STATE_TERMINATING,
        _STATUS.OPERATION_STATE_SUCCEEDED,
        _STATUS.OPERATION_STATE_FAILED,
        _STATUS.OPERATION_STATE_CANCELLED,
    }
)


class EarlierSession(Enum):
    """The state of an earlier session that has the id of a new one."""

    ENDED = auto()
    """A session in which nothing runs now."""
    NOTHING = auto()
    SPENT = auto()
    """A session that the server closed for good; its id cannot be used any more."""


class RemoteSession:
    """A Spark session on the server; makes its calls.

    ``name`` gives the session's id for each generation: a number that rises when an id cannot be
    used any more.
    """

    def __init__(self, channel: Channel, name: Callable[[int], uuid.UUID]) -> None:
        self.channel = channel
        self._name = name
        self._generation = 0
        self._observed = ""
        self.id = str(name(0))
        self.epoch = 0
        """A number that rises whenever the session is lost: all calls of one epoch used the same
        session."""
        self.stopping = 0
        """The number of abandoned Spark Connect operations that still run: the session must not be
        dropped."""

    @property
    def small_timeout_s(self) -> float:
        """The deadline of HAProc's own small statements."""
        return self.channel.limits.small_statement_timeout_s

    @property
    def names(self) -> Names:
        """The session's two ids; the server's own one is empty until it is known."""
        return Names(self.id, self._observed)

    def renew(self, error: EngineError, epoch: int) -> bool:
        """Begin a fresh session if the error shows that Spark has lost this epoch's session.

        Returns False for any other error. If several calls meet the loss, only the first begins a
        session.
        """
        if not session_lost(error.error_class):
            return False
        if epoch == self.epoch:
            if session_id_spent(error.error_class):
                self.start_over()
            else:
                self._new_epoch()
        return True

    def start_over(self) -> None:
        """Begin a fresh session under another id; statements in the old one go on."""
        self._take_id(self._generation + 1)

    def _take_id(self, generation: int) -> None:
        self._generation = generation
        self.id = str(self._name(generation))
        self._new_epoch()

    def _new_epoch(self) -> None:
        self.epoch += 1
        self._observed = ""

    async def execute(
        self,
        plan: Any,
        operation_id: str,
        timeout_s: float,
        *,
        epoch: int | None = None,
        reads_only: bool = False,
        planned: Planned | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Run a plan (or its bytes) and yield the server's messages; raises EngineError.

        ``epoch``: run it only in the session of that epoch. ``reads_only``: stop it if the caller
        leaves early. ``planned``: see `Queries.query`.
        """
        if epoch is not None and epoch != self.epoch:
            raise EngineError(
                ErrorKind.AVAILABILITY,
                "The session was lost meanwhile",
                error_class=SESSION_CHANGED,
            )
        request = self._request(_base.ExecutePlanRequest, operation_id=operation_id)
        if isinstance(plan, bytes):
            data = replaced_plan(request.SerializeToString(), plan)
        elif isinstance(plan, list):
            data = await by_size(sum(map(len, plan)), b"".join, wire.within(request, "plan", plan))
        else:
            request.plan.CopyFrom(plan)
            data = request.SerializeToString()
        del plan  # large; the request contains it now, and is sent before the first answer
        epoch, begin = self.epoch, partial(self.channel.execute, data)
        answering = self.answer(begin, operation_id, timeout_s, stops=reads_only, planned=planned)
        del data, begin
        async with answering as answer:
            async for response in answer:
                if response is None:
                    raise _unreadable(reads_only=reads_only)
                self._learn(response, epoch)
                yield response

    @contextlib.asynccontextmanager
    async def answer(
        self,
        begin: Callable[[float], Any],
        operation_id: str,
        timeout_s: float,
        *,
        raw: bool = False,
        stops: bool = True,
        planned: Planned | None = None,
    ) -> AsyncIterator[SparkAnswer]:
        """Begin a plan and give its answer; an EngineError comes while the answer is read.

        If the reader leaves early, the statement is stopped on the cluster; without ``stops`` it
        goes on. ``raw``: messages are bytes, and errors as Spark gave them.
        """
        was = copy(self)
        answer = SparkAnswer(begin, timeout_s, self.channel.tasks, planned, raw=raw)
        del begin
        ended = answered = False
        try:
            yield answer
            ended = answered = True
        except grpc.aio.AioRpcError as error:
            explained = channel.relayed(error) if raw else await self._explained(error)
            ended = has_ended(explained)
            raise explained from error
        finally:
            if ended or not stops:
                answer.end(answered=answered)
            else:
                self.stop_soon(operation_id, planned, answer, was)

    async def set_confs(self, pairs: Sequence[tuple[str, str]], *, silent: bool = False) -> None:
        """Set session settings; with ``silent``, settings that cannot be set are ignored."""
        operation = _base.ConfigRequest.Operation()
        operation.set.silent = silent
        for key, value in pairs:
            operation.set.pairs.add(key=key, value=value)
        await self._config(operation)

    async def unset_confs(self, keys: Sequence[str]) -> None:
        """Put session settings back to Spark's own defaults (not to the server's)."""
        operation = _base.ConfigRequest.Operation()
        operation.unset.keys.extend(keys)
        await self._config(operation)

    async def get_confs(self, keys: Sequence[str]) -> Mapping[str, str]:
        """Return the values of session settings by name; EngineError if one has no value."""
        operation = _base.ConfigRequest.Operation()
        operation.get.keys.extend(keys)
        response = await self._config(operation)
        return {pair.key: pair.value for pair in response.pairs}

    async def get_confs_if_any(self, keys: Sequence[str]) -> Mapping[str, str | None]:
        """Return the values of session settings by name; None for a setting without a value."""
        operation = _base.ConfigRequest.Operation()
        operation.get_option.keys.extend(keys)
        response = await self._config(operation)
        return {pair.key: pair.value if pair.HasField("value") else None for pair in response.pairs}

    async def confs_below(self, prefix: str) -> list[str]:
        """Return the names of the session's settings that begin with ``prefix``."""
        operation = _base.ConfigRequest.Operation()
        operation.get_all.prefix = prefix
        response = await self._config(operation)
        return [prefix + pair.key.removeprefix(prefix) for pair in response.pairs]

    async def schema(self, relation: Any) -> Any:
        """Return the schema (a DataType message) of a relation without running it."""
        request = self._request(_base.AnalyzePlanRequest)
        request.schema.plan.root.CopyFrom(relation)
        response = await self._unary("AnalyzePlan", request, self.small_timeout_s)
        return response.schema.schema

    async def interrupt(self, operation_id: str | None = None) -> None:
        """Ask the server to stop one Spark Connect operation; None: all of this session."""
        kinds = _base.InterruptRequest.InterruptType
        request = self._request(_base.InterruptRequest)
        if operation_id is None:
            request.interrupt_type = kinds.INTERRUPT_TYPE_ALL
        else:
            request.interrupt_type = kinds.INTERRUPT_TYPE_OPERATION_ID
            request.operation_id = operation_id
        await self._control("Interrupt", request)

    def stop_soon(
        self,
        operation_id: str,
        planned: Planned | None = None,
        answer: SparkAnswer | None = None,
        was: RemoteSession | None = None,
    ) -> None:
        """Stop a Spark Connect operation in the background: the server may be frozen.

        Spark does not stop a statement after its caller has left. ``planned`` is called if the
        server reports the end; planning does not react to an interrupt. ``answer``: the operation's
        answer, which has no reader any more. ``was``: a copy of this session from before the
        operation began, because this object may have moved to another session since.
        """
        session = was if was is not None and was.epoch != self.epoch else copy(self)
        self.stopping += 1

        async def stop() -> None:
            try:
                await session._stop(operation_id, planned, answer)
            finally:
                self.stopping -= 1

        self.channel.in_background(stop())

    async def _stop(
        self, operation_id: str, planned: Planned | None, answer: SparkAnswer | None
    ) -> None:
        left = True
        try:
            left = answer is None or not await answer.follow(self.channel.closing)
            ended = not left or await self._interrupt_until_ended(operation_id)
            if ended and planned is not None:
                planned(Phase.ENDED)
        finally:
            if answer is not None:
                answer.end(answered=False, left=left)

    async def _interrupt_until_ended(self, operation_id: str) -> bool:
        """Interrupt a Spark Connect operation again and again until it has ended.

        Returns False if the server does not report the end in time. On a busy server an interrupt
        can arrive before the statement has begun.
        """
        end = time.monotonic() + self.channel.limits.interrupt_wait_s
        pauses = Backoff(_POLL_INTERVAL_S, _POLL_INTERVAL_MAX_S)
        while time.monotonic() < end:
            try:
                await self.interrupt(operation_id)
                ended = operation_id in await self._operations(_ENDED)
            except EngineError as error:  # a busy server may answer the next interrupt
                ended = session_lost(error.error_class)
            if ended:
                return True
            await asyncio.sleep(pauses.pause_s())
        return False

    async def move_on(self, ids: int = 1) -> None:
        """End this session on the server, and all its statements; go on in a new session.

        An unfinished request can reach the server after later ones. So a process that does not know
        all unfinished requests ends all statements and has the server drop the session: a late call
        names the old session and is refused. With ``ids``, the sessions under that many ids, from
        the first one on, are ended.
        """
        first, generation, found = (0 if ids > 1 else self._generation), 0, EarlierSession.SPENT
        while generation < ids or (ids > 1 and found is EarlierSession.SPENT):
            self._take_id(first + generation)
            found = await self.interrupt_and_wait()
            if found is EarlierSession.ENDED:
                # This lets the id be used again; the server's default does not.
                request = self._request(
                    _base.ReleaseSessionRequest, observed=False, allow_reconnect=True
                )
                await self._control("ReleaseSession", request)
            generation += 1
        self._take_id(first)

    async def open(self) -> None:
        """Learn the id that the server gave the session; this makes the session if there is none.

        A call that must be refused once the session is gone must come after this one.
        """
        while True:
            epoch = self.epoch
            try:
                await self.get_confs_if_any([_ANY_CONF])
                return
            except EngineError as error:
                # An id that the server dropped because it was idle cannot be used again.
                if not (session_id_spent(error.error_class) and self.renew(error, epoch)):
                    raise

    async def interrupt_and_wait(self) -> EarlierSession:
        """Stop all statements of this session, from any process; return once they have ended."""
        wait_s = self.channel.limits.interrupt_wait_s
        end = time.monotonic() + wait_s
        while True:
            observed = bool(self._observed)
            try:
                await self.interrupt()
                if not await self._operations(_ACTIVE):
                    return EarlierSession.ENDED
            except EngineError as error:
                if not session_lost(error.error_class):
                    raise
                if error.error_class != SESSION_CHANGED:
                    spent = session_id_spent(error.error_class)
                    return EarlierSession.SPENT if spent else EarlierSession.NOTHING
                if observed:
                    self._new_epoch()
                    continue  # another session than the known one: check it, too
            if time.monotonic() >= end:
                raise EngineError(
                    ErrorKind.AVAILABILITY,
                    f"An interrupted statement still runs after {wait_s} s; restart the Spark "
                    "cluster if this stays so.",
                    error_class="STATEMENT_NOT_STOPPED",
                )
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def touch(self) -> None:
        """Make a call so that the server keeps the idle session; an error shows at the next one."""
        with contextlib.suppress(EngineError):
            await self.get_confs_if_any([_ANY_CONF])

    async def release(self) -> None:
        """Drop the session on the server; errors are ignored."""
        request = self._request(_base.ReleaseSessionRequest, observed=False)
        with contextlib.suppress(grpc.aio.AioRpcError, EngineError):
            await self.channel.unary(
                "ReleaseSession", request, self.channel.limits.control_timeout_s
            )

    async def _operations(self, states: frozenset[int]) -> frozenset[str]:
        request = self._request(_base.GetStatusRequest)
        request.operation_status.SetInParent()
        response = await self._control("GetStatus", request)
        return frozenset(
            status.operation_id for status in response.operation_statuses if status.state in states
        )

    async def _config(self, operation: Any) -> Any:
        request = self._request(_base.ConfigRequest, operation=operation)
        return await self._unary("Config", request, self.small_timeout_s)

    async def _control(self, name: str, request: Any) -> Any:
        return await self._unary(name, request, self.channel.limits.control_timeout_s)

    async def _unary(self, name: str, request: Any, timeout_s: float) -> Any:
        epoch = self.epoch
        try:
            response = await self.channel.unary(name, request, timeout_s)
        except grpc.aio.AioRpcError as error:
            raise await self._explained(error) from error
        if response is None:
            raise _unreadable(reads_only=True)
        self._learn(response, epoch)
        return response

    def _learn(self, response: Any, epoch: int) -> None:
        if epoch == self.epoch:
            self._observed = response.server_side_session_id

    def _request(self, message: Any, *, observed: bool = True, **fields: Any) -> Any:
        request = message(session_id=self.id, client_type="haproc", **fields)
        request.user_context.user_id = USER
        if observed and self._observed:
            request.client_observed_server_side_session_id = self._observed
        return request

    async def _explained(self, error: grpc.aio.AioRpcError) -> EngineError:
        """Return a failed call as an EngineError, with details from the server if they matter."""
        failed = channel.decode(error)
        if not failed.wants_details:
            return failed.error()
        request = self._request(_base.FetchErrorDetailsRequest, error_id=failed.error_id)
        try:
            details = await self.channel.unary(
                "FetchErrorDetails", request, self.channel.limits.control_timeout_s
            )
        except grpc.aio.AioRpcError:
            return failed.error()
        return channel.error_with_details(failed, details)


def _unreadable(*, reads_only: bool) -> EngineError:
    """Return the EngineError for an answer that HAProc cannot parse.

    For a query the statement is at fault. A write may be committed: transaction markers show it.
    """
    return EngineError(
        ErrorKind.APPLICATION if reads_only else ErrorKind.ENVIRONMENT,
        "The cluster's answer cannot be read: its type is nested too deep (30 structs at most). "
        "Take the inner fields apart, or turn them into text with to_json.",
        error_class="RESULT_NESTED_TOO_DEEP",
        sqlstate="54000",
    )


def plan_of(statement: Statement) -> Any:
    """Return the plan that runs a statement of any form in one round trip."""
    match statement:
        case SqlText():
            return sql_plan(statement.sql)
        case ArrowRows() if not isinstance(statement, RowsInLog):
            return wire.parsed(_base.Plan, b"".join(placeholder.append_of(statement)))
        case SparkPlan():
            return wire.parsed(_base.Plan, statement.plan)
        case _:
            raise TypeError("rows that wait in the log are fetched by plan_bytes")


async def plan_bytes(statement: Statement) -> bytes | list[Piece]:
    """Return the bytes of the plan that runs a statement; in pieces if it contains rows."""
    match statement:
        case SparkPlan():
            return statement.plan
        case RowsInLog():
            return await _fetched(statement)
        case ArrowRows():
            return await by_size(len(statement.rows), placeholder.append_of, statement)
        case _:
            return bytes(plan_of(statement).SerializeToString())


async def _fetched(statement: RowsInLog) -> list[Piece]:
    """Return the bytes of the plan that appends rows in the log; they are read from the log now."""
    assert statement.fetch is not None, "these are no rows, but what stands for them"
    schema = pa.ipc.read_schema(pa.py_buffer(statement.rows))
    relation = placeholder.RowsRelation(schema, statement.count)
    async with contextlib.aclosing(statement.fetch()) as streams:
        async for stream in streams:
            await asyncio.to_thread(relation.add_stream, stream)
            del stream
    return placeholder.appending(statement.table, await asyncio.to_thread(relation.pieces))
