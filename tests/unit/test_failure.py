"""What is said of errors."""

from __future__ import annotations

from haproc.failure import words_of


def test_words_of_error_are_its_own() -> None:
    assert words_of(OSError("no route to host")) == "no route to host"


def test_words_of_deadline_that_passed_say_so() -> None:
    assert words_of(TimeoutError()) == "no answer in time"
