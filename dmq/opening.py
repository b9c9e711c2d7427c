"""Opening a log, and the key-value store beside it, by the log's URL.

``memory:`` is a new, empty log in this process. ``sqlite:///var/lib/ring.db`` is a file by its
absolute path, ``sqlite:ring.db`` one relative to the working directory. Paths are not unescaped.
``kafka://host:9092,other:9092/ring`` is a Kafka topic.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from dmq.kafka_topic import KafkaOptions, parse_url
from dmq.key_value import MovableStore, check_usable, origin_of
from dmq.key_value_sqlite import SqliteKeyValueStore
from dmq.log import RECORD_BYTES_MAX, LogError, MovableLog
from dmq.memory import MemoryKeyValueStore, MemoryLog, MemoryStore
from dmq.sqlite import SqliteLog

_KNOWN: Final = "memory:, sqlite:///absolute/path, sqlite:relative/path, kafka://host:9092/topic"
STORE_SUFFIX: Final = "-store"
"""The suffix that is added to a log's file name to get its store's file name."""
_NO_KAFKA: Final = KafkaOptions()


async def open_log(
    url: str, *, record_bytes_max: int = RECORD_BYTES_MAX, kafka: KafkaOptions = _NO_KAFKA
) -> MovableLog:
    """Open the log at this URL. ``kafka``: options that only a Kafka topic needs.

    ``record_bytes_max``: the most bytes of an encoded record. Raises ValueError for a URL that
    names no log, LogError for a log that cannot be used, and LogUnavailableError (a LogError, too)
    if trying again may help.
    """
    scheme, rest = _parts(url)
    if scheme == "memory":
        return MemoryLog(MemoryStore(record_bytes_max=record_bytes_max, identity=uuid.uuid4().hex))
    if scheme == "sqlite":
        return await SqliteLog.open(_sqlite_path(url, rest), record_bytes_max=record_bytes_max)
    parts = parse_url(url)
    with _extra(url):
        from dmq.kafka import KafkaLog
    return await KafkaLog.open(parts, kafka, record_bytes_max=record_bytes_max)


async def open_store(url: str, *, kafka: KafkaOptions = _NO_KAFKA) -> MovableStore:
    """Open the key-value store beside the log at this URL; create it if necessary.

    For a log in a file it is a file beside it, for one in Kafka a topic of its own, for one in
    memory a new, empty store of this process. Raises as `open_log` does.
    """
    scheme, rest = _parts(url)
    if scheme == "sqlite":
        return await SqliteKeyValueStore.open(f"{_sqlite_path(url, rest)}{STORE_SUFFIX}")
    if scheme == "memory":
        return MemoryKeyValueStore()
    parts = parse_url(url)
    with _extra(url):
        from dmq.key_value_kafka import KafkaKeyValueStore
    return await KafkaKeyValueStore.open(parts, kafka)


async def open_both(
    url: str, *, record_bytes_max: int = RECORD_BYTES_MAX, kafka: KafkaOptions = _NO_KAFKA
) -> tuple[MovableLog, MovableStore]:
    """Open the log and the store beside it; if one fails, the other is closed again.

    A log that was moved here has the id from before the move. Raises as `open_log` does, and
    LogError for a log that was filled only in part, or was moved elsewhere (`dmq.key_value`).
    """
    log = await open_log(url, record_bytes_max=record_bytes_max, kafka=kafka)
    try:
        store = await open_store(url, kafka=kafka)
        try:
            found = await origin_of(log, store)
            check_usable(url, found)
            log.known_as = found.identity
        except BaseException:
            await store.close()
            raise
    except BaseException:
        await log.close()
        raise
    return log, store


@contextmanager
def _extra(url: str) -> Iterator[None]:
    """While the block runs: if kafka-python is not installed, raise an error that says so."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "kafka":
            raise
        raise LogError(
            f"{url} needs the package kafka-python: pip install 'haproc[kafka]'"
        ) from error


def _parts(url: str) -> tuple[str, str]:
    """Split a URL into its scheme and the rest. Raises ValueError for an unknown scheme."""
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in {"memory", "sqlite", "kafka"}:
        raise ValueError(f"{url!r} is not the URL of a log; known are {_KNOWN}")
    if scheme == "memory" and rest:
        raise ValueError(f"{url!r}: a log in memory has no name; write memory:")
    return scheme, rest


def _sqlite_path(url: str, rest: str) -> str:
    if rest.startswith("//"):
        rest = rest[2:]
        if not rest.startswith("/"):
            raise ValueError(
                f"{url!r} names a host, but a SQLite log is a file of this one: write "
                f"sqlite:///{rest} for the absolute path, or sqlite:{rest} for the relative one"
            )
    if not rest or rest.endswith("/"):
        raise ValueError(f"{url!r} names no file: write sqlite:///absolute/path or sqlite:path")
    return rest
