"""A job that writes one row: ``write_day.py TABLE DAY``."""

import sys
import time

from pyspark.sql import SparkSession

table, day = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
while day == "for ever":
    time.sleep(1)
spark.sql(f"INSERT INTO {table} VALUES (:day)", {"day": day})
print("wrote", day, flush=True)
