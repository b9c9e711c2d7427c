"""Load orders from a file into a table: ``python load_orders.py TABLE FILE``."""

from __future__ import annotations

import sys

import pandas as pd
from pyspark.sql import SparkSession

table, file = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
spark.sql(f"CREATE SCHEMA IF NOT EXISTS {table.partition('.')[0]}")
rows = spark.createDataFrame(pd.read_csv(file)).selectExpr(
    "CAST(id AS BIGINT) AS id",
    "customer",
    "CAST(day AS DATE) AS day",
    "CAST(amount AS DECIMAL(10, 2)) AS amount",
    "CAST(updated_at AS TIMESTAMP) AS updated_at",
)
rows.write.mode("overwrite").saveAsTable(table)
