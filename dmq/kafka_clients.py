"""Makes the clients of a Kafka topic, translates their errors, and has threads for their calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka import errors as kafka_errors
from kafka.codec import has_gzip, has_lz4, has_snappy, has_zstd

from dmq.kafka_topic import KafkaOptions
from dmq.log import LogError, LogUnavailableError

# Threads for calls that block.
#
# kafka-python has no asyncio, and nearly all its calls may wait for a broker. So each of its
# clients lives on one `Worker`, a daemon thread that runs one call after another. The event loop
# waits for the result with its own deadline: a call that hangs blocks its thread, never the loop. A
# call that its caller abandoned before it began is not run. The threads are daemons because a call
# that waits for a dead broker must not keep the process from ending.


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Call:
    work: Callable[[], Any]
    answer: asyncio.Future[Any]


class Worker:
    """One daemon thread that runs calls one after another; it starts with the first one.

    Belongs to one event loop.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._busy_since: float | None = None

    @property
    def busy_s(self) -> float:
        """Return how long the present call has been running, in seconds; 0 if none runs."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    async def call(self, work: Callable[[], T], timeout_s: float, doing: str) -> T:
        """Run ``work`` on the thread and return its result; ``doing`` describes it in errors.

        Raises LogUnavailableError after ``timeout_s``; the function may still run then.
        """
        answer: asyncio.Future[T] = self._loop.create_future()
        self._start()
        self._calls.put(_Call(work, answer))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError as error:
            raise LogUnavailableError(f"{doing}: no answer within {timeout_s:g} s") from error

    def stop(self) -> None:
        """Let the thread end after the calls that it has received so far."""
        self._calls.put(None)

    async def join(self, timeout_s: float) -> bool:
        """Wait for the thread's end; return False if it still runs after ``timeout_s``."""
        deadline = self._loop.time() + timeout_s
        while self._thread is not None and self._thread.is_alive():
            if self._loop.time() >= deadline:
                return False
            await asyncio.sleep(0.005)
        return True

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            if call.answer.done():
                continue  # The caller has abandoned it.
            self._busy_since = time.monotonic()
            try:
                result = call.work()
            except BaseException as error:
                self._deliver(_fail, call.answer, error)
            else:
                self._deliver(_succeed, call.answer, result)
            self._busy_since = None
            del call

    def _deliver(self, how: Callable[..., None], *arguments: object) -> None:
        deliver(self._loop, how, *arguments)


def deliver(loop: asyncio.AbstractEventLoop, how: Callable[..., None], *arguments: object) -> None:
    """Call ``how`` on the event loop, from any thread; do nothing if the loop is closed."""
    try:
        loop.call_soon_threadsafe(how, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise


def _succeed(answer: asyncio.Future[object], result: object) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[object], error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)


# The clients of a Kafka log, all with the same settings, and the meaning of their errors.
#
# Secrets among the settings appear in no error and no log record. (At level DEBUG kafka-python
# itself logs its settings and requests: so secrets are wrapped, and the request with the password
# is filtered out.)
#
# If kafka-python 3.0.12 finds no broker when a client is made, it waits, and leaves a thread and
# sockets behind. So after a log was opened no client looks for a broker when it is made: the
# brokers' version is known then, and the one admin client, which always looks, is kept.
# `_made_admin` cleans up after failures before that.


BOOTSTRAP_TIMEOUT_S: Final = 3.0
"""The time in which a new client must find a broker."""
REQUEST_TIMEOUT_S: Final = 3.0
"""The time in which a broker must answer a request; then the connection is closed."""
RECONNECT_BACKOFF_MAX_MS: Final = 500
RETRY_BACKOFF_MS: Final = 20
FETCH_BYTES_MAX: Final = 8 << 20
"""The most bytes that one request reads; chosen, not measured."""
TRANSACTION_TIMEOUT_MS: Final = 10_000

_OWN: Final = frozenset(
    {
        "bootstrap_servers",
        "bootstrap_timeout_ms",
        "request_timeout_ms",
        "retry_backoff_ms",
        "reconnect_backoff_max_ms",
        "metrics_enabled",
        "api_version",
    }
)
"""The settings of Kafka's clients that this package sets, so that a user must not."""
_CODECS: Final = {"gzip": has_gzip, "snappy": has_snappy, "lz4": has_lz4, "zstd": has_zstd}
_SECRET_PARTS: Final = ("password", "token", "secret", "proxy")

_REFUSED: Final = (
    kafka_errors.AuthorizationError,
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.IllegalSaslStateError,
    kafka_errors.SecurityDisabledError,
    kafka_errors.UnsupportedVersionError,
    kafka_errors.UnsupportedCompressionTypeError,
    kafka_errors.UnsupportedForMessageFormatError,
    kafka_errors.InvalidTopicError,
    kafka_errors.InvalidRequestError,
    kafka_errors.InvalidRecordError,
    kafka_errors.MessageSizeTooLargeError,
    kafka_errors.RecordListTooLargeError,
    kafka_errors.PolicyViolationError,
    kafka_errors.KafkaConfigurationError,
)
"""Errors of Kafka after which another attempt would fail, too."""
_TOO_LATE: Final = (kafka_errors.KafkaTimeoutError, kafka_errors.RequestTimedOutError)
"""Errors that mean that the time was over, not that a broker refused."""


class _Secret(str):
    """A text that shows as ``'***'`` when settings are printed."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class _NoCredentials(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        arguments = record.args if isinstance(record.args, tuple) else ()
        return not any("SaslAuthenticate" in type(each).__name__ for each in arguments)


class _NoPending(logging.Filter):
    """Removes program log messages about commits that are not visible yet: they are read again."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "UnstableOffsetCommit" not in record.getMessage()


class _NoBytes(logging.Filter):
    """Removes program log messages with the bytes of requests, which contain the password."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno > logging.DEBUG


class BootstrapFailure(logging.Filter):
    """Remembers why no broker was reached: kafka-python only writes it to the program's log.

    Of several attempts it remembers the clearest error: a broker that refuses a password often just
    closes the connection, and the deadline cuts the last attempt short.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: Exception | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith("Bootstrap connection") and isinstance(record.args, tuple):
            for error in record.args:
                if isinstance(error, Exception) and _weight(error) >= _weight(self.found):
                    self.found = error
        return True


def _weight(error: Exception | None) -> int:
    """Return how clearly an error shows the fault, from 0 (not at all) to 2."""
    # An error inside a connection may hide that the deadline cut it short.
    if error is None or isinstance(error, _TOO_LATE) or isinstance(error.__context__, _TOO_LATE):
        return 0
    return 2 if isinstance(error, _REFUSED) else 1


_bootstrap_failure: Final = BootstrapFailure()
logging.getLogger("kafka.net.manager").addFilter(_bootstrap_failure)
logging.getLogger("kafka.net.connection").addFilter(_NoCredentials())
logging.getLogger("kafka.protocol.parser").addFilter(_NoBytes())
logging.getLogger("kafka.coordinator.consumer").addFilter(_NoPending())


class Clients:
    """Makes kafka-python's clients (admin, consumers, producers) for one topic."""

    def __init__(self, servers: tuple[str, ...], topic: str, options: KafkaOptions) -> None:
        self.servers = servers
        self.topic = topic
        self.options = options
        self._version: tuple[int, ...] | None = None

    @property
    def partition(self) -> TopicPartition:
        """The first partition of the topic; a log has only this one."""
        return TopicPartition(self.topic, 0)

    def check(self) -> None:
        """Raise ValueError for unknown or reserved settings of the user.

        The message has the names of the settings, not their values.
        """
        compression = self.options.compression
        if compression and not _CODECS[compression]():
            raise ValueError(
                f"compression {compression} needs a package that is not installed: "
                f"pip install 'kafka-python[{compression}]'"
            )
        known = set(KafkaAdminClient.DEFAULT_CONFIG)
        known &= set(KafkaProducer.DEFAULT_CONFIG) & set(KafkaConsumer.DEFAULT_CONFIG)
        for name in self.options.client:
            if name in _OWN:
                raise ValueError(f"the Kafka client's {name} is the log's own: leave it out")
            if name not in known:
                raise ValueError(
                    f"{name} is no setting of a Kafka client; known are "
                    f"{', '.join(sorted(known - _OWN))}"
                )

    def admin(self) -> Any:
        """Return a new admin client, and note the brokers' version. Raises if no broker answers."""
        if not self._any_listens():
            raise kafka_errors.KafkaConnectionError("no broker takes a connection")
        admin = _made_admin(self._shared())
        try:
            probe = self.consumer()
            self._version = probe.config["api_version"]
            close_quietly(probe, autocommit=False, timeout_ms=0)
        except BaseException:
            close_quietly(admin)
            raise
        return admin

    def consumer(self, **settings: object) -> Any:
        """Return a new consumer that stores no offset by itself and never jumps to another one."""
        shared = {
            "group_id": None,
            "auto_offset_reset": "none",
            "enable_auto_commit": False,
            "allow_auto_create_topics": False,
            "max_partition_fetch_bytes": FETCH_BYTES_MAX,
            "metrics_enabled": False,
            "api_version": self._version,
        }
        return KafkaConsumer(**{**self._shared(), **shared, **settings})

    def producer(self) -> Any:
        """Return a new idempotent producer; its requests are answered after all replicas."""
        options = self.options
        timeout_ms = int(1000 * options.append_timeout_s)
        return KafkaProducer(
            **{
                **self._shared(),
                "acks": "all",
                "enable_idempotence": True,
                "linger_ms": 0,
                "batch_size": options.message_bytes_max,
                "max_request_size": options.message_bytes_max,
                "compression_type": options.compression or None,
                "max_block_ms": timeout_ms,
                "delivery_timeout_ms": timeout_ms,
                # Leaves time to try another broker if the leader hangs.
                "request_timeout_ms": max(1, timeout_ms // 2),
                "allow_auto_create_topics": False,
                "metrics_enabled": False,
                "api_version": self._version,
            }
        )

    def transactional_producer(self, transactional_id: str, timeout_s: float) -> Any:
        """Return a new producer of transactions; ``timeout_s``: for each call."""
        return KafkaProducer(
            **{
                **self._shared(),
                "transactional_id": transactional_id,
                "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
                "max_block_ms": int(1000 * timeout_s),
                # The pause of a transaction that meets the end of the one before it.
                "retry_backoff_ms": 5,
                "allow_auto_create_topics": False,
                "metrics_enabled": False,
                "api_version": self._version,
            }
        )

    def error(self, error: BaseException, doing: str) -> LogError:
        """Translate an error of kafka-python into one of this package; ``doing``: what failed.

        Raise the result ``from`` its own ``__cause__``, which is None if the original error's text
        has a secret.
        """
        if isinstance(error, LogError):
            return error
        kind = LogError if isinstance(error, _REFUSED) else LogUnavailableError
        text = str(error) or type(error).__name__
        if "disconnected" in text and self.options.client.get("sasl_mechanism"):
            text += " (which is also what brokers do that refuse the user or the password)"
        found = kind(f"{doing} at {', '.join(self.servers)}: {self._without_secrets(text)}")
        found.__cause__ = error if self._without_secrets(text) == text else None
        return found

    def _shared(self) -> dict[str, object]:
        hidden = secrets(self.options.client)
        return {
            **{
                name: _Secret(value) if isinstance(value, str) and value in hidden else value
                for name, value in self.options.client.items()
            },
            "bootstrap_servers": list(self.servers),
            "bootstrap_timeout_ms": int(1000 * BOOTSTRAP_TIMEOUT_S),
            "request_timeout_ms": int(1000 * REQUEST_TIMEOUT_S),
            "reconnect_backoff_max_ms": RECONNECT_BACKOFF_MAX_MS,
            "retry_backoff_ms": RETRY_BACKOFF_MS,
        }

    def _any_listens(self) -> bool:
        if self.options.client.get("proxy_url"):
            return True
        for server in self.servers:
            host, _, port = server.rpartition(":")
            with contextlib.suppress(OSError):
                socket.create_connection((host.strip("[]"), int(port)), REQUEST_TIMEOUT_S).close()
                return True
        return False

    def _without_secrets(self, text: str) -> str:
        for secret in secrets(self.options.client):
            text = text.replace(secret, "***")
        return text


def _made_admin(settings: Mapping[str, object]) -> Any:
    """Return a new admin client. If that fails, close all that was opened for it, and raise."""
    admin = KafkaAdminClient.__new__(KafkaAdminClient)
    _bootstrap_failure.found = None
    try:
        admin.__init__(**settings)
    except BaseException as error:
        # Its thread runs already, but ``close`` does nothing for a client that did not begin.
        admin._closed = False
        close_quietly(admin)
        if isinstance(error, kafka_errors.KafkaTimeoutError) and _bootstrap_failure.found:
            raise _bootstrap_failure.found from None
        raise
    return admin


def secrets(client: Mapping[str, object]) -> list[str]:
    """Return the values of the settings ``client`` whose names show that they are secret."""
    return [
        value
        for name, value in client.items()
        if isinstance(value, str) and value and any(part in name for part in _SECRET_PARTS)
    ]


def close_quietly(client: Any, **how: object) -> None:
    """Close a client that may be broken already; an error is ignored."""
    try:
        client.close(**how)
    except Exception as error:
        logging.getLogger("dmq").debug("a Kafka client did not close: %r", error)
        # If records cannot be sent in time, the producer does not end its thread itself.
        if isinstance(client, KafkaProducer):
            client._sender.force_close()
