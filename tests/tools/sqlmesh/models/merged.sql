MODEL (name @{schema}.merged, kind INCREMENTAL_BY_UNIQUE_KEY (unique_key id), table_format delta);
SELECT id, customer, day, amount FROM @{schema}_raw.orders WHERE updated_at BETWEEN @start_ts AND @end_ts
