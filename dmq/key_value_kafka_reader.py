"""The reader of a key-value store's topic. Everything here blocks, on one thread.

Every read first asks the brokers for the topic's end, and reads the new messages: so it sees all
earlier changes. Reads that wait for the thread together share these requests, also their error.
Values that are not in memory are fetched by their offset. If compaction has deleted one meanwhile,
it was replaced, so the read begins again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from kafka import TopicPartition

from dmq.kafka_clients import REQUEST_TIMEOUT_S, Clients, close_quietly
from dmq.kafka_reader import ShrunkError
from dmq.key_value import Kept
from dmq.key_value_index import (
    KEYS_PARTITION,
    PIECES_PARTITION,
    Head,
    Index,
    Manifest,
    joined,
    piece_key,
    read_stored,
)
from dmq.log import LogCorruptError, LogError, LogUnavailableError

REBUILT_AFTER_S: Final = 6 * 3600.0
"""After a longer pause a reader reads all keys again: Kafka drops deletions after a day."""
LOOKS_MAX: Final = 5
"""A read is begun at most this often; it begins again if its value was replaced meanwhile."""
POLL_RECORDS_MAX: Final = 8192
_TIMEOUT_MS: Final = int(1000 * REQUEST_TIMEOUT_S)

T = TypeVar("T")


class _ReplacedError(Exception):
    """The value that is being read was replaced or deleted meanwhile."""


class StoreReader:
    """Reads the store's topic, on one thread.

    The first read reads all keys; so does a read that comes long after the one before
    (REBUILT_AFTER_S). When all keys have been read, ``on_begin`` is called with the revision that
    was reached. Each other read calls ``on_changes`` with the changes since the one before.
    """

    def __init__(
        self,
        clients: Clients,
        on_begin: Callable[[int], None],
        on_changes: Callable[[list[tuple[int, str]]], None],
    ) -> None:
        self._clients = clients
        self._on_begin = on_begin
        self._on_changes = on_changes
        self._keys = TopicPartition(clients.topic, KEYS_PARTITION)
        self._pieces = TopicPartition(clients.topic, PIECES_PARTITION)
        self._follower: Any = None
        self._fetchers: dict[TopicPartition, Any] = {}
        self._positions: dict[TopicPartition, int] = {}
        """The offset at which the next read of each partition continues."""
        self._index = Index()
        self._ends_seen: dict[TopicPartition, int] = {}
        self._caught_up_s = float("-inf")
        self._away_s = float("-inf")
        self._away = ""

    def revision(self, called_s: float) -> int:
        """Return the newest revision in the store.

        Like the other reads, it shows the store at ``called_s`` (monotonic time) or later.
        """
        return self._looking(called_s, lambda: self._index.end)

    def keys(self, called_s: float, prefix: str) -> list[str]:
        """Return the keys that begin with ``prefix``, in order."""
        return self._looking(called_s, lambda: self._index.below(prefix))

    def get(self, called_s: float, key: str) -> Kept | None:
        """Return the value under this key, with its revision; None if there is none."""
        return self._looking(called_s, lambda: self._kept([key])).get(key)

    def scan(self, called_s: float, prefix: str) -> dict[str, Kept]:
        """Return the values of all keys that begin with ``prefix``, in the keys' order."""
        return self._looking(called_s, lambda: self._kept(self._index.below(prefix)))

    def unowned(self, called_s: float) -> list[Manifest]:
        """Return the manifests of large values that were replaced or never completed."""
        return self._looking(called_s, lambda: list(self._index.unowned(time.monotonic())))

    def close(self) -> None:
        """Close the connections to the brokers."""
        for consumer in (self._follower, *self._fetchers.values()):
            if consumer is not None:
                close_quietly(consumer, autocommit=False, timeout_ms=0)
        self._follower = None
        self._fetchers.clear()
        self._positions.clear()

    # -- looking ---------------------------------------------------------------------------

    def _looking(self, called_s: float, look: Callable[[], T]) -> T:
        if called_s <= self._away_s:
            # Called before the brokers were found to be away: not tried again for each call.
            raise LogUnavailableError(self._away)
        try:
            for _ in range(LOOKS_MAX):
                if self._caught_up_s < called_s:
                    self._catch_up()
                try:
                    return look()
                except _ReplacedError:
                    called_s = time.monotonic()
            raise LogUnavailableError(
                f"topic {self._clients.topic}: what was looked for was replaced {LOOKS_MAX} times "
                "while it was read"
            )
        except LogError as error:
            self._failed(error)
            raise
        except Exception as error:
            failure = self._clients.error(error, f"topic {self._clients.topic} cannot be read")
            self._failed(failure)
            raise failure from failure.__cause__

    def _failed(self, error: LogError) -> None:
        """Close the connections after an error; the next call opens new ones, and reads on.

        If the brokers are away, calls that were made before now fail without another attempt.
        """
        self.close()
        if isinstance(error, LogUnavailableError):
            self._away_s, self._away = time.monotonic(), str(error)

    def _catch_up(self) -> None:
        """Read all new messages of the topic into the index."""
        began_s = time.monotonic()
        anew = began_s - self._caught_up_s > REBUILT_AFTER_S
        if anew:
            self._index = Index()
            self.close()
        end = self._end_of(self._keys)
        while self._index.end < end:
            follower = self._following()
            found = follower.poll(timeout_ms=_TIMEOUT_MS, max_records=POLL_RECORDS_MAX)
            changes = self._take(found.get(self._keys, ()))
            # Compaction leaves gaps, also at the end.
            position = int(follower.position(self._keys))
            if not found and position <= self._index.end:
                raise self._nothing_came(self._keys, self._index.end)
            self._index.end = max(self._index.end, position)
            if not anew:
                self._on_changes(changes)
        if anew:
            self._on_begin(self._index.end)
        self._caught_up_s = began_s

    def _following(self) -> Any:
        if self._follower is None:
            self._follower = self._consumer(self._keys)
            first = self._follower.beginning_offsets([self._keys], timeout_ms=_TIMEOUT_MS)
            self._follower.seek(self._keys, max(self._index.end, int(first[self._keys])))
        return self._follower

    def _take(self, records: Any) -> list[tuple[int, str]]:
        now_s = time.monotonic()
        return [
            (record.offset + 1, key)
            for record in records
            if (key := self._index.take(record.offset, record.key, record.value, now_s)) is not None
        ]

    def _end_of(self, partition: TopicPartition) -> int:
        found = self._following().end_offsets([partition], timeout_ms=_TIMEOUT_MS)
        end, seen = int(found[partition]), self._ends_seen.get(partition, 0)
        if end < seen:
            raise ShrunkError(
                f"topic {self._clients.topic} ends at {end}, but had {seen} records: it lost its "
                "newest ones, or is another one"
            )
        self._ends_seen[partition] = end
        return end

    # -- values ----------------------------------------------------------------------------

    def _kept(self, keys: list[str]) -> dict[str, Kept]:
        """Return the values of these keys; keys without a value are left out."""
        offsets = {key: at for key in keys if (at := self._index.offset(key)) is not None}
        small = {at: b"" for at in offsets.values() if self._index.head(at) is None}
        small |= self._small(sorted(small))
        found: dict[str, Kept] = {}
        for key, at in offsets.items():
            head = self._index.head(at)
            value = small[at] if head is None else self._large(at, head)
            found[key] = Kept(value, at + 1)
        return found

    def _small(self, offsets: list[int]) -> dict[int, bytes]:
        """Return the small values at these offsets, which are in rising order."""
        found = {at: value for at in offsets if (value := self._index.cache.get(at)) is not None}
        while missing := [at for at in offsets if at not in found]:
            wanted = set(missing)
            for record in self._fetch(self._keys, missing[0]):
                if record.offset in wanted and record.value is not None:
                    stored = read_stored(record.value)
                    assert isinstance(stored, bytes)
                    found[record.offset] = stored
                    self._index.cache.keep_value(record.offset, stored)
            if missing[0] not in found:
                raise _ReplacedError
        return found

    def _large(self, offset: int, head: Head) -> bytes:
        """Return the large value whose head is at this offset."""
        known = self._index.cache.get(offset)
        if known is not None:
            return known
        wanted = {piece_key(head.id, number) for number in range(head.pieces)}
        pieces: dict[bytes, bytes] = {}
        at = head.first
        while at <= head.last:
            records = self._fetch(self._pieces, at)
            for record in records:
                if record.key in wanted and record.value is not None:
                    pieces[record.key] = record.value
            at = records[-1].offset + 1
        if len(pieces) < len(wanted):
            self._check_replaced(offset)
        value = joined(head, pieces)
        self._index.cache.keep_value(offset, value)
        return value

    def _check_replaced(self, offset: int) -> None:
        """Find out why pieces are missing, and raise the reason.

        _ReplacedError if the value was replaced, LogCorruptError if it was not: then the store is
        damaged.
        """
        self._catch_up()
        if self._index.head(offset) is not None:
            raise LogCorruptError(
                f"topic {self._clients.topic}: pieces of the value at offset {offset} are missing"
            )
        raise _ReplacedError

    def _fetch(self, partition: TopicPartition, offset: int) -> Any:
        """Return the messages of one request, from ``offset`` on, or from behind a gap there."""
        if partition not in self._fetchers:
            self._fetchers[partition] = self._consumer(partition)
        fetcher = self._fetchers[partition]
        if self._positions.pop(partition, None) != offset:
            fetcher.seek(partition, offset)
        found = fetcher.poll(timeout_ms=_TIMEOUT_MS, max_records=POLL_RECORDS_MAX)
        if not found:
            # There is nothing from there on, so the newest message was replaced, too.
            if self._end_of(partition) <= offset:
                raise _ReplacedError
            raise self._nothing_came(partition, offset)
        self._positions[partition] = found[partition][-1].offset + 1
        return found[partition]

    def _consumer(self, partition: TopicPartition) -> Any:
        consumer = self._clients.consumer(fetch_max_wait_ms=0)
        consumer.assign([partition])
        return consumer

    def _nothing_came(self, partition: TopicPartition, offset: int) -> LogUnavailableError:
        return LogUnavailableError(
            f"topic {self._clients.topic} gave nothing at offset {offset} of partition "
            f"{partition.partition} within {REQUEST_TIMEOUT_S:g} s"
        )
