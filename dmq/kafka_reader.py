"""Reads a Kafka topic: records at any offset, new records at the end, the newest from memory."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from kafka import errors as kafka_errors

from dmq.kafka_clients import REQUEST_TIMEOUT_S, Clients, close_quietly, deliver
from dmq.kafka_topic import Parts, is_part, join, read_head
from dmq.log import (
    FILLER,
    Entry,
    LogCorruptError,
    LogError,
    LogRegressedError,
    LogUnavailableError,
    Record,
    check_not_beyond,
    check_readable,
    decode_at,
)

# The newest records of a log, kept in memory: records that were just written, or fetched for one
# reader, need not be fetched for the next. Safe for several threads.


RECENT_RECORDS_MAX: Final = 8192
RECENT_BYTES_MAX: Final = 16 << 20


class Recent:
    """The newest values of the topic in memory, at consecutive offsets.

    If there are too many, the oldest are dropped.
    """

    def __init__(
        self, *, records_max: int = RECENT_RECORDS_MAX, bytes_max: int = RECENT_BYTES_MAX
    ) -> None:
        self._lock = threading.Lock()
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._first = 0
        self._values: list[bytes] = []
        self._size = 0

    def extend(self, stored: Sequence[tuple[int, bytes]]) -> None:
        """Add values in the order of their offsets; a gap drops all values before it."""
        with self._lock:
            end = self._first + len(self._values)
            if stored and stored[0][0] == end and stored[-1][0] == end + len(stored) - 1:
                values = [value for _, value in stored]
                self._values += values
                self._size += sum(map(len, values))
                self._shrink()
                return
            for offset, value in stored:
                end = self._first + len(self._values)
                if self._values and offset < end:
                    continue
                if offset != end:
                    self._values.clear()
                    self._size = 0
                if not self._values:
                    self._first = offset
                self._values.append(value)
                self._size += len(value)
            self._shrink()

    def find_kept_records(self, start: int, records_max: int) -> list[tuple[int, bytes]]:
        """Return the values in memory from ``start`` on; none if that at ``start`` is missing."""
        with self._lock:
            index = start - self._first
            if not 0 <= index < len(self._values):
                return []
            return list(enumerate(self._values[index : index + max(1, records_max)], start))

    def get(self, offset: int) -> bytes | None:
        """Return the value at this offset; None if it is not in memory."""
        with self._lock:
            index = offset - self._first
            return self._values[index] if 0 <= index < len(self._values) else None

    def forget(self, below: int) -> None:
        """Drop the values at offsets below ``below``."""
        with self._lock:
            self._drop(below - self._first)

    def _shrink(self) -> None:
        if len(self._values) <= self._records_max and self._size <= self._bytes_max:
            return
        # To three quarters, so that it is not done again for each value.
        count, size = len(self._values), self._size
        drop = 0
        while drop < count and (
            count - drop > self._records_max * 3 // 4 or size > self._bytes_max * 3 // 4
        ):
            size -= len(self._values[drop])
            drop += 1
        self._drop(drop)

    def _drop(self, count: int) -> None:
        count = min(count, len(self._values))
        if count > 0:
            self._size -= sum(map(len, self._values[:count]))
            del self._values[:count]
            self._first += count


LONG_POLL_MS: Final = 1000
"""The time for which a broker may delay its answer while there is no new record."""
RETRY_S: Final = 0.2

_logger = logging.getLogger("dmq")


class Tail:
    """Notices new records at the end of a topic while a task waits for them.

    Its own consumer asks for records behind the newest known one; the broker answers when there are
    some. While no task waits, the thread sleeps. ``wanted`` returns True while a task waits.
    ``on_end`` is called with each new end, ``on_lost`` if the offset at which it reads is gone;
    both on the event loop.
    """

    def __init__(
        self,
        clients: Clients,
        recent: Recent | None,
        on_end: Callable[[int], None],
        on_lost: Callable[[], None],
        wanted: Callable[[], bool],
    ) -> None:
        self._clients = clients
        self._partition = clients.partition
        self._recent = recent
        self._on_end = on_end
        self._on_lost = on_lost
        self._wanted = wanted
        self._loop = asyncio.get_running_loop()
        self._consumer: Any = None
        self._position: int | None = None
        self._from = 0
        self._go = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def following(self) -> bool:
        """True if new records are noticed now, so that nobody has to ask for the end."""
        return self._go.is_set()

    def follow(self, end: int) -> None:
        """Begin to wait for records from offset ``end`` on."""
        self._from = end
        self._go.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="dmq-kafka-tail", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Let the thread end, after at most one long poll."""
        self._closed.set()
        self._go.set()

    def _run(self) -> None:
        while self._go.wait() and not self._closed.is_set():
            if not self._wanted():
                self._go.clear()
                if not self._wanted():
                    continue
                # A task began to wait while it was cleared.
                self._go.set()
            try:
                self._poll()
            except (kafka_errors.OffsetOutOfRangeError, kafka_errors.LogTruncationError):
                self._position = None
                self._go.clear()
                deliver(self._loop, self._on_lost)
            except Exception as error:
                _logger.debug("topic %s cannot be followed: %r", self._clients.topic, error)
                self._close()
                self._closed.wait(RETRY_S)
        self._close()

    def _poll(self) -> None:
        if self._consumer is None:
            self._consumer = self._clients.consumer(fetch_max_wait_ms=LONG_POLL_MS)
            self._consumer.assign([self._partition])
        if self._position is None or self._position < self._from:
            self._consumer.seek(self._partition, self._from)
            self._position = self._from
        found = self._consumer.poll(timeout_ms=LONG_POLL_MS)
        records = found.get(self._partition, ())
        if records and not self._closed.is_set():
            if self._recent is not None:
                self._recent.extend([(record.offset, record.value or b"") for record in records])
            self._position = records[-1].offset + 1
            deliver(self._loop, self._on_end, self._position)

    def _close(self) -> None:
        if self._consumer is not None:
            close_quietly(self._consumer, autocommit=False, timeout_ms=0)
        self._consumer = self._position = None


LONE_PARTS_KEPT_S: Final = 300.0
"""A trim keeps parts whose head is missing if they are not older than this.

The age is counted from the newest record. Later no head can come: an append gives up long before.
"""
SCAN_RECORDS_MAX: Final = 4096
PARTS_BYTES_MAX: Final = 64 << 20
"""The most bytes of parts in memory, for the heads that follow them in the log."""

T = TypeVar("T")
_FILLER: Final = Record(FILLER)
_TIMEOUT_MS: Final = int(1000 * REQUEST_TIMEOUT_S)


class ShrunkError(LogRegressedError):
    """The log ends before a record that was read from it earlier."""


class TopicReader:
    """Reads records at any offset, joins the parts of large ones, and finds how far to trim.

    Its calls block. One consumer serves all readers of the handle. A read that the newest records
    in memory cannot answer is one fetch, or two requests at the end of the log; only a jump to
    another place costs a seek. A fetch does not wait at the broker for more records, so nothing
    queues behind it.

    Belongs to one thread.
    """

    def __init__(self, clients: Clients, recent: Recent) -> None:
        self._clients = clients
        self._partition = clients.partition
        self._recent = recent
        self._consumer: Any = None
        self._position: int | None = None
        self._end_seen = 0
        self._passed: dict[int, bytes] = {}
        self._passed_bytes = 0
        self._parts = Parts()

    def span(self) -> tuple[int, int]:
        """Return the topic's first offset, and the offset after its newest record."""
        return self._requested(self._span)

    def end(self) -> int:
        """Return the offset after the newest record."""
        return self._requested(self._end)

    def read_entries(self, start: int, records_max: int, bytes_max: int) -> list[Entry]:
        """Return the entries from ``start`` on, within both limits but at least one."""
        return self._requested(lambda: self._read(start, max(1, records_max), bytes_max))

    def trim_point(self, before: int) -> int:
        """Return the highest offset below which all can be deleted.

        The records from ``before`` on stay readable: large ones need parts that lie lower.
        """
        return self._requested(lambda: self._trim_point(before))

    def trimmed(self, point: int) -> None:
        """Wait until the brokers show that the records below offset ``point`` are deleted.

        Then drop them from memory. Raises LogUnavailableError if that takes too long.
        """
        self._requested(lambda: self._trimmed(point))

    def close(self) -> None:
        """Close the connections to the brokers."""
        if self._consumer is not None:
            close_quietly(self._consumer, autocommit=False, timeout_ms=0)
        self._consumer = self._position = None

    def _requested(self, call: Callable[[], T]) -> T:
        try:
            if self._consumer is None:
                self._consumer = self._clients.consumer(fetch_max_wait_ms=0)
                self._consumer.assign([self._partition])
            return call()
        except LogUnavailableError:
            self.close()
            raise
        except LogError:
            raise
        except Exception as error:
            # The next call begins with new connections.
            self.close()
            topic = self._clients.topic
            failure = self._clients.error(error, f"topic {topic} cannot be read")
            raise failure from failure.__cause__

    def _span(self) -> tuple[int, int]:
        first = self._consumer.beginning_offsets([self._partition], timeout_ms=_TIMEOUT_MS)
        return int(first[self._partition]), self._end()

    def _end(self) -> int:
        found = self._consumer.end_offsets([self._partition], timeout_ms=_TIMEOUT_MS)
        end = int(found[self._partition])
        if end < self._end_seen:
            raise ShrunkError(
                f"topic {self._clients.topic} ends at {end}, but had {self._end_seen} records: it "
                "lost its newest ones, or is another one"
            )
        self._end_seen = end
        return end

    # -- reading ---------------------------------------------------------------------------

    def _read(self, start: int, records_max: int, bytes_max: int) -> list[Entry]:
        stored = self._recent.find_kept_records(start, records_max)
        if not stored:
            if start >= self._end_seen:
                end = self._end()
                check_not_beyond(start, end)
                if start == end:
                    return []
            stored = self._fetch(start, records_max)
        return self._entries(start, stored, bytes_max)

    def _fetch(self, start: int, records_max: int) -> list[tuple[int, bytes]]:
        """Return the records of one request from ``start`` on.

        Raises TrimmedError or LogRegressedError if the log does not have that offset.
        """
        if self._position != start:
            self._consumer.seek(self._partition, start)
        self._position = None
        try:
            found = self._consumer.poll(timeout_ms=_TIMEOUT_MS, max_records=records_max)
        except (kafka_errors.OffsetOutOfRangeError, kafka_errors.LogTruncationError) as error:
            check_readable(start, *self._span())
            raise LogUnavailableError(f"offset {start} cannot be read now") from error
        stored = [(record.offset, record.value or b"") for record in found.get(self._partition, ())]
        if not stored:
            check_readable(start, *self._span())
            raise LogUnavailableError(
                f"topic {self._clients.topic} gave nothing at offset {start} within "
                f"{REQUEST_TIMEOUT_S:g} s"
            )
        self._position = stored[-1][0] + 1
        self._end_seen = max(self._end_seen, self._position)
        return stored

    def _entries(
        self, start: int, stored: Sequence[tuple[int, bytes]], bytes_max: int
    ) -> list[Entry]:
        """Return the entries up to the limit, or up to a record that cannot be read.

        Raises an error if the first record cannot be read.
        """
        entries: list[Entry] = []
        size = 0
        for offset, data in stored:
            expected = start + len(entries)
            try:
                if offset != expected:
                    raise LogCorruptError(
                        f"the record at offset {expected} is missing from the log"
                    )
                if is_part(data):
                    self._pass(offset, data)
                    entries.append(Entry(offset, _FILLER))
                    continue
                whole = self._whole(offset, data, bytes_max - size if entries else None)
                if whole is None or (entries and size + len(whole) > bytes_max):
                    break
                size += len(whole)
                entries.append(decode_at(offset, whole))
            except LogError:
                if entries:
                    break
                raise
        return entries

    def _whole(self, offset: int, data: bytes, room: int | None) -> bytes | None:
        """Return a record's bytes, with its parts joined; None if they exceed ``room``."""
        try:
            head = read_head(data)
            if head is None:
                return data
            if room is not None and head.size_bytes > room:
                return None
            return join(head, {part: self._part(part, head.parts[-1]) for part in head.parts})
        except LogCorruptError as error:
            raise LogCorruptError(f"the record at offset {offset} cannot be read: {error}") from (
                error
            )

    def _part(self, offset: int, last: int) -> bytes:
        known = self._passed.get(offset) or self._recent.get(offset)
        if known is not None:
            return known
        try:
            stored = self._fetch(offset, last - offset + 1)
        except (LogRegressedError, LogUnavailableError):
            raise
        except LogError as error:
            raise LogCorruptError(f"its part at offset {offset} was trimmed") from error
        for found, data in stored:
            if is_part(data):
                self._pass(found, data)
        return stored[0][1]

    def _pass(self, offset: int, data: bytes) -> None:
        """Keep the part of a large record in memory: its head follows it in the log."""
        if offset in self._passed:
            return
        self._passed[offset] = data
        self._passed_bytes += len(data)
        while self._passed_bytes > PARTS_BYTES_MAX:
            self._passed_bytes -= len(self._passed.pop(next(iter(self._passed))))

    # -- trimming --------------------------------------------------------------------------

    def _trim_point(self, before: int) -> int:
        start, end = self._span()
        check_not_beyond(before, end)
        if before <= start:
            return start
        lone_from = self._lone_from(end)
        at = self._parts.look_from(max(start, min(before, lone_from)))
        while at < end:
            for offset, data in self._fetch(at, SCAN_RECORDS_MAX):
                self._parts.see(offset, data)
                at = offset + 1
        return max(start, self._parts.trim_point(before, lone_from))

    def _lone_from(self, end: int) -> int:
        """Return the offset from which on a part without a head may still get one."""
        (stamp,) = self._stamps(end - 1)
        earliest = max(0, stamp - int(1000 * LONE_PARTS_KEPT_S))
        found = self._consumer.offsets_for_times({self._partition: earliest}, _TIMEOUT_MS)
        place = found[self._partition]
        return end if place is None else int(place.offset)

    def _stamps(self, offset: int) -> list[int]:
        self._consumer.seek(self._partition, offset)
        self._position = None
        found = self._consumer.poll(timeout_ms=_TIMEOUT_MS, max_records=1)
        return [record.timestamp for record in found.get(self._partition, ())] or [0]

    def _trimmed(self, point: int) -> None:
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        while (start := self._span()[0]) < point:
            if time.monotonic() >= deadline:
                raise LogUnavailableError(f"the trim to offset {point} did not take effect in time")
        self._parts.forget(start)
        self._recent.forget(start)
