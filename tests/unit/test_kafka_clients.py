"""Tests that the reason why no broker was reached is taken from the log output of kafka-python."""

from __future__ import annotations

import logging

import pytest
from kafka import errors

from dmq.kafka_clients import BootstrapFailure


def logged(failures: BootstrapFailure, error: Exception) -> None:
    """Log a failed attempt as ``kafka.net.manager`` does."""
    text = "Bootstrap connection to %s failed: %s (backoff %.2f secs)"
    record = logging.LogRecord(
        "kafka.net.manager", logging.WARNING, "", 0, text, ("bootstrap-0", error, 0.5), None
    )
    assert failures.filter(record)


REFUSED = errors.SaslAuthenticationFailedError()
GONE = errors.KafkaConnectionError("socket disconnected")
SLOW = errors.RequestTimedOutError()
CUT = errors.KafkaTimeoutError("Timeout during ApiVersions check")


def cut_while_connecting() -> Exception:
    """Return the error that ``kafka.net.inet.create_connection`` raises at its deadline."""
    try:
        try:
            raise errors.KafkaTimeoutError("Connection timed out")
        except errors.KafkaTimeoutError:
            raise errors.KafkaConnectionError("Connection timed out")  # noqa: B904
    except Exception as error:
        return error
    raise AssertionError


CUT_CONNECTING = cut_while_connecting()


@pytest.mark.parametrize(
    ("attempts", "reported"),
    [
        ([SLOW], SLOW),
        ([GONE, SLOW], GONE),
        ([GONE, CUT], GONE),
        ([GONE, CUT_CONNECTING], GONE),
        ([SLOW, GONE], GONE),
        ([GONE, REFUSED, GONE, SLOW], REFUSED),
    ],
)
def test_most_informative_error_of_the_attempts_is_reported(
    attempts: list[Exception], reported: Exception
) -> None:
    failures = BootstrapFailure()
    for attempt in attempts:
        logged(failures, attempt)
    assert failures.found is reported


def test_other_log_messages_are_no_failures() -> None:
    failures = BootstrapFailure()
    record = logging.LogRecord("kafka.net.manager", logging.INFO, "", 0, "Shutting", None, None)
    assert failures.filter(record)
    assert failures.found is None
