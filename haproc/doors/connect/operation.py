"""One run of a Spark Connect operation, and the streams by which its client reads it in turn.

The run goes on even if nobody reads. A small result is held until it is complete: if the run fails
before, no response was sent, and the client can begin again at another HAProc. A longer result is
sent as it comes. The run waits while its client has not read enough responses. Responses that were
read are kept for a while, since a sent one may not have arrived. If a statement takes long, its
progress is sent before the held responses.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from haproc.config.shares import Shares
from haproc.doors.connect.errors import Key, OperationState, canceled, disconnected, not_available
from haproc.doors.connect.responses import (
    COMPLETE,
    START,
    TAIL_BYTES_MAX,
    Followed,
    Following,
    Kind,
    RequestRead,
    ResultPosition,
    Way,
    id_text,
    merged,
    packed,
    seen,
    tail_of,
)
from haproc.engine.errors import EngineError
from haproc.engine.rewriting import response_id
from haproc.failure import RequestError, without_frames

_THREAD_BYTES = 64 << 10
"""Rows of this size or more are counted outside the event loop, as this takes 0.1 ms or more."""


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """The limits of Spark Connect operations and their kept responses: sizes, times, numbers."""

    hold_bytes: int = 4 << 20
    """A result is held back until it is complete, or until it has this size."""
    window_bytes: int = 4 << 20
    """The most bytes that a run may produce before its client has read them."""
    retained_bytes: int = 8 << 20
    """The most bytes kept of read responses that were not released; Spark's default is 10 MiB."""
    stored_request_bytes_max: int = 1 << 20
    """A longer request is not put into the key-value store, so no other HAProc can continue it."""
    stream_bytes_max: int = 1 << 30
    stream_s: float = 120.0
    """A reattachable stream ends after `stream_bytes_max` or after this time, as in Spark."""
    progress_after_s: float = 2.0
    """If a statement takes longer, its progress is sent before its result is complete."""
    abandoned_after_s: float = 300.0
    """An operation that no stream has read for this time is given up; Spark's own default."""
    look_interval_s: float = 5.0
    """The time between two searches for operations that nobody reads."""
    ended_s: float = 1800.0
    """How long an ended Spark Connect operation is remembered; Spark's own default."""
    ended_max: int = 10_000
    """The most ended Spark Connect operations that are remembered; Spark's own default."""


@dataclass(frozen=True, slots=True)
class OperationRequest:
    """A client's request. ``names``: the serialized fields that are added to each response."""

    key: Key
    request: bytes
    read: RequestRead
    names: bytes


class ConnectOperation:
    """One run of a Spark Connect operation.

    ``keep`` makes sure that another HAProc can get the request of the run. It returns the way by
    which it gets it, and the text that the ids of the responses need for this way. ``ended`` is
    called once the run has ended.
    """

    def __init__(
        self,
        requested: OperationRequest,
        *,
        start: ResultPosition,
        resumed_from: str,
        limits: DeliveryLimits,
        memory: Shares,
        keep: Callable[[ConnectOperation], Awaitable[tuple[Way, str]]],
        ended: Callable[[ConnectOperation], None],
    ) -> None:
        self.requested = requested
        self.resumed_from = resumed_from
        self.run = os.urandom(8)
        self.error: Exception | None = None
        self.stored: bytes | None = None
        """The id of the run that put the request into the key-value store; None: not there."""
        self._limits = limits
        self._memory = memory
        self._user = requested.key.user
        self._keep = keep
        self._when_ended = ended
        self._start = start
        self._following = Following(start)
        self._fits_ids = start == START
        self._way: tuple[Way, str] | None = None
        self._held: list[Followed] | None = []
        self._held_bytes = 0
        self._kept: deque[bytes] = deque()
        self._first = 0  # the index of the first kept response
        self._next_unread = 0
        self._unread_bytes = 0
        self._read_bytes = 0
        self._complete = False
        self._ended = False
        self._has_all = False
        self._canceled = False
        self._closed = False
        self._forgotten = False
        self._stream = 0
        self._news = asyncio.Event()
        self._clock = asyncio.get_running_loop().time
        self._begun_at = self._clock()
        self.detached_at: float | None = self._begun_at
        self._task: asyncio.Task[None] | None = None
        memory.count(requested.key.user, len(requested.request))

    @property
    def state(self) -> OperationState:
        """The state that Spark would report while the client has not released the operation."""
        if not self._ended:
            return OperationState.RUNNING
        if self.outcome is OperationState.CANCELLED:
            return OperationState.CANCELLED
        return OperationState.TERMINATING

    @property
    def outcome(self) -> OperationState:
        """The state that Spark would report after a release now; CANCELLED if it still runs."""
        if self._canceled or not self._ended:
            return OperationState.CANCELLED
        return OperationState.SUCCEEDED if self.error is None else OperationState.FAILED

    def start(self, responses: AsyncGenerator[bytes, None]) -> None:
        """Start the task that reads ``responses``."""
        self._task = asyncio.create_task(self._follow(responses))

    def has(self, index: int) -> bool:
        """True if this run has kept all its responses after the one with this index."""
        return self._first <= index + 1 <= self._first + len(self._kept)

    def dropped(self, index: int) -> bool:
        """True if a response after this index was given to the client, and is not kept any more."""
        return index + 1 < self._first

    async def attach(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """Yield the responses after the index ``after``; the stream that read them before ends.

        Raises the error with which the run failed, and RequestError.
        """
        self._stream += 1
        mine, index, sent = self._stream, after + 1, 0
        reattachable = self.requested.read.reattachable
        deadline = self._clock() + self._limits.stream_s if reattachable else None
        self.detached_at = None
        self._was_read(after)
        self._notify()
        try:
            while not (self._ended and index >= self._first + len(self._kept)):
                if mine != self._stream:
                    raise disconnected()
                if index < self._first:
                    raise not_available(index)
                if deadline is not None and (
                    sent >= self._limits.stream_bytes_max or self._clock() >= deadline
                ):
                    return
                if index >= self._first + len(self._kept):
                    await self._wait(deadline)
                    continue
                message = self._kept[index - self._first]
                yield message
                sent += len(message)
                self._was_read(index)
                index += 1
            if self.error is not None:
                raise _to_keep(self.error)
        finally:
            if mine == self._stream:
                self.detached_at = self._clock()
                if self._forgotten:
                    self.close()

    def release(self, index: int) -> None:
        """Forget the responses up to this index, except those that the client has not read."""
        while self._kept and self._first <= index and self._first < self._next_unread:
            self._drop_first()

    def cancel(self) -> bool:
        """Stop the run; its client gets OPERATION_CANCELED. False if it has ended already."""
        if self._ended or self._has_all:
            return False
        self._canceled = True
        self._end(canceled())
        if self._task is not None:
            self._task.cancel()
        return True

    def close_unread(self) -> None:
        """Close the operation as soon as no stream reads it."""
        self._forgotten = True
        if self.detached_at is not None:
            self.close()

    def close(self) -> None:
        """Stop the run and forget all responses; a stream that still reads ends."""
        self._stream += 1
        self._closed = True
        if self._task is not None:
            self._task.cancel()
        while self._kept:
            self._drop_first()
        self._let_go_of_held()
        self._let_go_of_request()
        self._notify()

    async def closed(self) -> None:
        """Wait until the run has ended, in Spark as well."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self, responses: AsyncGenerator[bytes, None]) -> None:
        try:
            async with contextlib.aclosing(responses):
                async for response in responses:
                    await self._take(response)
            self._has_all = True
            if self.requested.read.reattachable and not self._complete:
                await self._take(COMPLETE)
            await self._give_held()
        except Exception as error:
            self._end(_to_keep(error))
        else:
            self._end(None)

    async def _followed(self, response: bytes) -> list[Followed]:
        """Return what the client needs of the run's next response.

        Rows are not counted as long as all responses together fit into a response's id: then nobody
        needs to know the client's position.
        """
        if self._fits_ids:
            if self._held_bytes + len(response) <= TAIL_BYTES_MAX:
                looked = seen(response)
                return [Followed(looked.kind, response, self._start, looked.beside)]
            self._fits_ids = False
            before, self._held = self._let_go_of_held(), []
            for each in before:
                await self._take(each.response)
        if len(response) > _THREAD_BYTES:
            return await asyncio.to_thread(self._following.take, response)
        return self._following.take(response)

    async def _take(self, response: bytes) -> None:
        for each in await self._followed(response):
            self._complete = self._complete or each.kind is Kind.COMPLETE
            if self._held is None:
                await self._give_streamed(each)
            elif each.kind is Kind.PROGRESS:
                # Clients send a call for each response that they got. A client that gets the whole
                # result soon does not need progress.
                if self._late:
                    await self._find_way()
                    self._give(replace(each, position=self._start))
            else:
                await self._hold(each)

    @property
    def _late(self) -> bool:
        return self._clock() - self._begun_at >= self._limits.progress_after_s

    async def _hold(self, followed: Followed) -> None:
        assert self._held is not None
        size = len(followed.response)
        self._held.append(followed)
        self._held_bytes += size
        denied = self._memory.denied(self._user, size)
        self._memory.count(self._user, size)
        if self._fits_ids or (denied is None and self._held_bytes <= self._limits.hold_bytes):
            return
        await self._find_way()
        for each in self._let_go_of_held():
            self._give(each)

    async def _give_held(self) -> None:
        """Give the client all held responses of a complete result.

        If the responses after one are short, its id contains them.
        """
        if _size(self._held[1:] if self._held else []) > TAIL_BYTES_MAX:
            await self._find_way()
        held = merged(self._let_go_of_held())
        for index, each in enumerate(held):
            rest = [one for one in held[index + 1 :] if one.kind is not Kind.PROGRESS]
            if _size(rest) <= TAIL_BYTES_MAX:
                self._give(each, (Way.TAIL, packed(tail_of([one.response for one in rest]))))
            else:
                self._give(each)

    def _let_go_of_request(self) -> None:
        """Forget the request, which may be long, when it is not needed in memory any more."""
        self._memory.give_back(self._user, len(self.requested.request))
        self.requested = replace(self.requested, request=b"")

    def _let_go_of_held(self) -> list[Followed]:
        held, self._held = self._held or [], None
        self._memory.give_back(self._user, self._held_bytes)
        self._held_bytes = 0
        return held

    async def _find_way(self) -> None:
        if self._way is None:
            self._way = await self._keep(self)
            self._let_go_of_request()

    async def _give_streamed(self, followed: Followed) -> None:
        """Give the client a response, once it has read enough of the responses before this one."""
        size = len(followed.response)
        while self._unread_bytes and (
            self._unread_bytes + size > self._limits.window_bytes
            or self._memory.denied(self._user, size)
        ):
            await self._wait(None)
        self._give(followed)

    def _give(self, followed: Followed, way: tuple[Way, str] | None = None) -> None:
        if self._closed:
            return
        kind, rest = way or self._way or (Way.NOTHING, "")
        if followed.position is None and kind is not Way.TAIL:
            kind, rest = Way.NOTHING, ""
        index = self._first + len(self._kept)
        id_ = id_text(self.run, index, followed.position or self._start, kind, rest)
        message = b"".join((followed.response, self.requested.names, response_id(id_)))
        self._kept.append(message)
        self._unread_bytes += len(message)
        self._memory.count(self._user, len(message))
        self._notify()

    def _was_read(self, index: int) -> None:
        """Note that the client has read all responses up to this index, in any of its streams."""
        if self._closed or index < self._next_unread:
            return
        for each in range(self._next_unread, index + 1):
            size = len(self._kept[each - self._first])
            self._unread_bytes -= size
            self._read_bytes += size
        self._next_unread = index + 1
        while self._read_bytes > self._limits.retained_bytes:
            self._drop_first()
        self._notify()

    def _drop_first(self) -> None:
        size = len(self._kept.popleft())
        if self._first < self._next_unread:
            self._read_bytes -= size
        else:
            self._unread_bytes -= size
        self._first += 1
        self._memory.give_back(self._user, size)

    def _end(self, error: Exception | None) -> None:
        if self._ended:
            return
        self._ended = True
        self.error = error
        self._let_go_of_held()
        self._let_go_of_request()
        self._notify()
        self._when_ended(self)

    def _notify(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _wait(self, deadline: float | None) -> None:
        """Wait until anything changes, or until ``deadline``; None: no deadline."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._news.wait()


def _to_keep(error: Exception) -> Exception:
    """Return the error without its stack frames; an unexpected error keeps them, for the log."""
    return without_frames(error) if isinstance(error, RequestError | EngineError) else error


def _size(held: Sequence[Followed]) -> int:
    return sum(len(each.response) for each in held)
