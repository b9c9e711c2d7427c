"""One process's handle to a topic: opened, appended to, watched, closed. What its messages mean is
the affair of those who build on it (`kafka`, `keyed_kafka`).

Nothing but opening creates the topic: whether it is still the one that was opened is looked at
every second, and before anything is read if the last look is older than `LOOKED_WITHIN_S`. Once it
is lost, every call says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from dmq.errors import LogError, LogRegressedError
from dmq.kafka_admin import TopicAdmin, open_topic
from dmq.kafka_clients import REQUEST_TIMEOUT_S, Clients
from dmq.kafka_options import KafkaOptions
from dmq.kafka_producer import Appender
from dmq.kafka_reader import ShrunkError
from dmq.kafka_thread import Worker
from dmq.kafka_topic import KafkaUrl, Purpose, check_options

OPEN_TIMEOUT_S: Final = 15.0
READ_TIMEOUT_S: Final = 2 * REQUEST_TIMEOUT_S
CLOSE_TIMEOUT_S: Final = 2.0
LOOK_S: Final = 1.0
"""How often is looked whether the topic is still the same one."""
LOOKED_WITHIN_S: Final = 3.0
"""Nothing is read if the last look was longer ago."""

T = TypeVar("T")
_logger = logging.getLogger("dmq")


class TopicHandle:
    """See the module. Made by ``open``; ``on_lost`` hears once that the topic is lost."""

    def __init__(self, clients: Clients, admin: TopicAdmin, appender: Appender, what: str) -> None:
        self.clients = clients
        self.admin = admin
        self.appender = appender
        self.on_lost: Callable[[LogError], None] = lambda error: None
        self._what = what
        self._loop = asyncio.get_running_loop()
        self._reading = Worker("dmq-kafka-read")
        self._administering = Worker("dmq-kafka-admin")
        self.answered = True
        """Whether the last look found a broker that answers."""
        self._looked_at = self._loop.time()
        self._lost: LogRegressedError | None = None
        self._looking = self._loop.create_task(self._keep_looking())
        self._closed = False

    @classmethod
    async def open(
        cls,
        url: KafkaUrl,
        options: KafkaOptions,
        purpose: Purpose,
        on_stored: Callable[[list[tuple[int, bytes]]], None] = lambda stored: None,
    ) -> TopicHandle:
        """Open this topic, creating it if need be.

        Raises ValueError for wrong options, LogError for a topic that could lose records, and
        LogUnavailableError if trying again may help.
        """
        check_options(options)
        clients = Clients(url.servers, url.topic, options)
        clients.check()
        appender = Appender(clients, on_stored)
        opening = Worker("dmq-kafka-open")
        given_up = threading.Event()

        def connect() -> TopicAdmin:
            admin = open_topic(clients, purpose)
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
        return cls(clients, admin, appender, purpose.what)

    async def read(self, call: Callable[[], T], timeout_s: float = READ_TIMEOUT_S) -> T:
        """Run this on the reading thread, once it is known that the topic is the same one."""
        self.check_usable()
        if self._loop.time() - self._looked_at > LOOKED_WITHIN_S:
            # This process was frozen, or the brokers were away: anything may have happened.
            await self._look()
        doing = f"reading topic {self.clients.topic} at {', '.join(self.clients.servers)}"
        try:
            return await self._reading.call(call, timeout_s, doing)
        except ShrunkError as error:
            self.lose(error)
            raise

    async def administer(self, call: Callable[[], T]) -> T:
        """Run this on the thread that asks Kafka's controller."""
        self.check_usable()
        doing = f"topic {self.clients.topic} at {', '.join(self.clients.servers)}"
        return await self._administering.call(call, READ_TIMEOUT_S, doing)

    def check_appended(self, offset: int, known_end: int) -> None:
        """Raise LogRegressedError if an append got a place that was taken before."""
        if offset < known_end:
            # Acknowledged, but not by the topic that has been read so far.
            self.lose(
                LogRegressedError(
                    f"topic {self.clients.topic} had {known_end} records, and gave the next one "
                    f"offset {offset}: it lost records, or is another one"
                )
            )
            self.check_usable()

    def lose(self, error: LogRegressedError) -> None:
        """From here on nothing works any more."""
        self._lost = error
        self.on_lost(error)

    def check_usable(self) -> None:
        """Raise what every call raises once it is closed or lost."""
        if self._closed:
            raise LogError(f"the {self._what} was closed")
        if self._lost is not None:
            raise LogRegressedError(str(self._lost))

    def shut(self) -> None:
        """Refuse calls from now on, and tell those who wait."""
        self._closed = True
        self._looking.cancel()
        self.on_lost(LogError(f"the {self._what} was closed"))

    async def close(
        self, close_reader: Callable[[], None], others: Mapping[Worker, Callable[[], None]]
    ) -> None:
        """Finish what is under way, and release all; ``others`` are threads of the caller's."""
        await asyncio.wait([self._looking])
        await self.appender.finish()
        self.appender.stop()
        workers = {
            self._reading: close_reader,
            **others,
            self._administering: self.admin.close,
        }
        for worker, release in workers.items():
            with contextlib.suppress(LogError):
                await worker.call(release, CLOSE_TIMEOUT_S, "closing")
            worker.stop()

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
            await self.administer(self.admin.check)
        except LogRegressedError as error:
            self.lose(error)
            raise
        except LogError:
            self.answered = False
            raise
        self._looked_at = began
        self.answered = True
