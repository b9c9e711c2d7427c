"""What is said of errors."""

from __future__ import annotations

from haproc.failure import let_go, log_away, message_of


def test_message_of_error_is_its_own() -> None:
    assert message_of(OSError("no route to host")) == "no route to host"


def test_message_of_deadline_that_passed_says_so() -> None:
    assert message_of(TimeoutError()) == "no answer in time"


def test_log_away_says_why_in_any_case() -> None:
    assert log_away(TimeoutError()) == "the log cannot be reached: no answer in time"


def test_let_go_of_an_error_that_was_raised_from_itself_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__context__ = second, first
    let_go(first)
    assert first.__traceback__ is None and second.__traceback__ is None
