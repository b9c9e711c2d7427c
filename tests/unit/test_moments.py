"""Tests of texts that Spark reads by the clock: a write with one is not appended unchanged."""

from __future__ import annotations

import pytest

from haproc.classify.insert import plain_insert
from haproc.classify.names import Context
from haproc.classify.tokens import is_moment, is_time_of_day


@pytest.mark.parametrize("text", ["12:30", "1:2", "T12", "T1:2", " \x01T12:30:00 Japan", "\x7f1:2"])
def test_time_of_day_is_recognised(text: str) -> None:
    assert is_time_of_day(text)


@pytest.mark.parametrize(
    "text", ["2024-01-01 12:30", "12", "100:1", "T123", "t1:2", "T", "a 12:30", ""]
)
def test_other_text_is_no_time_of_day(text: str) -> None:
    """Measured on Spark 4.2.1: it completes none of these by today's date."""
    assert not is_time_of_day(text)


@pytest.mark.parametrize("text", ["today", "\x01NOW", "\x00 tomorrow CET", "12:30"])
def test_moment_is_recognised(text: str) -> None:
    assert is_moment(text)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (1, '12:30')",
        "INSERT INTO t VALUES (1, 'x'), (2, \"T12:30\")",
        "INSERT INTO t VALUES ('\\u0031\\u003a30')",
        "INSERT INTO t VALUES ('1\\u003a30')",
        "INSERT INTO t PARTITION (d = 'today') VALUES (1)",
        "INSERT INTO t PARTITION (d = '\\u0001now') VALUES (1)",
    ],
)
def test_insert_of_a_text_that_depends_on_the_clock_is_not_plain(sql: str) -> None:
    assert plain_insert(sql, Context()) is None


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (1, 'today', '2024-01-01 12:30', TIMESTAMP '2024-01-01 12:30:00')",
        "INSERT INTO t VALUES ('T1000', '{\"a\": \"12:30\"}', 'it''s 12:30')",
        "INSERT INTO t PARTITION (d = '2024-01-01') VALUES (1)",
    ],
)
def test_insert_of_other_texts_is_plain(sql: str) -> None:
    assert plain_insert(sql, Context()) is not None
