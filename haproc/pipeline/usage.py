"""Sums up ``haproc.operations`` by hour, user, table and cluster, in ``haproc.usage``.

Run ``python -m haproc.pipeline.usage`` after the archive. A run computes all hours again from the
earliest one that has a new operation on, and replaces their rows in one commit.

The only state is the table. Every row has the offset up to which its run counted, and each run
writes the newest hour anew. So the newest hour's offset is the position of the whole table. This
holds if a run is killed. If a run that read less ends after another, the next run computes more.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from haproc.pipeline import ring, tables
from haproc.pipeline.ring import RingError

_NEW: Final = f"""
SELECT unix_seconds(date_trunc('HOUR', min(time))), max(offset) FROM {tables.OPERATIONS}
WHERE time IS NOT NULL
  AND offset > (SELECT coalesce(max_by(offset_to, hour), -1) FROM {tables.USAGE})
"""


@dataclass(frozen=True, slots=True)
class Span:
    """What a run computes: the hours from ``begins`` on, of operations up to ``offset_to``."""

    begins: datetime
    offset_to: int

    @property
    def since(self) -> str:
        """The first hour as a TIMESTAMP literal of SQL."""
        return f"TIMESTAMP '{self.begins.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z'"

    @property
    def day(self) -> str:
        """The day of the first hour as a DATE literal of SQL."""
        return f"DATE '{self.begins.astimezone(UTC):%Y-%m-%d}'"


def summed(span: Span) -> str:
    """Return the SQL query that computes the rows of a span's hours.

    An operation counts for each table that it writes, and once for all tables (null); each time for
    each cluster, and once for the ring (null). For the ring it failed if it failed on any cluster,
    and its latency is that of the slowest cluster. ``lag_ms``: how much later a cluster was done
    than the fastest one; null if a latency is not known.
    """
    return f"""
WITH ended AS (
  SELECT date_trunc('HOUR', time) AS hour, user, rows, array_append(writes, NULL) AS written,
    transform(map_entries(outcomes), each -> struct(
      each.key AS cluster,
      each.value.outcome IN ('failed', 'rejected') AS error,
      each.value.latency_ms AS latency_ms,
      IF(exists(map_values(outcomes), o -> o.latency_ms IS NULL), NULL,
        each.value.latency_ms - array_min(transform(map_values(outcomes), o -> o.latency_ms))
      ) AS lag_ms)) AS clusters
  FROM {tables.OPERATIONS}
  WHERE time >= {span.since} AND day >= {span.day} AND offset <= {span.offset_to}
), counted AS (
  SELECT hour, user, rows, written, explode(array_append(clusters, struct(
    CAST(NULL AS STRING) AS cluster,
    exists(clusters, each -> each.error) AS error,
    IF(exists(clusters, each -> each.latency_ms IS NULL), NULL,
      array_max(transform(clusters, each -> each.latency_ms))) AS latency_ms,
    array_max(transform(clusters, each -> each.lag_ms)) AS lag_ms))) AS each
  FROM ended
)
SELECT hour, user, table, each.cluster AS cluster,
  count(*) AS statements, sum(rows) AS rows, count_if(each.error) AS errors,
  count(each.latency_ms) AS latencies, sum(each.latency_ms) AS latency_ms_sum,
  max(each.latency_ms) AS latency_ms_max,
  count(each.lag_ms) AS lags, sum(each.lag_ms) AS lag_ms_sum, max(each.lag_ms) AS lag_ms_max,
  CAST({span.offset_to} AS BIGINT) AS offset_to
FROM counted LATERAL VIEW explode(written) tables AS table
GROUP BY hour, user, table, each.cluster
"""


def sum_up(spark: Any) -> Span | None:
    """Compute the new hours, and replace their rows in ``haproc.usage``; return the computed span.

    None if the archive has no new operation.
    """
    from pyspark.sql import functions

    tables.create(spark, tables.USAGE, tables.CREATE_USAGE)
    ((begins_s, offset_to),) = spark.sql(_NEW).collect()
    if begins_s is None:
        return None
    span = Span(datetime.fromtimestamp(begins_s, UTC), offset_to)
    hours = functions.expr(f"hour >= {span.since}")
    spark.sql(summed(span)).writeTo(tables.USAGE).overwrite(hours)
    return span


def main() -> int:
    """Run the program: sum up once; return the exit code, 1 after an error of the ring."""
    options = ring.arguments("Sum up the archive by hour.").parse_args()
    try:
        with ring.session(options) as spark:
            span = sum_up(spark)
    except RingError as error:
        print(error, file=sys.stderr)
        return 1
    print("nothing new" if span is None else f"summed up from {span.begins:%Y-%m-%d %H:%M} UTC on")
    return 0


if __name__ == "__main__":
    sys.exit(main())
