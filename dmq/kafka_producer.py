"""Appends to a topic, in groups.

A single append is sent at once. While `GROUPS_IN_FLIGHT_MAX` groups are being sent, further appends
are queued, and all of them form the next group. Between the event loop and the thread of the
producer there is one hand-over for each group and one back, not one for each record.

Kafka's idempotent producer stores a repeated message once and in order. Only after a timeout it is
unknown if a record is stored. A group that fails or runs out of time ends its producer, too:
kafka-python 3.0.12 never sends again after a request to a broker that hung.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice, repeat
from operator import attrgetter
from queue import SimpleQueue
from typing import Any, Final

from dmq.kafka_clients import Clients, close_quietly, deliver
from dmq.log import LogError, LogUnavailableError

GROUPS_IN_FLIGHT_MAX: Final = 2
"""One group on its way to the broker, and one that waits in the producer for its turn."""
GROUP_BYTES_MAX: Final = 32 << 20
_EXCEPTION: Final = attrgetter("exception")
PENDING_BYTES_MAX: Final = 256 << 20
"""The most bytes of appends that wait to be sent; further appends are refused."""

_logger = logging.getLogger("dmq")


@dataclass(slots=True, eq=False)
class _Append:
    values: Sequence[bytes]
    keys: Sequence[bytes] | None
    partition: int
    size_bytes: int
    answer: asyncio.Future[list[int]]
    deadline: float
    group: _Group | None = None


@dataclass(slots=True, eq=False)
class _Group:
    appends: list[_Append]
    futures: list[Any] = field(default_factory=list)
    """kafka-python's futures, one for each value that was sent, in the order of the values."""
    failure: Exception | None = None
    """The reason why only a part of the group's values was sent; None if all were sent."""
    over: bool = False
    """True if the group's end is known, or its time is over so that no task waits for it."""


class Appender:
    """Appends to the topic for one handle.

    ``on_stored`` is called with the (offset, value) of stored values that have no key.
    """

    def __init__(
        self, clients: Clients, on_stored: Callable[[list[tuple[int, bytes]]], None]
    ) -> None:
        self._clients = clients
        self._on_stored = on_stored
        self._loop = asyncio.get_running_loop()
        self._pending: deque[_Append] = deque()
        self._pending_bytes = 0
        self._unanswered: deque[_Append] = deque()
        """The appends in the order of their deadlines; some of the first may have ended already."""
        self._timer: asyncio.TimerHandle | None = None
        self._in_flight = 0
        self._flush_due = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._groups: SimpleQueue[_Group | None] = SimpleQueue()
        self._producer: Any = None
        self._broken = False
        self._thread = threading.Thread(target=self._run, name="dmq-kafka-append", daemon=True)

    def start(self) -> None:
        """Make the producer and start its thread. Blocks; raises LogError."""
        self._connect()
        self._thread.start()

    async def append(
        self, values: Sequence[bytes], keys: Sequence[bytes] | None = None, partition: int = 0
    ) -> list[int]:
        """Store the values in the partition, in order; return their offsets.

        With ``keys`` an empty value deletes the value under its key. Raises LogUnavailableError if
        they are not stored in time: then it is unknown if they will be.
        """
        if self._pending_bytes > PENDING_BYTES_MAX:
            raise LogUnavailableError(
                f"{len(self._pending)} appends already wait for the log: it is slower than they "
                "come"
            )
        answer: asyncio.Future[list[int]] = self._loop.create_future()
        deadline = self._loop.time() + self._clients.options.append_timeout_s
        append = _Append(values, keys, partition, sum(map(len, values)), answer, deadline)
        self._pending.append(append)
        self._pending_bytes += append.size_bytes
        self._idle.clear()
        self._unanswered.append(append)
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._expire)
        self._flush_soon()
        return await answer

    async def finish(self) -> None:
        """Wait until all appends have ended."""
        await self._idle.wait()

    def stop(self) -> None:
        """Let the producer's thread close the producer and end."""
        self._groups.put(None)

    def _expire(self) -> None:
        """Fail the appends whose time is over; set the timer for the next deadline."""
        self._timer = None
        now = self._loop.time()
        while self._unanswered:
            append = self._unanswered[0]
            if not append.answer.done():
                if append.deadline > now:
                    self._timer = self._loop.call_at(append.deadline, self._expire)
                    return
                self._time_over(append)
            self._unanswered.popleft()

    def _time_over(self, append: _Append) -> None:
        append.answer.set_exception(
            LogUnavailableError(
                f"the append to topic {self._clients.topic} at "
                f"{', '.join(self._clients.servers)} was not acknowledged within "
                f"{self._clients.options.append_timeout_s:g} s"
            )
        )
        group = append.group
        if group is not None and not group.over:
            group.over = True
            self._broken = True
            self._in_flight -= 1
        self._flush_soon()

    def _flush_soon(self) -> None:
        # In the loop's next turn: all appends of this turn share a group.
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        while self._pending and self._in_flight < GROUPS_IN_FLIGHT_MAX:
            if group := self._take_group():
                self._in_flight += 1
                self._groups.put(group)
        if not self._pending and not self._in_flight:
            self._idle.set()

    def _take_group(self) -> _Group | None:
        """Take waiting appends, up to a size limit, as a group; None if there are none.

        Appends whose callers have given up are dropped.
        """
        taken: list[_Append] = []
        size = 0
        while self._pending:
            append = self._pending[0]
            if not append.answer.done():
                size += append.size_bytes
                if taken and size > GROUP_BYTES_MAX:
                    break
                taken.append(append)
            self._pending.popleft()
            self._pending_bytes -= append.size_bytes
        if not taken:
            return None
        group = _Group(taken)
        for append in taken:
            append.group = group
        return group

    def _finished(self, group: _Group) -> None:
        if not group.over:
            self._in_flight -= 1
            group.over = True
        stored: list[tuple[int, bytes]] = []
        futures = iter(group.futures)
        for append in group.appends:
            own = list(islice(futures, len(append.values)))
            failed = len(own) < len(append.values) or any(map(_EXCEPTION, own))
            if failed:
                self._broken = True
                if not append.answer.done():
                    append.answer.set_exception(self._failure(group, own))
                continue
            offsets = [future.value.offset for future in own]
            if append.keys is None:
                stored += zip(offsets, append.values, strict=True)
            if not append.answer.done():
                append.answer.set_result(offsets)
        while self._unanswered and self._unanswered[0].answer.done():
            self._unanswered.popleft()
        self._on_stored(stored)
        self._flush()

    def _failure(self, group: _Group, futures: list[Any]) -> LogError:
        errors = [future.exception for future in futures if future.failed()]
        error = errors[0] if errors else group.failure
        assert error is not None
        failure = self._clients.error(error, f"the append to topic {self._clients.topic} failed")
        some = any(future.succeeded() for future in futures)
        if some and not isinstance(failure, LogUnavailableError):
            return LogUnavailableError(f"only a part was appended: {failure}")
        return failure

    # -- on the thread ---------------------------------------------------------------------

    def _run(self) -> None:
        while (group := self._groups.get()) is not None:
            self._send(group)
        if self._producer is not None:
            close_quietly(self._producer, timeout=1.0)

    def _connect(self) -> None:
        try:
            self._producer = self._clients.producer()
        except Exception as error:
            failure = self._clients.error(error, f"topic {self._clients.topic} cannot be written")
            raise failure from failure.__cause__

    def _send(self, group: _Group) -> None:
        try:
            if self._broken:
                self._replace()
            for append in group.appends:
                for value, key in zip(append.values, append.keys or repeat(None), strict=False):
                    future = self._producer.send(
                        self._clients.topic, value or None, key=key, partition=append.partition
                    )
                    group.futures.append(future)
        except Exception as error:
            group.failure = error
        self._when_done(group)

    def _when_done(self, group: _Group, _: object = None) -> None:
        """Hand the group to the event loop once all its values are stored or have failed."""
        for future in reversed(group.futures):
            if not future.is_done:
                future.add_both(self._when_done, group)
                return
        deliver(self._loop, self._finished, group)

    def _replace(self) -> None:
        """Replace the producer by a new one: the old one does not recover from its error."""
        old, self._producer = self._producer, None
        if old is not None:
            # Its other messages may still be sent.
            wait_s = self._clients.options.append_timeout_s + 1
            closing = threading.Thread(
                target=close_quietly, args=(old,), kwargs={"timeout": wait_s}, daemon=True
            )
            closing.start()
        self._connect()
        self._broken = False
