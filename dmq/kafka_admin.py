"""Makes a log's topic, checks it, and watches that it stays the same one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from kafka import errors as kafka_errors
from kafka.admin import ConfigResource, ConfigResourceType

from dmq.errors import LogError, LogRegressedError, LogUnavailableError
from dmq.kafka_clients import REQUEST_TIMEOUT_S, Clients, close_quietly
from dmq.kafka_topic import LOG, Purpose, faults, needed

GONE_AFTER_S: Final = 3.0
"""A topic that no broker has known for so long is gone; one that starts may not know it."""
APPEARS_WITHIN_S: Final = 10.0
CURSORS_KEPT_DAYS_MIN: Final = 30
ASK_AGAIN_S: Final = 0.1

_UNKNOWN_TOPIC: Final = kafka_errors.UnknownTopicOrPartitionError.errno
T = TypeVar("T")
_logger = logging.getLogger("dmq")


def open_topic(clients: Clients, purpose: Purpose) -> TopicAdmin:
    """Make the topic if there is none, and check it. Blocks.

    Raises LogError for a topic that could lose records, with what mends it.
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
    """Return what the broker says of the topic, or None if it knows none."""
    (found,) = admin.describe_topics([topic])
    if found["error_code"] == _UNKNOWN_TOPIC:
        return None
    if found["error_code"]:
        raise kafka_errors.for_code(found["error_code"])()
    return dict(found)


def _create(clients: Clients, admin: Any, purpose: Purpose) -> None:
    topic, options = clients.topic, clients.options
    wish = {
        "num_partitions": purpose.partitions,
        "replication_factor": options.replication_factor,
        "configs": {**needed(options, purpose), **purpose.tuning},
    }
    try:
        admin.create_topics({topic: wish})
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
    """Wait until the new topic has a leader."""
    deadline = time.monotonic() + APPEARS_WITHIN_S
    while time.monotonic() < deadline:
        found = _describe(admin, clients.topic)
        if found is not None and all(part["leader_id"] >= 0 for part in found["partitions"]):
            return found
        time.sleep(ASK_AGAIN_S)
    raise LogUnavailableError(f"topic {clients.topic} was created but did not get a leader")


def _warn_of_short_memory(admin: Any, broker: int) -> None:
    """Say so if the brokers forget cursors that nobody commits for a while."""
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
    """What is asked of the brokers beside records and cursors. Belongs to one thread; blocks."""

    def __init__(self, clients: Clients, admin: Any, topic_id: str) -> None:
        self._clients = clients
        self._admin = admin
        self.topic_id = topic_id
        self._missing_since: float | None = None

    def check(self) -> None:
        """Return if the topic is the one that was opened; LogRegressedError if not."""
        topic = self._clients.topic
        found = self._asking(lambda: _describe(self._admin, topic))
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
        """Return the consumer groups whose names begin so."""
        found = self._asking(self._admin.list_groups)
        return [group["group_id"] for group in found if group["group_id"].startswith(prefix)]

    def delete_below(self, offset: int) -> None:
        """Delete the records below this offset."""
        timeout_ms = int(1000 * REQUEST_TIMEOUT_S)
        self._asking(
            lambda: self._admin.delete_records(
                {self._clients.partition: offset}, timeout_ms=timeout_ms
            )
        )

    def close(self) -> None:
        """Release the connection."""
        close_quietly(self._admin)

    def _asking(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:
            failure = self._clients.error(error, f"topic {self._clients.topic}")
            raise failure from failure.__cause__
