MODEL (name @{schema}.recent, kind VIEW);
SELECT id, customer, day, amount, updated_at, CURRENT_DATE() AS looked_on FROM @{schema}_raw.orders
