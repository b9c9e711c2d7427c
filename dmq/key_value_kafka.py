"""A key-value store in a compacted Kafka topic, whose name is the log's and ``.store``.

`key_value_index` describes its messages. Each process reads the keys when it opens the store and
keeps them in memory, but only some of the values. Calls that may wait for a broker run on threads
of their own, as for the log (`kafka_handle`). A change's revision is its offset in the first
partition plus one.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeVar

from dmq.kafka_clients import deliver
from dmq.kafka_handle import READ_TIMEOUT_S, TopicHandle
from dmq.kafka_reader import Tail
from dmq.kafka_topic import STORE, KafkaOptions, KafkaUrl, value_bytes_max
from dmq.key_value import (
    FIRST_REVISION,
    KEY_BYTES_MAX,
    KEY_PREFIX,
    Kept,
    Placed,
    check_key,
    check_value,
)
from dmq.key_value_index import (
    ID_BYTES,
    KEYS_PARTITION,
    MANIFEST_MARK,
    PIECES_PARTITION,
    Head,
    Manifest,
    head_message,
    manifest_message,
    piece_key,
    pieces_in,
    small_message,
)
from dmq.key_value_kafka_reader import StoreReader
from dmq.log import LogError, LogUnavailableError, check_placed
from dmq.waiting import Changes

SMALL_BYTES_MAX: Final = 64 << 10
"""A larger value is stored in pieces, which are not read when the store is opened."""
SLICE_BYTES_MAX: Final = 8 << 20
"""The most bytes of a large value that are sent at once."""
LARGE_PUT_S: Final = 120.0
"""The time in which all pieces of a value must be stored; see UNOWNED_KEPT_S."""
LOAD_TIMEOUT_S: Final = 120.0
VALUES_TIMEOUT_S: Final = 60.0
"""The most seconds of a read of values: large ones need time.

Brokers that do not answer are noticed earlier, within a few seconds.
"""
CLEAR_EVERY_S: Final = 60.0
PLACED_AT_ONCE: Final = 5_000
"""The most messages in one append while a store is filled. Chosen, as for the log."""
_FILLER_KEY: Final = MANIFEST_MARK + bytes(ID_BYTES)
"""The key of messages that only fill an offset; no large value has this id."""
_FRAMING_BYTES: Final = 64
"""The most bytes of a message besides its value."""

T = TypeVar("T")
_logger = logging.getLogger("dmq")


class KafkaKeyValueStore:
    """One process's handle to the store; see `dmq.key_value.KeyValueStore`. Made by ``open``."""

    def __init__(self, handle: TopicHandle) -> None:
        message_max = value_bytes_max(handle.clients.options.message_bytes_max)
        self._small_max = min(SMALL_BYTES_MAX, message_max - KEY_BYTES_MAX - _FRAMING_BYTES)
        self._piece_max = message_max - _FRAMING_BYTES
        self._handle = handle
        self._loop = asyncio.get_running_loop()
        self._changes = Changes()
        self._reader = StoreReader(
            handle.clients,
            lambda revision: deliver(self._loop, self._changes.begin, revision),
            lambda changes: deliver(self._loop, self._note, changes),
        )
        self._tail = Tail(
            handle.clients, None, self._came, lambda: self._came(0), lambda: bool(self._changes)
        )
        self._end_come = 0
        self._taking: asyncio.Task[None] | None = None
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._clearing = self._loop.create_task(self._keep_clearing())
        self._closing: asyncio.Task[None] | None = None
        handle.on_lost = self._changes.fail

    @classmethod
    async def open(cls, log: KafkaUrl, options: KafkaOptions) -> KafkaKeyValueStore:
        """Open the store of this log; create its topic if necessary.

        Raises as `TopicHandle.open`.
        """
        url = KafkaUrl(log.servers, f"{log.topic}.store")
        store = cls(await TopicHandle.open(url, options, STORE))
        try:
            await store._look(store._reader.revision, LOAD_TIMEOUT_S)
        except BaseException:
            await store.close()
            raise
        return store

    async def put(self, key: str, value: bytes) -> int:
        """Store the value under the key, durably; return the change's revision.

        If the caller is cancelled, the value may or may not be stored.
        """
        check_key(key)
        check_value(key, value)
        with self._changing():
            if len(value) <= self._small_max:
                return await self._change(key, small_message(value))
            manifest = self._manifest(key, value)
            await self._put_manifest(manifest)
            return await self._change(key, head_message(await self._put_pieces(manifest, value)))

    async def get(self, key: str) -> Kept | None:
        """Return the value under this key, with its revision; None if there is none."""
        check_key(key)
        return await self._look(lambda called_s: self._reader.get(called_s, key), VALUES_TIMEOUT_S)

    async def delete(self, key: str) -> None:
        """Delete the key and its value, durably; harmless if there is none."""
        check_key(key)
        with self._changing():
            await self._change(key, b"")

    async def scan(self, prefix: str) -> dict[str, Kept]:
        """Return the values of all keys that begin with ``prefix``, in the keys' order."""
        return await self._look(
            lambda called_s: self._reader.scan(called_s, prefix), VALUES_TIMEOUT_S
        )

    async def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with ``prefix``, in order."""
        return await self._look(lambda called_s: self._reader.keys(called_s, prefix))

    async def revision(self) -> int:
        """Return the revision of the newest change; 0 if there was none yet."""
        return await self._look(self._reader.revision)

    async def wait(self, prefix: str, after: int, timeout_s: float) -> bool:
        """Wait for a change below ``prefix`` after revision ``after``; False if there is none."""
        await self.revision()
        self._handle.check_usable()
        # Runs once this task is among the waiters.
        self._loop.call_soon(self._follow)
        return await self._changes.wait(prefix, after, timeout_s)

    async def close(self) -> None:
        """Close the connections and threads; unfinished changes finish first."""
        if self._closing is None:
            self._closing = self._loop.create_task(self._close())
        await asyncio.shield(self._closing)

    # -- moving ----------------------------------------------------------------------------

    async def refill(self, values: Iterable[Placed], end: int) -> None:
        """Store another store's values at their revisions (`MovableStore.refill`).

        A message's offset gives its revision, so the gaps are filled with messages without meaning.
        Manifests had no revision in the other store, so they are stored behind its newest one.
        """
        manifests: list[Manifest] = []
        with self._changing():
            at = await self.revision()
            for each in values:
                if each.revision <= at:
                    raise LogError(
                        f"the key {each.key!r} has revision {each.revision}, and the topic's next "
                        f"one is {at + 1}: import into a file instead"
                    )
                message = small_message(each.value)
                if len(each.value) > self._small_max:
                    manifests.append(self._manifest(each.key, each.value))
                    message = head_message(await self._put_pieces(manifests[-1], each.value))
                await self._fill(at, each.revision - 1)
                await self._place(each.revision - 1, [message], [each.key.encode()])
                at = each.revision
            await self._fill(at, end)
            for manifest in manifests:
                await self._put_manifest(manifest)

    async def _fill(self, at: int, end: int) -> None:
        """Append messages without meaning at the offsets from ``at`` up to ``end``."""
        while at < end:
            count = min(PLACED_AT_ONCE, end - at)
            await self._place(at, [b""] * count, [_FILLER_KEY] * count)
            at += count

    async def _place(self, first: int, messages: Sequence[bytes], keys: Sequence[bytes]) -> None:
        """Append messages at offsets from ``first`` on. Raises LogError if they get other ones."""
        appended = await self._handle.appender.append(messages, keys, KEYS_PARTITION)
        check_placed(first, appended)

    # -- changes ---------------------------------------------------------------------------

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """While the block runs, count a change as unfinished, so that ``close`` waits for it."""
        self._handle.check_usable()
        self._under_way += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def _change(self, key: str, message: bytes) -> int:
        known_end = self._changes.revision
        messages, keys = [message], [key.encode()]
        if known_end + 1 < FIRST_REVISION and not key.startswith(KEY_PREFIX):
            messages, keys = [b"", message], [_FILLER_KEY, *keys]
        offset = (await self._handle.appender.append(messages, keys, KEYS_PARTITION))[-1]
        self._handle.check_appended(offset, known_end)
        return offset + 1

    def _manifest(self, key: str, value: bytes) -> Manifest:
        return Manifest(uuid.uuid4().bytes, key, pieces_in(len(value), self._piece_max))

    async def _put_manifest(self, manifest: Manifest) -> None:
        name, message = manifest_message(manifest)
        await self._handle.appender.append([message], [name], KEYS_PARTITION)

    async def _put_pieces(self, manifest: Manifest, value: bytes) -> Head:
        """Store the pieces of a large value; return its head, which the caller must store."""
        deadline = time.monotonic() + LARGE_PUT_S
        append, key = self._handle.appender.append, manifest.key
        per_slice = max(1, SLICE_BYTES_MAX // self._piece_max)
        ends: list[int] = []
        for first in range(0, manifest.pieces, per_slice):
            numbers = range(first, min(first + per_slice, manifest.pieces))
            pieces = [value[n * self._piece_max : (n + 1) * self._piece_max] for n in numbers]
            keys = [piece_key(manifest.id, number) for number in numbers]
            offsets = await append(pieces, keys, PIECES_PARTITION)
            ends += [offsets[0], offsets[-1]]
            if time.monotonic() > deadline:
                raise LogUnavailableError(
                    f"the {len(value):,} bytes of {key!r} were not stored within {LARGE_PUT_S:g} s"
                )
        crc32 = zlib.crc32(value)
        return Head(manifest.id, ends[0], ends[-1], manifest.pieces, len(value), crc32)

    async def _keep_clearing(self) -> None:
        """Every CLEAR_EVERY_S delete pieces that no value uses: replaced or unfinished ones."""
        while True:
            await asyncio.sleep(CLEAR_EVERY_S)
            try:
                for manifest in await self._look(self._reader.unowned):
                    await self._clear(manifest)
            except LogError as error:
                _logger.debug("pieces of values that are gone stay for now: %s", error)

    async def _clear(self, manifest: Manifest) -> None:
        keys = [piece_key(manifest.id, number) for number in range(manifest.pieces)]
        append = self._handle.appender.append
        await append([b""] * len(keys), keys, PIECES_PARTITION)
        name, _ = manifest_message(manifest)
        await append([b""], [name], KEYS_PARTITION)

    # -- looking ---------------------------------------------------------------------------

    async def _look(self, look: Callable[[float], T], timeout_s: float = READ_TIMEOUT_S) -> T:
        called_s = time.monotonic()
        return await self._handle.run_on_reading_thread(lambda: look(called_s), timeout_s)

    def _note(self, changes: list[tuple[int, str]]) -> None:
        for revision, key in changes:
            self._changes.note(revision, key)

    def _follow(self) -> None:
        if self._changes and self._closing is None:
            self._tail.follow(self._changes.revision)

    def _came(self, end: int) -> None:
        """Read the topic, because it has the new end ``end`` or the reading position was lost."""
        self._end_come = max(end, self._end_come)
        if self._taking is None and self._closing is None:
            self._taking = self._loop.create_task(self._take_in())

    async def _take_in(self) -> None:
        try:
            taken = 0
            while taken <= self._end_come:
                taken = await self.revision() + 1
        except LogError as error:
            self._changes.fail(error)
        finally:
            self._taking = None
        self._follow()

    async def _close(self) -> None:
        self._handle.shut()
        self._clearing.cancel()
        await asyncio.wait([self._clearing] + ([self._taking] if self._taking else []))
        self._tail.stop()
        await self._idle.wait()
        await self._handle.close(self._reader.close, {})
