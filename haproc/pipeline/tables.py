"""The tables with the pipeline's results, and the query of ``haproc report``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import haclient

# The tables with the pipeline's results: tables of the ring like any other.
#
# They are in their own schema. The writes of its user there are left out of the archive.


SCHEMA: Final = "spark_catalog.haproc"
OPERATIONS: Final = f"{SCHEMA}.operations"
USAGE: Final = f"{SCHEMA}.usage"
VERIFICATIONS: Final = f"{SCHEMA}.verifications"

_OUTCOMES: Final = "MAP<STRING, STRUCT<outcome: STRING, error: STRING, latency_ms: BIGINT>>"
CREATE_SCHEMA: Final = f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"
CREATE_OPERATIONS: Final = f"""
CREATE TABLE IF NOT EXISTS {OPERATIONS} (
  offset BIGINT, time TIMESTAMP, user STRING, class STRING, kind STRING, statement STRING,
  rows BIGINT, digest STRING, reads ARRAY<STRING>, writes ARRAY<STRING>, bytes BIGINT,
  origin STRING, request STRING, outcomes {_OUTCOMES}, day DATE
) USING delta PARTITIONED BY (day)
"""
"""``day`` is the day of ``time`` in UTC; old rows are deleted by it."""
CREATE_USAGE: Final = f"""
CREATE TABLE IF NOT EXISTS {USAGE} (
  hour TIMESTAMP, user STRING, table STRING, cluster STRING,
  statements BIGINT, rows BIGINT, errors BIGINT,
  latencies BIGINT, latency_ms_sum BIGINT, latency_ms_max BIGINT,
  lags BIGINT, lag_ms_sum BIGINT, lag_ms_max BIGINT, offset_to BIGINT
) USING delta
"""
"""``table`` is null in rows about all tables, ``cluster`` in rows about the ring. Figures of
several rows can be added (the largest of those that end in ``_max``); ``offset_to`` is the
position."""
CREATE_VERIFICATIONS: Final = f"""
CREATE TABLE IF NOT EXISTS {VERIFICATIONS} (
  marker BIGINT, time TIMESTAMP, table STRING, cluster STRING, finding STRING, reason STRING
) USING delta
"""


def create(spark: Any, table: str, statement: str) -> None:
    """Create the schema and a table by ``statement``, if the table does not exist.

    Only in that case, because each DDL stops all writes for a moment.
    """
    if not spark.catalog.tableExists(table):
        spark.sql(CREATE_SCHEMA)
        spark.sql(statement)


# The query of ``haproc report``: the usage of the last hours, by table, user, cluster or hour.


_ONCE: Final = "table IS NULL AND cluster IS NULL"
"""The rows that count each statement exactly once: those about all tables and the whole ring."""
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
    """Return the query of ``haproc report``: usage by ``by`` in the newest ``hours`` of the table.

    Hours are shown in UTC.
    """
    utc = "date_format(to_utc_timestamp(hour, current_timezone()), 'yyyy-MM-dd HH:mm')"
    return f"""
SELECT {utc if by == "hour" else by}, sum(statements), sum(rows), sum(errors),
  round(try_divide(sum(latency_ms_sum), sum(latencies))), max(latency_ms_max),
  round(try_divide(sum(lag_ms_sum), sum(lags))), max(lag_ms_max)
FROM {USAGE}
WHERE hour > (SELECT max(hour) FROM {USAGE}) - INTERVAL {int(hours)} HOURS
  AND {_ROWS_OF[by]}
GROUP BY {by} ORDER BY {1 if by == "hour" else 2} DESC LIMIT {ROWS_MAX}
"""


def usage(servers: Sequence[str], by: str, hours: int, **access: Any) -> list[tuple[Any, ...]]:
    """Run `query` and return its rows; raises haclient.Error.

    ``access``: haclient's options for tokens and TLS.
    """
    with haclient.connect(servers, **access) as connection, connection.cursor() as cursor:
        cursor.execute(query(by, hours))
        return list(cursor.fetchall())
