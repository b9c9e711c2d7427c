"""A log in a Kafka topic of one partition.

All state lives on the event loop; whatever may wait for a broker runs on threads of its own, each
with its own clients: appends (`kafka_producer`), reads and trims (`kafka_reader`), the end of the
log (`kafka_tail`, only while somebody waits), cursors (`kafka_cursors`), and a look every second
whether the topic is still the one that was opened (`kafka_handle`). A record is one message, or
several if it is large (`kafka_chunks`).

What a broker that is away means: appends end as LogUnavailableError within their deadline, reads
within a few seconds, and both work again when it is back.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from dmq.entries import RECORD_BYTES_MAX, check_cursor, encode_all
from dmq.errors import LogError
from dmq.interface import Cursor, Entry
from dmq.kafka_chunks import cut, head_of, value_bytes_max
from dmq.kafka_clients import REQUEST_TIMEOUT_S
from dmq.kafka_cursors import CursorStore
from dmq.kafka_handle import TopicHandle
from dmq.kafka_options import KafkaOptions
from dmq.kafka_reader import TopicReader
from dmq.kafka_recent import Recent
from dmq.kafka_tail import Tail
from dmq.kafka_thread import Worker
from dmq.kafka_topic import LOG, KafkaUrl
from dmq.record import Record
from dmq.waiters import Waiters

CURSOR_TIMEOUT_S: Final = 2 * REQUEST_TIMEOUT_S
SCAN_TIMEOUT_S: Final = 600.0
"""A trim may have to read through what was appended since the last one."""
STUCK_S: Final = 3.0
"""A call for cursors that lasts so long while the broker answers others is given up, and its thread
with it: kafka-python 3.0.12 may wait for ever for the end of a transaction whose broker died."""

T = TypeVar("T")
_logger = logging.getLogger("dmq")


class KafkaLog:
    """One process's handle to the log; see `dmq.interface.Log`. Made by ``open``."""

    def __init__(self, handle: TopicHandle, recent: Recent, bytes_max: int) -> None:
        clients = handle.clients
        self._handle = handle
        self._clients = clients
        self._recent = recent
        self._record_bytes_max = bytes_max
        self._value_max = value_bytes_max(clients.options.message_bytes_max)
        self._loop = asyncio.get_running_loop()
        self._waiters = Waiters()
        self._reader = TopicReader(clients, recent)
        self._cursors = CursorStore(clients)
        self._committing = Worker("dmq-kafka-cursors")
        self._tail = Tail(
            clients, recent, self._waiters.advance, self._lost_place, lambda: bool(self._waiters)
        )
        self._asking_end: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        handle.on_lost = self._waiters.fail

    @classmethod
    async def open(
        cls, url: KafkaUrl, options: KafkaOptions, *, record_bytes_max: int = RECORD_BYTES_MAX
    ) -> KafkaLog:
        """Open the log in this topic, creating it if need be; raises as TopicHandle.open does."""
        log: KafkaLog | None = None

        def stored(values: list[tuple[int, bytes]]) -> None:
            if log is not None:
                log._stored(values)

        handle = await TopicHandle.open(url, options, LOG, stored)
        log = cls(handle, Recent(), record_bytes_max)
        return log

    async def append(self, records: Sequence[Record]) -> list[int]:
        """See Log.append. If the caller is cancelled the records may or may not be there."""
        self._handle.check_usable()
        encoded = encode_all(records, self._record_bytes_max)
        if not encoded:
            return []
        if max(map(len, encoded)) > self._value_max:
            encoded = await self._store_parts(encoded)
        known_end = self._waiters.end
        offsets = await self._handle.appender.append(encoded)
        self._handle.check_appended(offsets[0], known_end)
        return offsets

    async def read(
        self, start: int, *, records_max: int = 1024, bytes_max: int = 16 << 20
    ) -> list[Entry]:
        """See Log.read."""
        entries = await self._handle.read(lambda: self._reader.read(start, records_max, bytes_max))
        if entries:
            self._waiters.advance(entries[-1].offset + 1)
        return entries

    async def wait(self, offset: int, timeout_s: float) -> bool:
        """See Log.wait."""
        self._handle.check_usable()
        if self._waiters.end > offset:
            return True
        if (timeout_s <= 0 or not self._tail.following) and await self.end() > offset:
            return True
        if timeout_s <= 0:
            return False
        self._handle.check_usable()
        # Runs once this task is among the waiters.
        self._loop.call_soon(self._follow)
        return await self._waiters.wait(offset, timeout_s)

    async def start(self) -> int:
        """See Log.start."""
        return (await self._handle.read(self._reader.span))[0]

    async def end(self) -> int:
        """See Log.end."""
        end = await self._handle.read(self._reader.end)
        self._waiters.advance(end)
        return end

    async def load_cursor(self, reader: str) -> Cursor | None:
        """See Log.load_cursor."""
        return await self._commit(lambda cursors: cursors.load(reader))

    async def commit_cursor(self, reader: str, cursor: Cursor) -> None:
        """See Log.commit_cursor."""
        check_cursor(cursor)
        await self._commit(lambda cursors: cursors.commit(reader, cursor))

    async def cursors(self) -> Mapping[str, Cursor]:
        """See Log.cursors."""
        groups = await self._handle.administer(
            lambda: self._handle.admin.groups(f"{self._clients.topic}.")
        )
        return await self._commit(lambda cursors: cursors.cursors(groups))

    async def trim(self, before: int) -> None:
        """See Log.trim. Parts of large records that are still needed stay."""
        point = await self._handle.read(lambda: self._reader.trim_point(before), SCAN_TIMEOUT_S)
        await self._handle.administer(lambda: self._handle.admin.delete_below(point))
        await self._handle.read(lambda: self._reader.trimmed(point))

    async def identity(self) -> str:
        """See Log.identity: the id that Kafka gave the topic when it was created."""
        return self._handle.admin.topic_id

    async def close(self) -> None:
        """See Log.close."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    # -- appends ---------------------------------------------------------------------------

    async def _store_parts(self, encoded: Sequence[bytes]) -> tuple[bytes, ...]:
        """Store the parts of what is too large; return what makes the records visible."""
        pieces = [
            cut(data, self._value_max) if len(data) > self._value_max else [] for data in encoded
        ]
        offsets = iter(
            await self._handle.appender.append([part for parts in pieces for part in parts])
        )
        return tuple(
            head_of(data, [next(offsets) for _ in parts]) if parts else data
            for data, parts in zip(encoded, pieces, strict=True)
        )

    def _stored(self, values: list[tuple[int, bytes]]) -> None:
        if values:
            self._recent.extend(values)
            self._waiters.advance(values[-1][0] + 1)

    # -- reads -----------------------------------------------------------------------------

    def _follow(self) -> None:
        if self._waiters and self._closing is None:
            self._tail.follow(self._waiters.end)

    def _lost_place(self) -> None:
        """The end that was followed is not in the log: find out why, and tell those who wait."""
        if self._asking_end is None and self._closing is None:
            self._asking_end = self._loop.create_task(self._ask_end())

    async def _ask_end(self) -> None:
        try:
            await self.end()
        except LogError as error:
            self._waiters.fail(error)
        else:
            self._follow()
        finally:
            self._asking_end = None

    # -- cursors ---------------------------------------------------------------------------

    async def _commit(self, call: Callable[[CursorStore], T]) -> T:
        self._handle.check_usable()
        if self._committing.busy_s > STUCK_S and self._handle.answered:
            _logger.warning("a commit of a cursor hangs; going on with a new connection")
            self._committing.stop()
            # Closing what it waits on may end the call that hangs, and may hang as well.
            threading.Thread(
                target=self._cursors.close, name="dmq-kafka-given-up", daemon=True
            ).start()
            self._committing = Worker("dmq-kafka-cursors")
            self._cursors = CursorStore(self._clients)
        store = self._cursors
        doing = f"a cursor of topic {self._clients.topic}"
        return await self._committing.call(lambda: call(store), CURSOR_TIMEOUT_S, doing)

    # -- the end ---------------------------------------------------------------------------

    async def _close(self) -> None:
        self._handle.shut()
        if self._asking_end is not None:
            await asyncio.wait([self._asking_end])
        self._tail.stop()
        await self._handle.close(self._reader.close, {self._committing: self._cursors.close})
