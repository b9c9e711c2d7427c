"""The tables in which the pipeline keeps what it finds: tables of the ring like any other.

They lie in a schema of their own. What its user writes there is left out of the archive.
"""

from __future__ import annotations

from typing import Final

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
"""``day`` is that of ``time``, in UTC: what is old is deleted by it."""
CREATE_USAGE: Final = f"""
CREATE TABLE IF NOT EXISTS {USAGE} (
  hour TIMESTAMP, user STRING, table STRING, cluster STRING,
  statements BIGINT, rows BIGINT, errors BIGINT,
  latencies BIGINT, latency_ms_sum BIGINT, latency_ms_max BIGINT,
  lags BIGINT, lag_ms_sum BIGINT, lag_ms_max BIGINT, offset_to BIGINT
) USING delta
"""
"""``table`` null: all tables; ``cluster`` null: the ring. All but the last columns add up."""
CREATE_VERIFICATIONS: Final = f"""
CREATE TABLE IF NOT EXISTS {VERIFICATIONS} (
  marker BIGINT, time TIMESTAMP, table STRING, cluster STRING, finding STRING, reason STRING
) USING delta
"""
