"""What ``haproc report`` shows: the usage of the last hours, by table, user, cluster or hour."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import haclient
from haproc.pipeline import tables

_ONCE: Final = "table IS NULL AND cluster IS NULL"
"""Rows in which each statement is there once: all tables, the whole ring."""
_ROWS_OF: Final = {
    "table": "table IS NOT NULL AND cluster IS NULL",
    "user": _ONCE,
    "cluster": "table IS NULL AND cluster IS NOT NULL",
    "hour": _ONCE,
}
BY: Final = tuple(_ROWS_OF)
COLUMNS: Final = (
    "statements",
    "rows",
    "errors",
    "latency_ms_avg",
    "latency_ms_max",
    "lag_ms_avg",
    "lag_ms_max",
)
ROWS_MAX: Final = 100


def query(by: str, hours: int) -> str:
    """Return the query; hours are shown in UTC."""
    utc = "date_format(to_utc_timestamp(hour, current_timezone()), 'yyyy-MM-dd HH:mm')"
    return f"""
SELECT {utc if by == "hour" else by}, sum(statements), sum(rows), sum(errors),
  round(try_divide(sum(latency_ms_sum), sum(latencies))), max(latency_ms_max),
  round(try_divide(sum(lag_ms_sum), sum(lags))), max(lag_ms_max)
FROM {tables.USAGE}
WHERE hour > (SELECT max(hour) FROM {tables.USAGE}) - INTERVAL {int(hours)} HOURS
  AND {_ROWS_OF[by]}
GROUP BY {by} ORDER BY {1 if by == "hour" else 2} DESC LIMIT {ROWS_MAX}
"""


def usage(servers: Sequence[str], token: str | None, by: str, hours: int) -> list[tuple[Any, ...]]:
    """Return the rows; raises haclient.Error."""
    with haclient.connect(servers, token=token) as connection, connection.cursor() as cursor:
        cursor.execute(query(by, hours))
        return list(cursor.fetchall())
