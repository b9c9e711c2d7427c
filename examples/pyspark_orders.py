#!/usr/bin/env python3
"""A DataFrame program on a ring: writes orders, then reads what each customer spent.

    python examples/pyspark_orders.py "sc://a:15002,b:15002,c:15002"

Kill the HAProc that it uses while it runs: it goes on, and every order is there once.
"""

from __future__ import annotations

import sys
from datetime import date, timedelta

from pyspark.sql import functions as F

import haclient

DAYS = 20
TABLE = "example_orders"


def main(url: str) -> None:
    """Write and read at the ring with these servers."""
    spark = haclient.spark(url, on_failover=lambda event: print(f"{event.failed} → {event.next}"))
    spark.sql(f"DROP TABLE IF EXISTS {TABLE}")
    for number in range(DAYS):
        day = date(2026, 1, 1) + timedelta(days=number)
        rows = [(day, customer, number * 10.0 + customer) for customer in range(5)]
        orders = spark.createDataFrame(rows, "day date, customer int, amount double")
        orders.write.mode("append").saveAsTable(TABLE)
        print(day, spark.table(TABLE).count(), "orders")

    spent = spark.table(TABLE).groupBy("customer").agg(F.sum("amount").alias("spent"))
    for row in spent.orderBy("customer").collect():
        print(f"customer {row.customer}: {row.spent:8.2f}")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "sc://localhost:15002")
