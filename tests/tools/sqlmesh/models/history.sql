MODEL (
  name @{schema}.history,
  kind SCD_TYPE_2_BY_TIME (unique_key id, invalidate_hard_deletes false),
  table_format delta
);
SELECT id, customer, amount, updated_at FROM @{schema}_raw.orders
