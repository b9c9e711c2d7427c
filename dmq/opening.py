"""Opening a log by its URL.

``memory:`` is a new, empty log in this process. ``sqlite:///var/lib/ring.db`` is a file by its
absolute path, ``sqlite:ring.db`` one relative to the working directory. Paths are taken as they
are written; nothing in them is unescaped. ``kafka://host:9092,other:9092/ring`` is a Kafka topic.
"""

from __future__ import annotations

import uuid
from typing import Final

from dmq.entries import RECORD_BYTES_MAX
from dmq.errors import LogError
from dmq.interface import Log
from dmq.kafka_options import KafkaOptions
from dmq.kafka_topic import parse_url
from dmq.memory import MemoryLog, MemoryStore
from dmq.sqlite import SqliteLog

_KNOWN: Final = "memory:, sqlite:///absolute/path, sqlite:relative/path, kafka://host:9092/topic"
_NO_KAFKA: Final = KafkaOptions()


async def open_log(
    url: str, *, record_bytes_max: int = RECORD_BYTES_MAX, kafka: KafkaOptions = _NO_KAFKA
) -> Log:
    """Open the log at this URL; ``kafka`` matters for a Kafka topic alone.

    ``record_bytes_max`` bounds an encoded record: its payload and headers. Raises ValueError for
    a URL that names no log, LogError for a log that cannot be used, and LogUnavailableError (a
    LogError, too) if trying again may help.
    """
    scheme, colon, rest = url.partition(":")
    if scheme == "memory" and colon:
        if rest:
            raise ValueError(f"{url!r}: a log in memory has no name; write memory:")
        return MemoryLog(MemoryStore(record_bytes_max=record_bytes_max, identity=uuid.uuid4().hex))
    if scheme == "sqlite" and colon:
        return await SqliteLog.open(_sqlite_path(url, rest), record_bytes_max=record_bytes_max)
    if scheme == "kafka" and colon:
        return await _open_kafka(url, record_bytes_max, kafka)
    raise ValueError(f"{url!r} is not the URL of a log; known are {_KNOWN}")


async def _open_kafka(url: str, record_bytes_max: int, options: KafkaOptions) -> Log:
    parts = parse_url(url)
    try:
        # An extra: not everybody has it installed.
        from dmq.kafka import KafkaLog
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "kafka":
            raise
        raise LogError(
            f"{url} needs the package kafka-python: pip install 'haproc[kafka]'"
        ) from error
    return await KafkaLog.open(parts, options, record_bytes_max=record_bytes_max)


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
