MODEL (name @{schema}.customers, kind FULL, table_format delta);
SELECT customer, COUNT(*) AS n, SUM(amount) AS amount FROM @{schema}_raw.orders GROUP BY customer
