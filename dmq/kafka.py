"""A log in a Kafka topic of one partition.

All state lives on the event loop; whatever may wait for a broker runs on threads of its own, each
with its own clients: appends (`kafka_producer`), reads and trims (`kafka_reader`), the end of the
log (`kafka_tail`, only while somebody waits), cursors (`kafka_cursors`), and a look every second
whether the topic is still the one that was opened (`kafka_admin`). A record is one message, or
several if it is large (`kafka_chunks`).

What a broker that is away means: appends end as LogUnavailableError within their deadline, reads
within a few seconds, and both work again when it is back. Nothing but opening creates the topic,
so one that vanishes or is made anew under an open handle is noticed and never taken for the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from dmq.entries import RECORD_BYTES_MAX, check_cursor, encode_all
from dmq.errors import LogError, LogRegressedError
from dmq.interface import Cursor, Entry
from dmq.kafka_admin import TopicAdmin, open_topic
from dmq.kafka_chunks import cut, head_of, value_bytes_max
from dmq.kafka_clients import REQUEST_TIMEOUT_S, Clients
from dmq.kafka_cursors import CursorStore
from dmq.kafka_options import KafkaOptions
from dmq.kafka_producer import Appender
from dmq.kafka_reader import ShrunkError, TopicReader
from dmq.kafka_recent import Recent
from dmq.kafka_tail import Tail
from dmq.kafka_thread import Worker
from dmq.kafka_topic import KafkaUrl, check_options
from dmq.record import Record
from dmq.waiters import Waiters

OPEN_TIMEOUT_S: Final = 15.0
READ_TIMEOUT_S: Final = 2 * REQUEST_TIMEOUT_S
CURSOR_TIMEOUT_S: Final = 2 * REQUEST_TIMEOUT_S
SCAN_TIMEOUT_S: Final = 600.0
"""A trim may have to read through what was appended since the last one."""
CLOSE_TIMEOUT_S: Final = 2.0
LOOK_S: Final = 1.0
"""How often is looked whether the topic is still the same one."""
LOOKED_WITHIN_S: Final = 3.0
"""Nothing is read if the last look was longer ago."""
STUCK_S: Final = 3.0
"""A call for cursors that lasts so long while the broker answers others is given up, and its thread
with it: kafka-python 3.0.12 may wait for ever for the end of a transaction whose broker died."""

T = TypeVar("T")
_logger = logging.getLogger("dmq")


class KafkaLog:
    """One process's handle to the log; see `dmq.interface.Log`. Made by ``open``."""

    def __init__(
        self,
        clients: Clients,
        admin: TopicAdmin,
        appender: Appender,
        recent: Recent,
        bytes_max: int,
    ) -> None:
        self._clients = clients
        self._admin = admin
        self._appender = appender
        self._recent = recent
        self._record_bytes_max = bytes_max
        self._value_max = value_bytes_max(clients.options.message_bytes_max)
        self._loop = asyncio.get_running_loop()
        self._waiters = Waiters()
        self._reader = TopicReader(clients, recent)
        self._reading = Worker("dmq-kafka-read")
        self._cursors = CursorStore(clients)
        self._committing = Worker("dmq-kafka-cursors")
        self._administering = Worker("dmq-kafka-admin")
        self._answered = True
        self._looked_at = self._loop.time()
        self._lost: LogRegressedError | None = None
        self._tail = Tail(
            clients, recent, self._waiters.advance, self._lost_place, lambda: bool(self._waiters)
        )
        self._asking_end: asyncio.Task[None] | None = None
        self._looking = self._loop.create_task(self._keep_looking())
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls, url: KafkaUrl, options: KafkaOptions, *, record_bytes_max: int = RECORD_BYTES_MAX
    ) -> KafkaLog:
        """Open the log in this topic, creating it if need be.

        Raises ValueError for wrong options, LogError for a topic that could lose records, and
        LogUnavailableError if trying again may help.
        """
        check_options(options)
        clients = Clients(url.servers, url.topic, options)
        clients.check()
        recent = Recent()
        log: KafkaLog | None = None

        def stored(values: list[tuple[int, bytes]]) -> None:
            if log is not None:
                log._stored(values)

        appender = Appender(clients, stored)
        opening = Worker("dmq-kafka-open")
        given_up = threading.Event()

        def connect() -> TopicAdmin:
            admin = open_topic(clients)
            try:
                appender.start()
            except BaseException:
                admin.close()
                raise
            if given_up.is_set():
                admin.close()
            return admin

        try:
            doing = f"opening topic {url.topic} at {', '.join(url.servers)}"
            admin = await opening.call(connect, OPEN_TIMEOUT_S, doing)
        except BaseException:
            given_up.set()
            appender.stop()
            raise
        finally:
            opening.stop()
        log = cls(clients, admin, appender, recent, record_bytes_max)
        return log

    async def append(self, records: Sequence[Record]) -> list[int]:
        """See Log.append. If the caller is cancelled the records may or may not be there."""
        self._check_usable()
        encoded = encode_all(records, self._record_bytes_max)
        if not encoded:
            return []
        if max(map(len, encoded)) > self._value_max:
            encoded = await self._store_parts(encoded)
        known_end = self._waiters.end
        offsets = await self._appender.append(encoded)
        if offsets[0] < known_end:
            # Acknowledged, but not by the log that has been read so far.
            self._lose(
                LogRegressedError(
                    f"topic {self._clients.topic} had {known_end} records, and gave the next one "
                    f"offset {offsets[0]}: it lost records, or is another one"
                )
            )
            self._check_usable()
        return offsets

    async def read(
        self, start: int, *, records_max: int = 1024, bytes_max: int = 16 << 20
    ) -> list[Entry]:
        """See Log.read."""
        entries = await self._read(lambda: self._reader.read(start, records_max, bytes_max))
        if entries:
            self._waiters.advance(entries[-1].offset + 1)
        return entries

    async def wait(self, offset: int, timeout_s: float) -> bool:
        """See Log.wait."""
        self._check_usable()
        if self._waiters.end > offset:
            return True
        if (timeout_s <= 0 or not self._tail.following) and await self.end() > offset:
            return True
        if timeout_s <= 0:
            return False
        self._check_usable()
        # Runs once this task is among the waiters.
        self._loop.call_soon(self._follow)
        return await self._waiters.wait(offset, timeout_s)

    async def start(self) -> int:
        """See Log.start."""
        return (await self._read(self._reader.span))[0]

    async def end(self) -> int:
        """See Log.end."""
        end = await self._read(self._reader.end)
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
        groups = await self._administer(lambda: self._admin.groups(f"{self._clients.topic}."))
        return await self._commit(lambda cursors: cursors.cursors(groups))

    async def trim(self, before: int) -> None:
        """See Log.trim. Parts of large records that are still needed stay."""
        point = await self._read(lambda: self._reader.trim_point(before), SCAN_TIMEOUT_S)
        await self._administer(lambda: self._admin.delete_below(point))
        await self._read(lambda: self._reader.trimmed(point))

    async def identity(self) -> str:
        """See Log.identity: the id that Kafka gave the topic when it was created."""
        return self._admin.topic_id

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
        offsets = iter(await self._appender.append([part for parts in pieces for part in parts]))
        return tuple(
            head_of(data, [next(offsets) for _ in parts]) if parts else data
            for data, parts in zip(encoded, pieces, strict=True)
        )

    def _stored(self, values: list[tuple[int, bytes]]) -> None:
        if values:
            self._recent.extend(values)
            self._waiters.advance(values[-1][0] + 1)

    # -- reads -----------------------------------------------------------------------------

    async def _read(self, call: Callable[[], T], timeout_s: float = READ_TIMEOUT_S) -> T:
        self._check_usable()
        if self._loop.time() - self._looked_at > LOOKED_WITHIN_S:
            # This process was frozen, or the brokers were away: anything may have happened.
            await self._look()
        doing = f"reading topic {self._clients.topic} at {', '.join(self._clients.servers)}"
        try:
            return await self._reading.call(call, timeout_s, doing)
        except ShrunkError as error:
            self._lose(error)
            raise

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

    async def _keep_looking(self) -> None:
        while self._lost is None:
            await asyncio.sleep(LOOK_S)
            try:
                await self._look()
            except LogError as error:
                _logger.debug("%s", error)

    async def _look(self) -> None:
        """Notice when the topic is gone or another one."""
        began = self._loop.time()
        try:
            await self._administer(self._admin.check)
        except LogRegressedError as error:
            self._lose(error)
            raise
        except LogError:
            self._answered = False
            raise
        self._looked_at = began
        self._answered = True

    async def _administer(self, call: Callable[[], T]) -> T:
        self._check_usable()
        doing = f"topic {self._clients.topic} at {', '.join(self._clients.servers)}"
        return await self._administering.call(call, READ_TIMEOUT_S, doing)

    def _lose(self, error: LogRegressedError) -> None:
        self._lost = error
        self._waiters.fail(error)

    # -- cursors ---------------------------------------------------------------------------

    async def _commit(self, call: Callable[[CursorStore], T]) -> T:
        self._check_usable()
        if self._committing.busy_s > STUCK_S and self._answered:
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
        self._waiters.fail(LogError("the log was closed"))
        self._looking.cancel()
        tasks = [self._looking] + ([self._asking_end] if self._asking_end is not None else [])
        await asyncio.wait(tasks)
        self._tail.stop()
        await self._appender.finish()
        self._appender.stop()
        workers = {
            self._reading: self._reader.close,
            self._committing: self._cursors.close,
            self._administering: self._admin.close,
        }
        for worker, release in workers.items():
            with contextlib.suppress(LogError):
                await worker.call(release, CLOSE_TIMEOUT_S, "closing")
            worker.stop()

    def _check_usable(self) -> None:
        if self._closing is not None:
            raise LogError("the log was closed")
        if self._lost is not None:
            raise LogRegressedError(str(self._lost))
