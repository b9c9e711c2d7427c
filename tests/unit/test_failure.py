"""What is said of errors."""

from __future__ import annotations

from haproc.failure import log_away, message_of


def test_message_of_error_is_its_own() -> None:
    assert message_of(OSError("no route to host")) == "no route to host"


def test_message_of_deadline_that_passed_says_so() -> None:
    assert message_of(TimeoutError()) == "no answer in time"


def test_log_away_says_why_in_any_case() -> None:
    assert log_away(TimeoutError()) == "the log cannot be reached: no answer in time"
