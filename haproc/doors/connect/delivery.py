"""Delivers the responses of Spark Connect operations to clients, also when a connection breaks.

A Spark Connect operation begins with the call ExecutePlan: a relayed query, or a write that waits
for its answer. It runs in its own task (`operation.py`). Its client reads the responses on any
connection, until the client releases the operation, or stays away for a time. Ended operations are
remembered as in Spark, and errors about operations are Spark's (`errors.py`).

A client may go on after a response that another HAProc sent, or this HAProc before its Spark died.
The id of that response (`responses.py`) is enough: the request runs again in the client's session,
and the responses that the client has are skipped. A request that is too long for an id is put into
the key-value store before the first response is sent, unless the result is small:
`running/USER/SESSION/OPERATION`. The process that put it last deletes it at the operation's end.

If a run fails because its cluster is away, it is forgotten at once, and its stream ends with that
error. So the client repeats the request, here or at the next HAProc.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from dmq.key_value import KeyValueStore
from dmq.log import LogError
from haproc.config.shares import Shares
from haproc.doors.connect.errors import (
    Key,
    OperationState,
    abandoned,
    already_exists,
    lost,
    not_found,
    not_reattachable,
    position_not_found,
)
from haproc.doors.connect.operation import ConnectOperation, DeliveryLimits, OperationRequest
from haproc.doors.connect.responses import (
    REQUEST_BYTES_MAX,
    START,
    RequestRead,
    ResponseId,
    ResultPosition,
    Way,
    packed,
    read_id,
    read_request,
    responses_of,
)
from haproc.engine.errors import EngineError, ErrorKind
from haproc.failure import FailureKind, RequestError, busy

_LOG = logging.getLogger(__name__)

Source = Callable[[bytes], AsyncGenerator[bytes, None]]
"""Runs a serialized ExecutePlanRequest and yields serialized ExecutePlanResponses, as Spark sent
them, with all checks of the door. The user and session are those of the operation's `Key`, whatever
the request contains. Closing it early stops the statement on Spark."""

RUNNING: Final = "running/"
_STORED: Final = struct.Struct("<BQ8s")
"""The head of a stored request: a version, the time in seconds, the id of the storing run."""
_STORED_S_MAX: Final = 86_400.0
"""A stored request that is older was left by a HAProc that died, and its client never came back."""
_STORE_LOOK_INTERVAL_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class _Ended:
    """What is remembered of a Spark Connect operation that was released or given up."""

    state: OperationState
    abandoned: bool
    run: bytes
    at: float


class Deliveries:
    """The Spark Connect operations at one HAProc. Used from one event loop."""

    def __init__(
        self,
        store: KeyValueStore,
        limits: DeliveryLimits,
        *,
        memory: Shares,
        operations: Shares,
        goes_on: Callable[[Key], bool],
        take_back: Callable[[Key], Awaitable[bool]],
    ) -> None:
        """``memory`` limits the bytes of responses, ``operations`` the unreleased operations.

        ``goes_on``: True if an operation cannot be stopped any more, such as a write that may be in
        the log. ``take_back``: revoke an operation's writes; True if that succeeded.
        """
        self._store = store
        self._limits = limits
        self._memory = memory
        self._shares = operations
        self._goes_on = goes_on
        self._take_back = take_back
        self._operations: dict[Key, ConnectOperation] = {}
        self._ended: OrderedDict[Key, _Ended] = OrderedDict()
        self._sought: OrderedDict[Key, None] = OrderedDict()
        self._background: set[asyncio.Task[None]] = set()
        self._looks: asyncio.Task[None] | None = None
        self._clock = time.monotonic
        self.resumed = 0
        """The number of results that broke off, and that a new run of the request continued."""

    @property
    def kept(self) -> int:
        """The number of Spark Connect operations that run, or are not released yet."""
        return len(self._operations)

    async def deliver_responses(
        self, key: Key, request: bytes, source: Source, *, names: bytes = b""
    ) -> AsyncGenerator[bytes, None]:
        """Run the ExecutePlanRequest ``request``; yield its responses, each with an id.

        ``names``: serialized fields of ExecutePlanResponse that are added to each response. As in
        Spark, a request with the id and plan of a running operation reads that operation's
        responses. Raises the errors of ``source``, RequestError, and ValueError for an invalid
        request.
        """
        read = read_request(request)
        known = self._operations.get(key)
        if known is not None:
            if not (read.reattachable and known.requested.read.plan_hash == read.plan_hash):
                raise already_exists(key.operation_id)
            operation = known
        elif self._remembered(key) is not None:
            raise abandoned(key.operation_id)
        else:
            operation = self._begin(OperationRequest(key, request, read, names), source(request))
        async with contextlib.aclosing(operation.attach()) as responses:
            try:
                async for response in responses:
                    yield response
            finally:
                if not read.reattachable:
                    self._remove(operation)

    async def reattach(
        self, key: Key, last_response_id: str | None, source: Source, *, names: bytes = b""
    ) -> AsyncGenerator[bytes, None]:
        """Yield the responses after the one with ``last_response_id``; None: all.

        ``source`` runs the request again if this HAProc cannot give them otherwise. Raises the
        errors of ``source``, and RequestError: Spark's for the cases that Spark knows, RESULT_LOST
        or RESULT_CHANGED if a result cannot be continued.
        """
        operation, after = self._place(key, last_response_id)
        if operation is None:
            assert last_response_id is not None
            operation = await self._resume(key, last_response_id, source, names)
        async with contextlib.aclosing(operation.attach(after)) as responses:
            async for response in responses:
                yield response

    def was_sought(self, key: Key) -> bool:
        """True if a client asked for this Spark Connect operation here, and it was not here.

        If a client begins such an operation now, it has sent it before, perhaps to another HAProc.
        """
        return key in self._sought

    def release(self, key: Key, until: str | None = None) -> bool:
        """Forget the responses up to the id ``until``; None: the whole operation.

        Returns False if the operation was not here. Raises RequestError if the operation cannot be
        reattached, or ``until`` is no response's id.
        """
        operation = self._operations.get(key)
        if operation is None:
            return False
        if not operation.requested.read.reattachable:
            raise not_reattachable()
        if until is None:
            self._remove(operation)
            return True
        read = read_id(until)
        if read is None:
            raise position_not_found(until)
        if read.run == operation.run:
            operation.release(read.index)
        return True

    def status(
        self, user: str, session_id: str, operation_ids: Sequence[str] = ()
    ) -> dict[str, OperationState]:
        """Return the states of these Spark Connect operations; no ids: all of the session."""
        wanted = operation_ids or [
            key.operation_id
            for key in (*self._operations, *self._ended)
            if (key.user, key.session_id) == (user, session_id)
        ]
        return {each: self._state(Key(user, session_id, each)) for each in wanted}

    async def interrupt(
        self, user: str, session_id: str, *, operation_id: str | None = None, tag: str | None = None
    ) -> list[str]:
        """Stop the Spark Connect operation with this id, those with ``tag``, or all of the session.

        Returns the ids of those that were stopped. A write is revoked if that is still possible;
        if not, it goes on, and its client receives its outcome.
        """
        wanted = [
            (key, operation)
            for key, operation in list(self._operations.items())
            if (key.user, key.session_id) == (user, session_id)
            and operation_id in (None, key.operation_id)
            and (tag is None or tag in operation.requested.read.tags)
        ]
        stopped = await asyncio.gather(*(self._stopped(*each) for each in wanted))
        return [key.operation_id for (key, _), each in zip(wanted, stopped, strict=True) if each]

    async def _stopped(self, key: Key, operation: ConnectOperation) -> bool:
        if operation.state is OperationState.RUNNING and self._goes_on(key):
            return await self._take_back(key)
        return operation.cancel()

    def close_session(self, user: str, session_id: str) -> None:
        """Give up all Spark Connect operations of a session that its client has closed."""
        for key, operation in list(self._operations.items()):
            if (key.user, key.session_id) == (user, session_id):
                self._remove(operation, was_abandoned=True)

    async def aclose(self) -> None:
        """Stop all Spark Connect operations; their requests stay in the store for other HAProcs."""
        operations = list(self._operations.values())
        self._operations.clear()
        if self._looks is not None:
            self._looks.cancel()
        for operation in operations:
            operation.close()
        await asyncio.gather(*(each.closed() for each in operations), *self._background)

    def _begin(
        self,
        requested: OperationRequest,
        responses: AsyncGenerator[bytes, None],
        start: ResultPosition = START,
        resumed_from: str = "",
    ) -> ConnectOperation:
        if self._shares.take(requested.key.user) is not None:
            raise busy("too many operations are under way, or were not released by their clients")
        if self._looks is None:
            self._looks = asyncio.create_task(self._look_after())
        operation = ConnectOperation(
            requested,
            start=start,
            resumed_from=resumed_from,
            limits=self._limits,
            memory=self._memory,
            keep=self._keep,
            ended=self._when_ended,
        )
        self._operations[requested.key] = operation
        operation.start(responses)
        return operation

    def _when_ended(self, operation: ConnectOperation) -> None:
        """Forget a run that failed as its cluster went away: its client repeats the request."""
        if operation.error is not None and _client_repeats(operation.error):
            self._forget(operation)
            operation.close_unread()

    def _remove(self, operation: ConnectOperation, *, was_abandoned: bool = False) -> None:
        if not self._forget(operation):
            return
        key = operation.requested.key
        untold = operation.state is OperationState.RUNNING and self._goes_on(key)
        state = OperationState.UNKNOWN if untold else operation.outcome
        self._ended[key] = _Ended(state, was_abandoned, operation.run, self._clock())
        while len(self._ended) > self._limits.ended_max:
            self._ended.popitem(last=False)
        operation.close()
        if operation.stored is not None:
            self._in_background(self._delete(key, operation.stored))

    def _forget(self, operation: ConnectOperation) -> bool:
        key = operation.requested.key
        if self._operations.get(key) is not operation:
            return False
        del self._operations[key]
        self._shares.give_back(key.user)
        return True

    def _place(self, key: Key, last: str | None) -> tuple[ConnectOperation | None, int]:
        """Return the operation from which the client can go on, and the index of its last response.

        None in place of the operation: a new run of the request has to begin. Raises RequestError.
        """
        read = read_id(last) if last is not None else None
        operation = self._operations.get(key)
        if operation is None:
            ended = self._remembered(key)
            if read is None or (ended is not None and ended.run == read.run):
                self._note_sought(key)
                gone = abandoned if ended is not None and ended.abandoned else not_found
                raise gone(key.operation_id)
            return None, -1
        if not operation.requested.read.reattachable:
            raise not_reattachable()
        if last is None or last == operation.resumed_from:
            return operation, -1
        if read is None:
            raise position_not_found(last)
        if read.run != operation.run or operation.dropped(read.index):
            return None, -1
        if not operation.has(read.index):
            raise position_not_found(last)
        return operation, read.index

    def _note_sought(self, key: Key) -> None:
        self._sought[key] = None
        while len(self._sought) > self._limits.ended_max:
            self._sought.popitem(last=False)

    async def _resume(self, key: Key, last: str, source: Source, names: bytes) -> ConnectOperation:
        """Begin a run that continues after the response with id ``last``; return its operation."""
        read = read_id(last)
        assert read is not None
        if read.way is Way.TAIL:
            responses = _each(_tail(last, read))
            requested = OperationRequest(key, b"", RequestRead(reattachable=True), names)
            operation = self._replacing(requested, responses, START, last)
            self._in_background(self._delete(key))  # not needed any more
        else:
            request = await self._request(key, read)
            found = self._operations.get(key)
            if found is not None and found.resumed_from == last:
                return found  # the client came twice meanwhile
            requested = OperationRequest(key, request, _own(key, request), names)
            operation = self._replacing(requested, source(request), read.position, last)
            if read.way is Way.STORED:
                await self._put(operation)
        self.resumed += 1
        _LOG.info("operation %s goes on behind row %d", key.operation_id, read.position.rows)
        return operation

    def _replacing(
        self,
        requested: OperationRequest,
        responses: AsyncGenerator[bytes, None],
        start: ResultPosition,
        last: str,
    ) -> ConnectOperation:
        older = self._operations.get(requested.key)
        if older is not None:
            self._forget(older)
            older.close()
        return self._begin(requested, responses, start, last)

    async def _request(self, key: Key, read: ResponseId) -> bytes:
        """Return the request that a response's id leads to; raises RESULT_LOST if there is none."""
        if read.way is Way.REQUEST:
            return read.rest
        if read.way is Way.NOTHING:
            raise lost("its request was too large to be kept, or its rows cannot be compared")
        kept = await self._store.get(_stored_key(key))
        if kept is None:
            raise lost("its request is not kept any more")
        return bytes(kept.value[_STORED.size :])

    async def _keep(self, operation: ConnectOperation) -> tuple[Way, str]:
        """Let another HAProc get a run's request: from responses' ids, or the key-value store.

        Returns the way by which it gets it, and the text that the ids of the responses need for
        this way.
        """
        request = operation.requested.request
        if not (operation.requested.read.reattachable and request):
            return Way.NOTHING, ""
        if len(request) <= 16 * REQUEST_BYTES_MAX:
            text = packed(request)
            if len(text) <= REQUEST_BYTES_MAX:
                return Way.REQUEST, text
        if operation.stored is not None or await self._put(operation):
            return Way.STORED, ""
        return Way.NOTHING, ""

    async def _put(self, operation: ConnectOperation) -> bool:
        request = operation.requested.request
        if len(request) > self._limits.stored_request_bytes_max:
            return False
        try:
            value = _STORED.pack(1, int(time.time()), operation.run) + request
            await self._store.put(_stored_key(operation.requested.key), value)
        except (LogError, ValueError) as error:
            _LOG.warning("a query is not kept for others to go on with: %s", error)
            return False
        operation.stored = operation.run
        return True

    async def _delete(self, key: Key, put_by: bytes | None = None) -> None:
        """Delete the stored request; with ``put_by`` only if the run of this id stored it last."""
        name = _stored_key(key)
        with contextlib.suppress(LogError, ValueError):
            kept = await self._store.get(name)
            if kept is not None and put_by in (None, _STORED.unpack_from(kept.value)[2]):
                await self._store.delete(name)

    def _state(self, key: Key) -> OperationState:
        if (operation := self._operations.get(key)) is not None:
            return operation.state
        ended = self._remembered(key)
        return ended.state if ended is not None else OperationState.UNKNOWN

    def _remembered(self, key: Key) -> _Ended | None:
        ended = self._ended.get(key)
        if ended is None or self._clock() - ended.at > self._limits.ended_s:
            return None
        return ended

    async def _look_after(self) -> None:
        """Give up operations without readers; delete stored requests that dead HAProcs left."""
        store_at = self._clock() + _STORE_LOOK_INTERVAL_S
        while True:
            await asyncio.sleep(self._limits.look_interval_s)
            now = asyncio.get_running_loop().time()
            for operation in list(self._operations.values()):
                since = operation.detached_at
                if since is not None and now - since > self._limits.abandoned_after_s:
                    self._remove(operation, was_abandoned=True)
            if self._clock() >= store_at:
                store_at = self._clock() + _STORE_LOOK_INTERVAL_S
                await self._clear_store()

    async def _clear_store(self) -> None:
        with contextlib.suppress(LogError):
            for name in await self._store.keys(RUNNING):
                kept = await self._store.get(name)
                if kept is None:
                    continue
                _, stored_s, _ = _STORED.unpack_from(kept.value)
                if time.time() - stored_s > _STORED_S_MAX:
                    await self._store.delete(name)

    def _in_background(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _client_repeats(error: Exception) -> bool:
    """True if clients repeat a request, here or at another HAProc, when they receive this error."""
    if isinstance(error, RequestError):
        return error.kind is FailureKind.AVAILABILITY
    return not isinstance(error, EngineError) or error.kind is not ErrorKind.APPLICATION


def _own(key: Key, request: bytes) -> RequestRead:
    """Read the request that a response's id gave; RESULT_LOST if it is another operation's."""
    try:
        read = read_request(request)
    except ValueError as error:
        raise lost("its id holds no request") from error
    if (read.session_id, read.operation_id) != (key.session_id, key.operation_id):
        raise lost("its id holds the request of another operation")
    return read


def _tail(last: str, read: ResponseId) -> list[bytes]:
    try:
        return responses_of(read.rest)
    except ValueError as error:
        raise position_not_found(last) from error


async def _each(responses: Sequence[bytes]) -> AsyncGenerator[bytes, None]:
    for response in responses:
        yield response


def _stored_key(key: Key) -> str:
    parts = (key.user, key.session_id, key.operation_id)
    return RUNNING + "/".join(quote(part, safe="") for part in parts)
