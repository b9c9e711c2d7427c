"""The log in a Kafka topic of one partition, and the cursors of the log's readers."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from kafka import errors as kafka_errors
from kafka.structs import OffsetAndMetadata

from dmq.kafka_clients import REQUEST_TIMEOUT_S, Clients, Worker, close_quietly
from dmq.kafka_handle import TopicHandle
from dmq.kafka_reader import Recent, Tail, TopicReader
from dmq.kafka_topic import LOG, KafkaOptions, KafkaUrl, cut, head_of, value_bytes_max
from dmq.log import (
    FILLER,
    FILLER_STORED,
    RECORD_BYTES_MAX,
    Batches,
    Cursor,
    Entry,
    LogCorruptError,
    LogError,
    LogUnavailableError,
    Record,
    check_begins,
    check_cursor,
    check_epoch,
    check_placed,
    encode_all,
)
from dmq.waiting import Waiters

COMMIT_ATTEMPTS_MAX: Final = 5
"""How often a commit of a cursor is tried while other processes interrupt it."""
STABLE_WITHIN_S: Final = 0.5
"""A commit that Kafka does not make visible within this time counts as not made."""

_PUSHED_ASIDE: Final = (
    kafka_errors.ProducerFencedError,
    kafka_errors.InvalidProducerEpochError,
    kafka_errors.InvalidProducerIdMappingError,
    kafka_errors.InvalidTxnStateError,
    kafka_errors.TransactionAbortedError,
)


def to_metadata(cursor: Cursor) -> str:
    """Return the cursor's epoch and note as the text that Kafka stores beside its offset."""
    return f"1 {cursor.epoch} {cursor.note}"


def from_metadata(offset: int, metadata: str) -> Cursor:
    """Return the cursor whose offset and metadata Kafka stores.

    Empty metadata: another tool (kafka-consumer-groups.sh) has set the offset, so the cursor has no
    note and epoch 0. Raises LogCorruptError for metadata that this version cannot read.
    """
    if not metadata:
        return Cursor(offset)
    version, _, rest = metadata.partition(" ")
    epoch, _, note = rest.partition(" ")
    if version != "1" or not epoch.lstrip("-").isdecimal():
        raise LogCorruptError(
            f"the cursor at offset {offset} cannot be read: its metadata begins with {version!r}, "
            "this version knows 1"
        )
    return Cursor(offset, note, int(epoch))


class CursorStore:
    """Readers' cursors as the committed offsets of consumer groups. Everything here blocks.

    The cursor of reader ``a`` of topic ``ring`` is the committed offset of group ``ring.a``; its
    epoch and its note are in the commit's metadata. So every tool for Kafka shows the reader's lag.

    A commit of a lower epoch than the stored one must change nothing, even if another process
    commits between the check and the commit. So each commit is a transaction under a transactional
    id of the reader. A process first *initialises* that id, which ends the transactions of all
    earlier processes and refuses their later ones. Then it checks the stored epoch. After that it
    commits as often as it likes without a check: a process with another epoch must have initialised
    the id later, so this one's commits are refused. Then it initialises and checks again, and
    knows if it was replaced.

    An ended transaction is not visible at once, and a broker that dies in between may forget to
    make it visible (seen with 4.3: killed right after it acknowledged the end, it left the commit
    pending for ever; the next transaction of the same id ends it). So a commit is valid only when
    it has been seen. A commit that stays pending is treated as not made.

    Belongs to one thread.
    """

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self._partition = clients.partition
        self._producers: dict[str, Any] = {}
        self._consumers: dict[str, Any] = {}

    def group(self, reader: str) -> str:
        """Return the name of the reader's consumer group, which stores its cursor."""
        return f"{self._clients.topic}.{reader}"

    def load(self, reader: str) -> Cursor | None:
        """Return the reader's stored cursor; None if it has none."""
        try:
            return self._stored(reader)
        except Exception as error:
            self._drop(reader)
            failure = self._failed(error, reader)
            raise failure from failure.__cause__

    def commit(self, reader: str, cursor: Cursor) -> None:
        """Store the reader's cursor. Raises FencedError if a stored cursor has a higher epoch."""
        for _ in range(COMMIT_ATTEMPTS_MAX):
            try:
                if reader not in self._producers:
                    self._producer(reader)
                    check_epoch(reader, self._stored(reader), cursor)
                self._write(self._producers[reader], reader, cursor)
                # Seen as it is, or as another process has overwritten it since.
                self._seen(reader, REQUEST_TIMEOUT_S)
                return
            except _PUSHED_ASIDE:
                self._drop_producer(reader)
            except Exception as error:
                self._drop(reader)
                failure = self._failed(error, reader)
                raise failure from failure.__cause__
        raise LogUnavailableError(
            f"reader {reader}: others commit for it all the time; {COMMIT_ATTEMPTS_MAX} attempts "
            "failed"
        )

    def cursors(self, groups: Sequence[str]) -> Mapping[str, Cursor]:
        """Return the stored cursors by reader; ``groups``: the names of consumer groups."""
        prefix = self.group("")
        found = {
            group.removeprefix(prefix): self.load(group.removeprefix(prefix))
            for group in sorted(groups)
        }
        return {reader: cursor for reader, cursor in found.items() if cursor is not None}

    def close(self) -> None:
        """Close the connections to the brokers."""
        for reader in {*self._producers, *self._consumers}:
            self._drop(reader)

    def _producer(self, reader: str) -> Any:
        """Initialise the reader's transactional id, so that Kafka refuses its earlier users."""
        self._drop_producer(reader)
        producer = self._clients.transactional_producer(self.group(reader), REQUEST_TIMEOUT_S)
        try:
            producer.init_transactions()
        except BaseException:
            close_quietly(producer, timeout=0)
            raise
        self._producers[reader] = producer
        return producer

    def _write(self, producer: Any, reader: str, cursor: Cursor) -> None:
        offsets = {self._partition: OffsetAndMetadata(cursor.offset, to_metadata(cursor), -1)}
        producer.begin_transaction()
        producer.send_offsets_to_transaction(offsets, self.group(reader))
        producer.commit_transaction()

    def _stored(self, reader: str) -> Cursor | None:
        """Return the reader's newest visible cursor; one that stays invisible is ignored."""
        try:
            return self._seen(reader, STABLE_WITHIN_S)
        except kafka_errors.KafkaTimeoutError:
            consumer = self._clients.consumer(group_id=self.group(reader))
            try:
                return self._committed(consumer, REQUEST_TIMEOUT_S)
            finally:
                close_quietly(consumer, autocommit=False, timeout_ms=0)

    def _seen(self, reader: str, timeout_s: float) -> Cursor | None:
        """Wait until no commit of the reader is pending; return its cursor, or None if it has none.

        Raises KafkaTimeoutError after ``timeout_s``.
        """
        if reader not in self._consumers:
            self._consumers[reader] = self._clients.consumer(
                group_id=self.group(reader), isolation_level="read_committed", retry_backoff_ms=2
            )
        return self._committed(self._consumers[reader], timeout_s)

    def _committed(self, consumer: Any, timeout_s: float) -> Cursor | None:
        found = consumer.committed(self._partition, metadata=True, timeout_ms=int(1000 * timeout_s))
        if found is None or found.offset < 0:
            return None
        return from_metadata(found.offset, found.metadata or "")

    def _drop(self, reader: str) -> None:
        """Close the reader's connections; the next call makes new ones."""
        self._drop_producer(reader)
        consumer = self._consumers.pop(reader, None)
        if consumer is not None:
            close_quietly(consumer, autocommit=False, timeout_ms=0)

    def _drop_producer(self, reader: str) -> None:
        producer = self._producers.pop(reader, None)
        if producer is not None:
            close_quietly(producer, timeout=0)

    def _failed(self, error: Exception, reader: str) -> LogError:
        return self._clients.error(error, f"the cursor of group {self.group(reader)}")


# A log in a Kafka topic of one partition.
#
# All state lives on the event loop. Every call that may wait for a broker runs on a thread with its
# own clients: appends (`kafka_producer`), reads and trims (`kafka_reader`), following the end of
# the log (`kafka_reader`, only while a task waits), cursors, and a check every second that the
# topic is still the one that was opened (`kafka_handle`). A record is one message, or several if it
# is large (`kafka_topic`).
#
# While a broker is away, appends end as LogUnavailableError within their deadline, reads within a
# few seconds. Both work again when the broker is back.


CURSOR_TIMEOUT_S: Final = 2 * REQUEST_TIMEOUT_S
SCAN_TIMEOUT_S: Final = 600.0
"""The most seconds of a trim: it may have to read all records since the last trim."""
PLACED_AT_ONCE: Final = 5_000
PLACED_BYTES_MAX: Final = 4 << 20
"""The most records and bytes in one append while a log is filled from elsewhere. Chosen."""
STUCK_S: Final = 3.0
"""If a call for cursors takes longer while a broker answers other calls, it is given up.

Its thread and connections are given up with it: kafka-python 3.0.12 may wait for ever for a
transaction if its broker died.
"""

T = TypeVar("T")
_logger = logging.getLogger("dmq")


class KafkaLog:
    """One process's handle to the log; see `dmq.log.Log`. Made by ``open``."""

    def __init__(self, handle: TopicHandle, recent: Recent, bytes_max: int) -> None:
        clients = handle.clients
        self._handle = handle
        self.known_as = ""
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
        self._finding_end: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        handle.on_lost = self._waiters.fail

    @classmethod
    async def open(
        cls, url: KafkaUrl, options: KafkaOptions, *, record_bytes_max: int = RECORD_BYTES_MAX
    ) -> KafkaLog:
        """Open the log in this topic; create it if necessary. Raises as `TopicHandle.open`."""
        log: KafkaLog | None = None

        def stored(values: list[tuple[int, bytes]]) -> None:
            if log is not None:
                log._stored(values)

        handle = await TopicHandle.open(url, options, LOG, stored)
        log = cls(handle, Recent(), record_bytes_max)
        return log

    async def append(self, records: Sequence[Record]) -> list[int]:
        """Store the records at the end of the log, in order; return their offsets.

        If the caller is cancelled, the records may or may not be in the log.
        """
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
        """Return entries from offset ``start`` on, at least one if there is any (`Log.read`)."""
        entries = await self._handle.run_on_reading_thread(
            lambda: self._reader.read_entries(start, records_max, bytes_max)
        )
        if entries:
            self._waiters.advance(entries[-1].offset + 1)
        return entries

    async def wait(self, offset: int, timeout_s: float) -> bool:
        """Wait until the log's end is beyond ``offset`` (True), or the time is over (False)."""
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
        """Return the lowest offset that can still be read."""
        return (await self._handle.run_on_reading_thread(self._reader.span))[0]

    async def end(self) -> int:
        """Return the offset after the newest record."""
        end = await self._handle.run_on_reading_thread(self._reader.end)
        self._waiters.advance(end)
        return end

    async def load_cursor(self, reader: str) -> Cursor | None:
        """Return the reader's stored cursor, or None if it never stored one."""
        return await self._commit(lambda cursors: cursors.load(reader))

    async def commit_cursor(self, reader: str, cursor: Cursor) -> None:
        """Store the reader's cursor. Raises FencedError if a stored one has a higher epoch."""
        check_cursor(cursor)
        await self._commit(lambda cursors: cursors.commit(reader, cursor))

    async def cursors(self) -> Mapping[str, Cursor]:
        """Return every reader's stored cursor, by reader."""
        groups = await self._handle.administer(
            lambda: self._handle.admin.groups(f"{self._clients.topic}.")
        )
        return await self._commit(lambda cursors: cursors.cursors(groups))

    async def trim(self, before: int) -> None:
        """Delete the records below ``before``, except the parts of large records above it."""
        point = await self._handle.run_on_reading_thread(
            lambda: self._reader.trim_point(before), SCAN_TIMEOUT_S
        )
        await self._handle.administer(lambda: self._handle.admin.delete_below(point))
        await self._handle.run_on_reading_thread(lambda: self._reader.trimmed(point))

    async def identity(self) -> str:
        """Return the log's id: its id before a move, else the id that Kafka gave the topic."""
        return self.known_as or self._handle.admin.topic_id

    async def close(self) -> None:
        """Release the log's connections and threads; unfinished appends finish first."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    # -- a log from elsewhere --------------------------------------------------------------

    async def begin_at(self, offset: int) -> None:
        """Make an empty log begin at ``offset``, as `MovableLog.begin_at` says.

        Kafka counts from 0, so fillers are stored at all offsets below, and deleted.
        """
        start, end = await self._handle.run_on_reading_thread(self._reader.span)
        if start == 0 and 0 < end <= offset:  # cut off while it stored fillers
            await self._check_filler(end - 1)
            start = end
        check_begins(offset, start, end)
        while end < offset:
            count = min(PLACED_AT_ONCE, offset - end)
            await self._place(end, [FILLER_STORED] * count)
            end += count
        if offset == 0:
            return
        await self._handle.administer(lambda: self._handle.admin.delete_below(offset))
        await self._handle.run_on_reading_thread(lambda: self._reader.trimmed(offset))

    async def refill(self, end: int, batches: Batches) -> None:
        """Fill an empty log with another log's records, as `MovableLog.refill` says.

        A record that is too large for one message becomes a head at the record's offset. Its parts
        had no offset in the other log, so they are stored behind the last record.
        """
        parts_end = end
        for first, encoded in batches():
            heads: list[bytes] = []
            for data in encoded:
                if len(data) > self._value_max:
                    count = len(cut(data, self._value_max))
                    heads.append(head_of(data, range(parts_end, parts_end + count)))
                    parts_end += count
                else:
                    heads.append(data)
            await self._place(first, heads)
        at = end
        for _, encoded in batches() if parts_end > end else ():
            for data in encoded:
                if len(data) > self._value_max:
                    parts = cut(data, self._value_max)
                    await self._place(at, parts)
                    at += len(parts)

    async def _check_filler(self, offset: int) -> None:
        (entry, *_) = await self.read(offset)
        if entry.record.kind != FILLER:
            raise LogError(f"topic {self._clients.topic} holds records: use a new one")

    async def _place(self, first: int, values: Sequence[bytes]) -> None:
        """Append values at offsets from ``first`` on. Raises LogError if they get other ones."""
        self._handle.check_usable()
        while values:
            count = size = 0
            for value in values[:PLACED_AT_ONCE]:
                size += len(value)
                if count and size > PLACED_BYTES_MAX:
                    break
                count += 1
            check_placed(first, await self._handle.appender.append(values[:count]))
            first, values = first + count, values[count:]

    # -- appends ---------------------------------------------------------------------------

    async def _store_parts(self, encoded: Sequence[bytes]) -> tuple[bytes, ...]:
        """Store the parts of large records; return each record, or the head of a large one."""
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
        """Find out why the end of the log is gone, and make the waiting calls raise the reason."""
        if self._finding_end is None and self._closing is None:
            self._finding_end = self._loop.create_task(self._find_end())

    async def _find_end(self) -> None:
        try:
            await self.end()
        except LogError as error:
            self._waiters.fail(error)
        else:
            self._follow()
        finally:
            self._finding_end = None

    # -- cursors ---------------------------------------------------------------------------

    async def _commit(self, call: Callable[[CursorStore], T]) -> T:
        self._handle.check_usable()
        if self._committing.busy_s > STUCK_S and self._handle.answered:
            _logger.warning("a commit of a cursor hangs; going on with a new connection")
            self._committing.stop()
            # Closing these clients may end the call that hangs, and may hang as well.
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
        if self._finding_end is not None:
            await asyncio.wait([self._finding_end])
        self._tail.stop()
        await self._handle.close(self._reader.close, {self._committing: self._cursors.close})
