"""One run of one operation, and the streams in which its client reads it, one after another.

The run goes on even if nobody reads. A small result is held until it is complete: if it fails
before, no response was sent, and the client begins anew elsewhere. Longer results are sent as they
come. The run waits while its client has not read enough of them, and read responses are kept for a
while, since a sent one may not have arrived. Only progress is sent before held responses, if a
statement takes long.
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
"""Rows of this size are counted outside the event loop: it takes a tenth of a millisecond."""


@dataclass(frozen=True, slots=True)
class DeliveryLimits:
    """The limits of kept results: their sizes, their times, their number."""

    hold_bytes: int = 4 << 20
    """A result is held until it is complete, or until it has this size."""
    window_bytes: int = 4 << 20
    """The most bytes by which a run is ahead of its client."""
    retained_bytes: int = 8 << 20
    """Bytes kept of responses that were sent and not released; Spark's own default is 10 MiB."""
    stored_request_bytes_max: int = 1 << 20
    """A longer request is not kept for another HAProc to go on with."""
    stream_bytes_max: int = 1 << 30
    stream_s: float = 120.0
    """A stream that can be reattached ends after this size or this time, as in Spark."""
    progress_after_s: float = 2.0
    """A statement that takes longer shows its progress before it is complete."""
    abandoned_after_s: float = 300.0
    """An operation without a reader is given up after this; Spark's own default."""
    look_interval_s: float = 5.0
    """The interval of checks for operations without a reader."""
    ended_s: float = 1800.0
    """The time for which an ended operation is remembered; Spark's own default."""
    ended_max: int = 10_000
    """The most ended operations that are remembered; Spark's own default."""


@dataclass(frozen=True, slots=True)
class OperationRequest:
    """A request, and ``names``: the serialized fields that each response gets beside its id."""

    key: Key
    request: bytes
    read: RequestRead
    names: bytes


class ConnectOperation:
    """One run of an operation.

    ``keep`` stores what another HAProc needs to go on with the run. It returns the way for that,
    and the text for this way in the responses' ids. ``ended`` is called once the run has ended.
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
        """The run under which the key-value store has its request; None if it has none."""
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
        """Spark's state of an operation that was not released yet."""
        if not self._ended:
            return OperationState.RUNNING
        if self.outcome is OperationState.CANCELLED:
            return OperationState.CANCELLED
        return OperationState.TERMINATING

    @property
    def outcome(self) -> OperationState:
        """Spark's state of a released operation; cancelled, if it still ran at its release."""
        if self._canceled or not self._ended:
            return OperationState.CANCELLED
        return OperationState.SUCCEEDED if self.error is None else OperationState.FAILED

    def start(self, responses: AsyncGenerator[bytes, None]) -> None:
        """Begin to read the run's responses."""
        self._task = asyncio.create_task(self._follow(responses))

    def has(self, index: int) -> bool:
        """True if the responses after this one can be given from here."""
        return self._first <= index + 1 <= self._first + len(self._kept)

    def dropped(self, index: int) -> bool:
        """True if responses after this one were given, and are not kept any more."""
        return index + 1 < self._first

    async def attach(self, after: int = -1) -> AsyncGenerator[bytes, None]:
        """Yield the responses after this index; an older stream ends.

        Raises the error of the run, and RequestError.
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
        """Forget the responses up to this one; unread responses stay."""
        while self._kept and self._first <= index and self._first < self._next_unread:
            self._drop_first()

    def cancel(self) -> bool:
        """Stop the run; its reader gets OPERATION_CANCELED. False if the run has ended already."""
        if self._ended or self._has_all:
            return False
        self._canceled = True
        self._end(canceled())
        if self._task is not None:
            self._task.cancel()
        return True

    def close_unread(self) -> None:
        """Close the operation once it has no reader."""
        self._forgotten = True
        if self.detached_at is not None:
            self.close()

    def close(self) -> None:
        """Stop the run and forget all responses; an open stream ends."""
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
        """Wait until the run has ended, on Spark too."""
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
        """Return the client's part of the run's next response.

        Rows are not counted while all responses fit into ids: then the client's position is not
        needed.
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

        If the responses behind one are short, the id of that one contains them.
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
        """Forget the request, which may be long, once it is in ids or in the store."""
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
        """Give a response once the client has read enough of those before it."""
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
        """Note that the client has read all responses up to this index, on any stream."""
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
        """Wait for any change; without a deadline for ever."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._news.wait()


def _to_keep(error: Exception) -> Exception:
    """Return an error without its frames; an unexpected error keeps them, to be logged."""
    return without_frames(error) if isinstance(error, RequestError | EngineError) else error


def _size(held: Sequence[Followed]) -> int:
    return sum(len(each.response) for each in held)
