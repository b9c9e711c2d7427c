"""Reads a topic at any offset, puts large records together, and trims. Everything here blocks.

One consumer serves all readers of the handle. Each read that the newest records in memory cannot
answer is one fetch, or two requests at the end of the log; only a jump to another place costs a
seek. A fetch does not wait at the broker for more, so nothing queues behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from kafka import errors as kafka_errors

from dmq.entries import check_not_beyond, check_readable, decode_at
from dmq.errors import LogCorruptError, LogError, LogRegressedError, LogUnavailableError
from dmq.interface import Entry
from dmq.kafka_chunks import Parts, is_part, join, read_head
from dmq.kafka_clients import REQUEST_TIMEOUT_S, Clients, close_quietly
from dmq.kafka_recent import Recent
from dmq.record import FILLER, Record

LONE_PARTS_KEPT_S: Final = 300.0
"""Parts without a head are spared by a trim while the newest record is not so much younger: an
append gives up long before."""
SCAN_RECORDS_MAX: Final = 4096
PARTS_BYTES_MAX: Final = 64 << 20
"""Parts that were passed are kept so far, since their head comes next."""

T = TypeVar("T")
_FILLER: Final = Record(FILLER)
_TIMEOUT_MS: Final = int(1000 * REQUEST_TIMEOUT_S)


class ShrunkError(LogRegressedError):
    """The log ends before a record that it once gave out."""


class TopicReader:
    """See the module. Belongs to one thread."""

    def __init__(self, clients: Clients, recent: Recent) -> None:
        self._clients = clients
        self._partition = clients.partition
        self._recent = recent
        self._consumer: Any = None
        self._position: int | None = None
        self._end_heard = 0
        self._passed: dict[int, bytes] = {}
        self._passed_bytes = 0
        self._parts = Parts()

    def span(self) -> tuple[int, int]:
        """Return the first offset and the one after the last."""
        return self._asking(self._span)

    def end(self) -> int:
        """Return the offset after the newest record."""
        return self._asking(self._end)

    def read(self, start: int, records_max: int, bytes_max: int) -> list[Entry]:
        """Return the entries from this offset on, within both limits but at least one."""
        return self._asking(lambda: self._read(start, max(1, records_max), bytes_max))

    def trim_point(self, before: int) -> int:
        """Return up to where may be deleted: no record from ``before`` on needs what is below."""
        return self._asking(lambda: self._trim_point(before))

    def trimmed(self, point: int) -> None:
        """Wait until the deletion below this offset shows, which is at once with one broker."""
        self._asking(lambda: self._trimmed(point))

    def close(self) -> None:
        """Release the connections."""
        if self._consumer is not None:
            close_quietly(self._consumer, autocommit=False, timeout_ms=0)
        self._consumer = self._position = None

    def _asking(self, call: Callable[[], T]) -> T:
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
        if end < self._end_heard:
            raise ShrunkError(
                f"topic {self._clients.topic} ends at {end}, but had {self._end_heard} records: it "
                "lost its newest ones, or is another one"
            )
        self._end_heard = end
        return end

    # -- reading ---------------------------------------------------------------------------

    def _read(self, start: int, records_max: int, bytes_max: int) -> list[Entry]:
        stored = self._recent.run(start, records_max)
        if not stored:
            if start >= self._end_heard:
                end = self._end()
                check_not_beyond(start, end)
                if start == end:
                    return []
            stored = self._fetch(start, records_max)
        return self._entries(start, stored, bytes_max)

    def _fetch(self, start: int, records_max: int) -> list[tuple[int, bytes]]:
        """Return what one fetch brings from an offset that the log has, or had."""
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
        self._end_heard = max(self._end_heard, self._position)
        return stored

    def _entries(
        self, start: int, stored: Sequence[tuple[int, bytes]], bytes_max: int
    ) -> list[Entry]:
        """Return the readable entries up to a limit or a record that cannot be read."""
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
        """Return a record's bytes, its parts put together; None if they don't fit into the room."""
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
        """Keep a part for the head that follows it."""
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
        """Return the offset from which on parts may still get a head."""
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
