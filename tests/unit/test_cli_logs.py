"""HAProc's own log: few lines for Kafka's client, levels and formats, and never a password."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import Iterator

import pytest

from haproc import audit
from haproc.cli import nodes, serving
from haproc.failure import ErrorClass, refused


def record(name: str, text: str, at_s: float, *arguments: object) -> logging.LogRecord:
    log_record = logging.LogRecord(name, logging.ERROR, __file__, 1, text, arguments, None)
    log_record.created = at_s
    return log_record


def test_kafka_outage_is_logged_once_and_again_after_a_pause() -> None:
    one_line = nodes.KafkaInOneLine(again_after_s=60)
    first = record("kafka.net.manager", "failed:\n %s", 100.0, "refused")
    assert one_line.filter(first)
    assert first.getMessage() == "the Kafka client reports: failed: refused"
    assert (first.name, first.levelname) == ("dmq", "WARNING")
    for at_s in (100.1, 130.0, 159.9):
        assert not one_line.filter(record("kafka.net.connection", "lost %s", at_s, "it"))
    later = record("kafka.net.transport", "broken", 160.0)
    assert one_line.filter(later)
    assert later.getMessage() == "the Kafka client reports: broken (3 more such messages since)"


def test_traceback_of_the_kafka_client_is_shortened_to_the_error_name() -> None:
    log_record = record("kafka.net.transport", "Error receiving", 1.0)
    log_record.exc_info = (OSError, OSError("reset"), None)
    assert nodes.KafkaInOneLine().filter(log_record)
    assert logging.Formatter().format(log_record) == (
        "the Kafka client reports: Error receiving: OSError: reset"
    )


def test_messages_of_other_loggers_are_never_left_out() -> None:
    one_line = nodes.KafkaInOneLine()
    for _ in range(3):
        assert one_line.filter(record("haproc.node.node", "the same", 1.0))
        assert one_line.filter(record("kafkaesque", "the same", 1.0))


@pytest.fixture
def fresh_root() -> Iterator[logging.Logger]:
    """The root logger, restored after the test."""
    root, kafka = logging.getLogger(), logging.getLogger("kafka")
    handlers, level, kafka_level = root.handlers[:], root.level, kafka.level
    yield root
    root.handlers[:] = [each for each in root.handlers if each in handlers]
    root.setLevel(level)
    kafka.setLevel(kafka_level)


def test_json_line_has_time_level_message_and_the_fields_of_the_record() -> None:
    log_record = record("haproc.operations", "offset %d\nends", 1.5, 7)
    log_record.fields = {"offset": 7, "user": "änn"}
    assert json.loads(serving.JsonLines().format(log_record)) == {
        "time": "1970-01-01T00:00:01.500+00:00",
        "level": "ERROR",
        "logger": "haproc.operations",
        "message": "offset 7\nends",
        "offset": 7,
        "user": "änn",
    }
    failed = record("haproc.node", "failed", 1.0)
    failed.exc_info = (OSError, OSError("reset"), None)
    line = serving.JsonLines().format(failed)
    assert "\n" not in line and "OSError: reset" in json.loads(line)["error"]


def test_log_levels_apply_to_all_or_to_one_logger() -> None:
    assert serving.levels("WARNING") == {"": "WARNING"}
    found = serving.levels("haproc.operations=DEBUG, ERROR")
    assert found == {"": "ERROR", "haproc.operations": "DEBUG"}
    assert serving.levels("haproc.operations=DEBUG")[""] == "INFO"
    for wrong in ("", "info", "=DEBUG", "haproc=LOUD", "INFO,,"):
        with pytest.raises(ValueError, match="HAPROC_LOG_LEVEL"):
            serving.levels(wrong)
    with pytest.raises(ValueError, match="HAPROC_LOG_FORMAT is 'xml'"):
        serving.formatter("xml")


def test_debug_level_of_the_operation_log_applies_to_it_alone(
    fresh_root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    operations = logging.getLogger("haproc.operations")
    try:
        nodes.set_up("INFO,haproc.operations=DEBUG", "json")
        operations.debug("ends", extra={audit.FIELDS: {"offset": 7}})
        logging.getLogger("haproc.node").debug("more")
    finally:
        operations.setLevel(logging.NOTSET)
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["offset"] == 7


def test_audit_log_line_in_json_has_its_fields(
    fresh_root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes.set_up("INFO", "json")
    audit.note_if_refusal(refused(ErrorClass.FORBIDDEN, "this needs another role", ""))
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["event"] == "refused"


@pytest.mark.parametrize(("level", "kafka"), [("DEBUG", "INFO"), ("INFO", "WARNING")])
def test_kafka_client_never_logs_at_debug(
    fresh_root: logging.Logger, level: str, kafka: str
) -> None:
    nodes.set_up(level)
    assert fresh_root.level == logging.getLevelName(level)
    parser = logging.getLogger("kafka.protocol.parser")
    assert parser.getEffectiveLevel() == logging.getLevelName(kafka)


async def test_unhandled_exception_is_logged_without_its_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise ValueError("Bearer ann-token")

    def written() -> str:
        # PySpark sets a formatter of its own on the handlers of its loggers, caplog's too.
        return "\n".join(map(logging.Formatter().format, caplog.records))

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(nodes.unhandled)
    task = asyncio.create_task(fail())
    await asyncio.wait({task})
    del task
    gc.collect()
    assert "never retrieved: ValueError" in written() and "in fail" in written()
    assert "ann-token" not in written().replace('raise ValueError("Bearer ann-token")', "")
    loop.call_exception_handler({"message": "no exception"})
    assert "no exception" in written()
