"""The messages of errors."""

from __future__ import annotations

from haproc.failure import let_go, log_away, message_of


def test_message_of_an_error_is_its_own_text() -> None:
    assert message_of(OSError("no route to host")) == "no route to host"


def test_message_of_a_timeout_error_is_no_answer_in_time() -> None:
    assert message_of(TimeoutError()) == "no answer in time"


def test_log_away_message_contains_the_reason() -> None:
    assert log_away(TimeoutError()) == "the log cannot be reached: no answer in time"


def test_let_go_of_errors_in_a_circle_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__context__ = second, first
    let_go(first)
    assert first.__traceback__ is None and second.__traceback__ is None
