"""What a Kafka log needs to know beside its URL."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """How the topic is made and reached.

    ``client`` holds further settings for every client of the broker, by kafka-python's names
    (``security_protocol``, ``ssl_cafile``, ``sasl_mechanism``, ``sasl_plain_password`` …).
    """

    replication_factor: int = 3
    """Copies of the topic, set when it is created."""
    min_insync_replicas: int = 2
    """Copies that must have a record before its append returns."""
    message_bytes_max: int = 1 << 20
    """A larger record is stored in several messages; the topic and its brokers must take this."""
    compression: str = ""
    """``gzip``, ``snappy``, ``lz4``, ``zstd``, or none."""
    append_timeout_s: float = 5.0
    """An append that is not durable by then is an availability error of unknown outcome."""
    client: Mapping[str, object] = field(default_factory=dict, repr=False)
