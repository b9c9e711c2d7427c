MODEL (
  name @{schema}.daily,
  kind INCREMENTAL_BY_TIME_RANGE (time_column day),
  table_format delta,
  partitioned_by day
);
SELECT day, customer, SUM(amount) AS amount FROM @{schema}_raw.orders
WHERE day BETWEEN @start_date AND @end_date GROUP BY day, customer
