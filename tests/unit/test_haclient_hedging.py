"""The time at which a query is sent to a second server (haclient/choosing.py)."""

from __future__ import annotations

import pytest

from haclient.choosing import P95, RECENT, RECENT_MIN, Hedging, is_hedgeable


@pytest.mark.parametrize(
    ("sql", "hedged"),
    [
        ("SELECT 1", True),
        ("  -- INSERT\n select * from t", True),
        ("SELECT 'INSERT INTO' FROM `update`", True),
        ("WITH x AS (SELECT 1) SELECT * FROM x", True),
        ("WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x", False),
        ("FROM t INSERT INTO u SELECT *", False),
        ("INSERT INTO t VALUES (1)", False),
        ("UPDATE t SET a = 1", False),
        ("CREATE TABLE t AS SELECT 1", False),
        ("CALL p()", False),
        ("SHOW TABLES", False),
        ("", False),
        ("'SELECT'", False),
    ],
)
def test_only_statements_that_surely_only_read_are_hedgeable(sql: str, hedged: bool) -> None:
    assert is_hedgeable(sql, {}) is hedged


def test_operation_class_of_the_caller_decides_whether_a_statement_is_hedgeable() -> None:
    assert is_hedgeable("SHOW TABLES", {"operation_class": "query"})
    assert not is_hedgeable("SELECT f()", {"operation_class": "asynchronous"})


def test_hedging_is_off_by_default() -> None:
    assert Hedging().took(1.0) == Hedging() and Hedging().after_s() is None
    assert Hedging(0.2).after_s() == 0.2


def test_hedging_delay_is_the_95th_percentile_of_recent_queries() -> None:
    state = Hedging(P95)
    for number in range(1, RECENT_MIN):
        state = state.took(float(number))
    assert state.after_s() is None, "too few"
    for number in range(1, 2 * RECENT + 1):
        state = state.took(float(number))
    assert len(state.recent_s) == RECENT
    assert state.after_s() == RECENT + 96.0
