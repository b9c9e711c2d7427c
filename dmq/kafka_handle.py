"""One process's handle to a Kafka topic: creates, checks, opens, watches and closes the topic."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType

from dmq.kafka_clients import REQUEST_TIMEOUT_S, Clients, Worker, close_quietly
from dmq.kafka_producer import Appender
from dmq.kafka_reader import ShrunkError
from dmq.kafka_topic import LOG, KafkaOptions, KafkaUrl, Purpose, check_options, faults, needed
from dmq.log import LogError, LogRegressedError, LogUnavailableError

# Making and checking a log's topic, and the check that it is still the same one.


GONE_AFTER_S: Final = 3.0
"""A topic counts as deleted if no broker has known it for this time.

A broker that starts may not know it yet.
"""
APPEARS_WITHIN_S: Final = 10.0
CURSORS_KEPT_DAYS_MIN: Final = 30
RETRY_PAUSE_S: Final = 0.1

_UNKNOWN_TOPIC: Final = kafka_errors.UnknownTopicOrPartitionError.errno
T = TypeVar("T")
_logger = logging.getLogger("dmq")


def open_topic(clients: Clients, purpose: Purpose) -> TopicAdmin:
    """Open the topic, create it if there is none, and check its settings. Blocks.

    Raises LogError for a topic that could lose records, and says how to correct it.
    """
    topic, options = clients.topic, clients.options
    admin: Any = None
    try:
        admin = clients.admin()
        found = _describe(admin, topic)
        if found is None:
            _create(clients, admin, purpose)
            found = _appeared(clients, admin)
        described = admin.describe_configs(
            [ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all"
        )
        settings = {
            name: str(setting["value"]) for name, setting in described["topic"][topic].items()
        }
        partitions = found["partitions"]
        replicas = min(len(partition["replica_nodes"]) for partition in partitions)
        wrong = faults(topic, len(partitions), replicas, settings, options, purpose)
        if wrong:
            raise LogError(f"topic {topic} cannot hold a {purpose.what}: {'; '.join(wrong)}")
        if purpose is LOG:
            _warn_of_short_memory(admin, partitions[0]["leader_id"])
        return TopicAdmin(clients, admin, str(found["topic_id"]))
    except Exception as error:
        if admin is not None:
            close_quietly(admin)
        failure = clients.error(error, f"topic {topic} cannot be opened")
        raise failure from failure.__cause__


def _describe(admin: Any, topic: str) -> dict[str, Any] | None:
    """Return the brokers' description of the topic; None if there is no such topic."""
    (found,) = admin.describe_topics([topic])
    if found["error_code"] == _UNKNOWN_TOPIC:
        return None
    if found["error_code"]:
        raise kafka_errors.for_code(found["error_code"])()
    return dict(found)


def _create(clients: Clients, admin: Any, purpose: Purpose) -> None:
    topic, options = clients.topic, clients.options
    requested = {
        "num_partitions": purpose.partitions,
        "replication_factor": options.replication_factor,
        "configs": {**needed(options, purpose), **purpose.tuning},
    }
    try:
        admin.create_topics({topic: requested})
        _logger.info("topic %s was created", topic)
    except kafka_errors.TopicAlreadyExistsError:
        pass  # Another process was first; its topic is checked like any other.
    except kafka_errors.InvalidReplicationFactorError as error:
        raise LogUnavailableError(
            f"topic {topic} cannot be created with replication_factor "
            f"{options.replication_factor}: there are not so many brokers; start them, or lower "
            "replication_factor"
        ) from error


def _appeared(clients: Clients, admin: Any) -> dict[str, Any]:
    """Wait until each partition of the new topic has a leader; return its description."""
    deadline = time.monotonic() + APPEARS_WITHIN_S
    while time.monotonic() < deadline:
        found = _describe(admin, clients.topic)
        if found is not None and all(part["leader_id"] >= 0 for part in found["partitions"]):
            return found
        time.sleep(RETRY_PAUSE_S)
    raise LogUnavailableError(f"topic {clients.topic} was created but did not get a leader")


def _warn_of_short_memory(admin: Any, broker: int) -> None:
    """Warn in the program's log if the brokers delete cursors that stay unchanged too soon."""
    try:
        described = admin.describe_configs(
            [ConfigResource(ConfigResourceType.BROKER, str(broker))], config_filter="all"
        )
        minutes = int(described["broker"][str(broker)]["offsets.retention.minutes"]["value"])
    except Exception as error:
        _logger.debug("offsets.retention.minutes is not known: %r", error)
        return
    if minutes < CURSORS_KEPT_DAYS_MIN * 24 * 60:
        _logger.warning(
            "the brokers forget the cursor of a cluster that is away for %.1f days: set "
            "offsets.retention.minutes in their configuration to at least %d",
            minutes / (24 * 60),
            CURSORS_KEPT_DAYS_MIN * 24 * 60,
        )


class TopicAdmin:
    """Requests about a topic itself: is it the same one, its groups, deletions.

    Belongs to one thread; its calls block.
    """

    def __init__(self, clients: Clients, admin: Any, topic_id: str) -> None:
        self._clients = clients
        self._admin = admin
        self.topic_id = topic_id
        self._missing_since: float | None = None

    def check(self) -> None:
        """Raise LogRegressedError if the topic was deleted, or deleted and created again.

        A missing topic counts as deleted after `GONE_AFTER_S`.
        """
        topic = self._clients.topic
        found = self._requested(lambda: _describe(self._admin, topic))
        if found is not None and str(found["topic_id"]) == self.topic_id:
            self._missing_since = None
            return
        if found is not None:
            raise LogRegressedError(
                f"topic {topic} was deleted and made anew: it is another one, and this one is lost"
            )
        now = time.monotonic()
        self._missing_since = self._missing_since or now
        if now - self._missing_since >= GONE_AFTER_S:
            raise LogRegressedError(f"topic {topic} is gone, and its records with it")

    def groups(self, prefix: str) -> list[str]:
        """Return the names of the consumer groups that begin with ``prefix``."""
        found = self._requested(self._admin.list_groups)
        return [group["group_id"] for group in found if group["group_id"].startswith(prefix)]

    def delete_below(self, offset: int) -> None:
        """Delete the topic's records below ``offset``."""
        timeout_ms = int(1000 * REQUEST_TIMEOUT_S)
        self._requested(
            lambda: self._admin.delete_records(
                {self._clients.partition: offset}, timeout_ms=timeout_ms
            )
        )

    def close(self) -> None:
        """Close the connection to the brokers."""
        close_quietly(self._admin)

    def _requested(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:
            failure = self._clients.error(error, f"topic {self._clients.topic}")
            raise failure from failure.__cause__


OPEN_TIMEOUT_S: Final = 15.0
READ_TIMEOUT_S: Final = 2 * REQUEST_TIMEOUT_S
CLOSE_TIMEOUT_S: Final = 2.0
LOOK_S: Final = 1.0
"""The interval of checks that the topic is still the one that was opened."""
LOOKED_WITHIN_S: Final = 3.0
"""If the last of these checks is older, a read makes the check first."""


class TopicHandle:
    """One process's handle to a topic, which watches that the topic stays the same one.

    Modules built on it define the messages (`kafka`, `key_value_kafka`). Only opening creates the
    topic. Every second, and before a read if the last check is older than `LOOKED_WITHIN_S`, the
    handle checks that the topic is still the one that was opened. If it is not, it is *lost*: every
    call raises LogRegressedError.

    Made by ``open``; ``on_lost`` is called once if the topic is lost, and when the handle is
    closed.
    """

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
        """True if a broker answered the last check of the topic."""
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
        """Open this topic; create it if necessary. ``on_stored``: called with what was appended.

        Raises ValueError for wrong options, LogError for a topic that could lose records, and
        LogUnavailableError if trying again may help.
        """
        check_options(options)
        clients = Clients(url.servers, url.topic, options)
        clients.check()
        appender = Appender(clients, on_stored)
        opening = Worker("dmq-kafka-open")
        cancelled = threading.Event()

        def connect() -> TopicAdmin:
            admin = open_topic(clients, purpose)
            try:
                appender.start()
            except BaseException:
                admin.close()
                raise
            if cancelled.is_set():
                admin.close()
            return admin

        try:
            doing = f"opening topic {url.topic} at {', '.join(url.servers)}"
            admin = await opening.call(connect, OPEN_TIMEOUT_S, doing)
        except BaseException:
            cancelled.set()
            appender.stop()
            raise
        finally:
            opening.stop()
        return cls(clients, admin, appender, purpose.what)

    async def run_on_reading_thread(
        self, call: Callable[[], T], timeout_s: float = READ_TIMEOUT_S
    ) -> T:
        """Run ``call`` on the thread for reads; return its result.

        If the last check of the topic is too old, the topic is checked first.
        """
        self.check_usable()
        if self._loop.time() - self._looked_at > LOOKED_WITHIN_S:
            # This process was frozen, or the brokers were away: the topic may have changed.
            await self._look()
        doing = f"reading topic {self.clients.topic} at {', '.join(self.clients.servers)}"
        try:
            return await self._reading.call(call, timeout_s, doing)
        except ShrunkError as error:
            self.lose(error)
            raise

    async def administer(self, call: Callable[[], T]) -> T:
        """Run ``call`` on the thread for requests about the topic itself; return its result."""
        self.check_usable()
        doing = f"topic {self.clients.topic} at {', '.join(self.clients.servers)}"
        return await self._administering.call(call, READ_TIMEOUT_S, doing)

    def check_appended(self, offset: int, known_end: int) -> None:
        """Raise LogRegressedError if an append got an offset below ``known_end``: it was used."""
        if offset < known_end:
            # Acknowledged, but not by the topic that was read so far.
            self.lose(
                LogRegressedError(
                    f"topic {self.clients.topic} had {known_end} records, and gave the next one "
                    f"offset {offset}: it lost records, or is another one"
                )
            )
            self.check_usable()

    def lose(self, error: LogRegressedError) -> None:
        """Mark the topic as lost: every later call raises ``error``."""
        self._lost = error
        self.on_lost(error)

    def check_usable(self) -> None:
        """Raise an error if the handle was closed, or if its topic is lost."""
        if self._closed:
            raise LogError(f"the {self._what} was closed")
        if self._lost is not None:
            raise LogRegressedError(str(self._lost))

    def shut(self) -> None:
        """Refuse calls from now on, and make the waiting calls raise LogError."""
        self._closed = True
        self._looking.cancel()
        self.on_lost(LogError(f"the {self._what} was closed"))

    async def close(
        self, close_reader: Callable[[], None], others: Mapping[Worker, Callable[[], None]]
    ) -> None:
        """Let running calls finish, and close all connections and threads.

        ``close_reader``: closes the reader's connections. ``others``: the caller's own threads, and
        what closes each.
        """
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
        """Check that the topic exists and is the same one. If not, mark it as lost, and raise."""
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
