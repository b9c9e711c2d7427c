"""A log and a key-value store in memory, for tests, simulations and a ring of one cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from dmq.key_value import FIRST_REVISION, Kept, Placed, check_key, check_value
from dmq.log import (
    RECORD_BYTES_MAX,
    Batches,
    Cursor,
    Entry,
    LogError,
    Record,
    check_begins,
    check_cursor,
    check_epoch,
    check_not_beyond,
    check_placed,
    check_readable,
    decode_run,
    encode_all,
)
from dmq.waiting import Changes, Waiters

# A key-value store in memory, for tests, simulations and a ring of one cluster.
#
# `MemoryKeys` has the data that would be on disk; `MemoryKeyValueStore` is one process's handle to
# it, so that a simulated process can die and come back to the same store. Like the log in memory it
# starts no thread, reads no clock, and yields to the loop only in ``wait``.


class MemoryKeys:
    """The content of a key-value store in memory, shared by its handles; it outlives them."""

    def __init__(self) -> None:
        self.revision = 0
        self.kept: dict[str, Kept] = {}
        self._listeners: list[Changes] = []

    def change(self, key: str, value: bytes | None) -> int:
        """Store the value under the key; for None delete the key. Return the change's revision."""
        self.revision = max(self.revision + 1, FIRST_REVISION)
        if value is None:
            self.kept.pop(key, None)
        else:
            self.kept[key] = Kept(value, self.revision)
        for changes in tuple(self._listeners):
            changes.note(self.revision, key)
        return self.revision

    def place(self, placed: Placed) -> None:
        """Store a value at the revision that it had in another store."""
        self.kept[placed.key] = Kept(placed.value, placed.revision)
        self.revision = max(self.revision, placed.revision)

    def listen(self, changes: Changes) -> None:
        """Send every later change of the store to ``changes``."""
        self._listeners.append(changes)
        changes.begin(self.revision)

    def leave(self, changes: Changes) -> None:
        """Send no more changes of the store to ``changes``."""
        self._listeners.remove(changes)


class MemoryKeyValueStore:
    """One handle to a key-value store in memory; see `dmq.key_value.KeyValueStore`."""

    def __init__(self, shared: MemoryKeys | None = None) -> None:
        self._shared = MemoryKeys() if shared is None else shared
        self._changes = Changes()
        self._closed = False
        self._shared.listen(self._changes)

    async def put(self, key: str, value: bytes) -> int:
        """Store the value under the key; return the change's revision."""
        self._check_open()
        check_key(key)
        check_value(key, value)
        return self._shared.change(key, bytes(value))

    async def get(self, key: str) -> Kept | None:
        """Return the value under this key, with its revision; None if there is none."""
        self._check_open()
        check_key(key)
        return self._shared.kept.get(key)

    async def delete(self, key: str) -> None:
        """Delete the key and its value; harmless if there is none."""
        self._check_open()
        check_key(key)
        if key in self._shared.kept:
            self._shared.change(key, None)

    async def scan(self, prefix: str) -> dict[str, Kept]:
        """Return the values of all keys that begin with ``prefix``, in the keys' order."""
        return {key: self._shared.kept[key] for key in await self.keys(prefix)}

    async def keys(self, prefix: str) -> list[str]:
        """Return the keys that begin with ``prefix``, in order."""
        self._check_open()
        return sorted(key for key in self._shared.kept if key.startswith(prefix))

    async def revision(self) -> int:
        """Return the revision of the newest change; 0 if there was none yet."""
        self._check_open()
        return self._shared.revision

    async def wait(self, prefix: str, after: int, timeout_s: float) -> bool:
        """Wait for a change below ``prefix`` after revision ``after``; False if there is none."""
        self._check_open()
        return await self._changes.wait(prefix, after, timeout_s)

    async def refill(self, values: Iterable[Placed], end: int) -> None:
        """Store another store's values at their revisions (`MovableStore.refill`)."""
        self._check_open()
        for placed in values:
            self._shared.place(placed)
        self._shared.revision = max(self._shared.revision, end)
        self._changes.begin(self._shared.revision)

    async def close(self) -> None:
        """Close this handle; the values stay for the other handles."""
        if not self._closed:
            self._closed = True
            self._shared.leave(self._changes)
            self._changes.fail(LogError("the store was closed"))

    def _check_open(self) -> None:
        if self._closed:
            raise LogError("the store was closed")


# A log in memory, for tests and simulations.
#
# `MemoryStore` has the data that would be on disk; `MemoryLog` is one process's handle to it, so
# that a simulated process can die (its handle is dropped) and come back to the same log. Nothing
# here starts a thread, reads a clock or yields to the loop except in ``wait``, with a timer of the
# running loop: under a virtual clock every run with the same inputs is the same.
#
# Records are kept as their bytes, so every read record has been encoded and decoded.


class MemoryStore:
    """The records and cursors of a log in memory, shared by its handles; it outlives them."""

    def __init__(
        self, *, record_bytes_max: int = RECORD_BYTES_MAX, identity: str = "memory"
    ) -> None:
        self.record_bytes_max = record_bytes_max
        self.identity = identity
        self.start = 0
        self.cursors: dict[str, Cursor] = {}
        self._stored: list[bytes] = []
        self._listeners: list[Waiters] = []

    @property
    def end(self) -> int:
        """The offset after the newest record."""
        return self.start + len(self._stored)

    def append_stored(self, encoded: Sequence[bytes]) -> list[int]:
        """Append records that are bytes already, and wake the readers that wait for them."""
        first = self.end
        self._stored.extend(encoded)
        for waiters in tuple(self._listeners):
            waiters.advance(self.end)
        return list(range(first, self.end))

    def stored_from(self, offset: int, records_max: int, bytes_max: int) -> list[tuple[int, bytes]]:
        """Return the records' bytes from ``offset`` on, within both limits but at least one."""
        taken: list[tuple[int, bytes]] = []
        size = 0
        first = offset - self.start
        for data in islice(self._stored, first, first + max(1, records_max)):
            size += len(data)
            if taken and size > bytes_max:
                break
            taken.append((offset + len(taken), data))
        return taken

    def trim(self, before: int) -> None:
        """Delete the records below ``before``."""
        count = max(0, before - self.start)
        del self._stored[:count]
        self.start += count

    def listen(self, waiters: Waiters) -> None:
        """Send every new end of the log to ``waiters``, beginning with the present one."""
        self._listeners.append(waiters)
        waiters.advance(self.end)

    def leave(self, waiters: Waiters) -> None:
        """Send no more ends of the log to ``waiters``."""
        self._listeners.remove(waiters)


class MemoryLog:
    """One handle to a log in memory; see `dmq.log.Log`."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self._store = MemoryStore() if store is None else store
        self.known_as = ""
        self._waiters = Waiters()
        self._closed = False
        self._store.listen(self._waiters)

    async def append(self, records: Sequence[Record]) -> list[int]:
        """Store the records at the end of the log, in order; return their offsets."""
        self._check_open()
        return self._store.append_stored(encode_all(records, self._store.record_bytes_max))

    async def read(
        self, start: int, *, records_max: int = 1024, bytes_max: int = 16 << 20
    ) -> list[Entry]:
        """Return entries from offset ``start`` on, at least one if there is any (`Log.read`)."""
        self._check_open()
        check_readable(start, self._store.start, self._store.end)
        return decode_run(start, self._store.stored_from(start, records_max, bytes_max))

    async def wait(self, offset: int, timeout_s: float) -> bool:
        """Wait until the log's end is beyond ``offset`` (True), or the time is over (False)."""
        self._check_open()
        return await self._waiters.wait(offset, timeout_s)

    async def start(self) -> int:
        """Return the lowest offset that can still be read."""
        self._check_open()
        return self._store.start

    async def end(self) -> int:
        """Return the offset after the newest record."""
        self._check_open()
        return self._store.end

    async def load_cursor(self, reader: str) -> Cursor | None:
        """Return the reader's stored cursor, or None if it never stored one."""
        self._check_open()
        return self._store.cursors.get(reader)

    async def commit_cursor(self, reader: str, cursor: Cursor) -> None:
        """Store the reader's cursor. Raises FencedError if a stored one has a higher epoch."""
        self._check_open()
        check_cursor(cursor)
        check_epoch(reader, self._store.cursors.get(reader), cursor)
        self._store.cursors[reader] = cursor

    async def cursors(self) -> Mapping[str, Cursor]:
        """Return every reader's stored cursor, by reader."""
        self._check_open()
        return dict(self._store.cursors)

    async def trim(self, before: int) -> None:
        """Delete the records below offset ``before``."""
        self._check_open()
        check_not_beyond(before, self._store.end)
        self._store.trim(before)

    async def identity(self) -> str:
        """Return the log's id: its id before a move, else its own."""
        return self.known_as or self._store.identity

    async def begin_at(self, offset: int) -> None:
        """Make a log without records begin, and end, at ``offset`` (`MovableLog.begin_at`)."""
        self._check_open()
        check_begins(offset, self._store.start, self._store.end)
        self._store.start = offset

    async def refill(self, end: int, batches: Batches) -> None:
        """Append another log's records at their offsets (`MovableLog.refill`)."""
        self._check_open()
        for first, encoded in batches():
            check_placed(first, self._store.append_stored(encoded))

    async def close(self) -> None:
        """Close this handle; the records stay for the other handles."""
        if not self._closed:
            self._closed = True
            self._store.leave(self._waiters)
            self._waiters.fail(LogError("the log was closed"))

    def _check_open(self) -> None:
        if self._closed:
            raise LogError("the log was closed")
