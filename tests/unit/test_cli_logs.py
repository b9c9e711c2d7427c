"""What the Kafka client says reaches the log now and then, and never a password."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from haproc.cli import logs


def record(name: str, text: str, at_s: float, *arguments: object) -> logging.LogRecord:
    made = logging.LogRecord(name, logging.ERROR, __file__, 1, text, arguments, None)
    made.created = at_s
    return made


def test_kafka_message_is_said_again_only_after_a_while() -> None:
    sparse = logs.Sparse(again_after_s=60)
    assert sparse.filter(record("kafka.net.manager", "failed: %s", 100.0, "refused"))
    assert not sparse.filter(record("kafka.net.manager", "failed: %s", 159.0, "other node"))
    assert sparse.filter(record("kafka.net.manager", "another message", 159.0))
    assert sparse.filter(record("kafka.net.manager", "failed: %s", 160.0, "refused"))


def test_other_messages_are_never_left_out() -> None:
    sparse = logs.Sparse()
    for _ in range(3):
        assert sparse.filter(record("haproc.node", "the same", 1.0))
        assert sparse.filter(record("kafkaesque", "the same", 1.0))


@pytest.fixture
def fresh_root() -> Iterator[logging.Logger]:
    """The root logger, put back afterwards as it was."""
    root, kafka = logging.getLogger(), logging.getLogger("kafka")
    handlers, level, kafka_level = root.handlers[:], root.level, kafka.level
    yield root
    root.handlers[:] = [each for each in root.handlers if each in handlers]
    root.setLevel(level)
    kafka.setLevel(kafka_level)


@pytest.mark.parametrize(("level", "kafka"), [("DEBUG", "INFO"), ("INFO", "WARNING")])
def test_kafka_client_never_logs_at_debug(
    fresh_root: logging.Logger, level: str, kafka: str
) -> None:
    logs.set_up(level)
    assert fresh_root.level == logging.getLevelName(level)
    parser = logging.getLogger("kafka.protocol.parser")
    assert parser.getEffectiveLevel() == logging.getLevelName(kafka)
