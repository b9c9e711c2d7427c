"""Batches that are merged into tables as foreachBatch's functions do: ``python upserts.py SCHEMA``.

A batch comes twice, as after a restart in its middle.
"""

from __future__ import annotations

import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

BATCHES = 3
SCHEMA = "id BIGINT, name STRING, amount DOUBLE, `current_date` DATE, gone BOOLEAN"

spark = SparkSession.builder.getOrCreate()
schema = sys.argv[1]
spark.sql(f"CREATE SCHEMA {schema}")
for name in ("by_view", "by_writer", "by_argument", "latest"):
    spark.sql(f"CREATE TABLE {schema}.{name} ({SCHEMA}) USING delta")


def batch(number: int) -> DataFrame:
    """Return rows of which half have known ids, some are gone, and some occur twice."""
    ids = F.col("id") + number * 5
    made = spark.range(10).select(
        ids.alias("id"),
        F.concat(F.lit(f"batch {number} row "), ids).alias("name"),
        (ids * 1.5).alias("amount"),
        F.date_add(F.lit("2024-01-01").cast("date"), number).alias("current_date"),
        (ids % 7 == 3).alias("gone"),
    )
    return made.union(made.where("id % 3 = 0").withColumn("amount", F.col("amount") + 1))


def newest(rows: DataFrame) -> DataFrame:
    """Return one row of each id."""
    return rows.groupBy("id").agg(
        F.max_by("name", "amount").alias("name"),
        F.max("amount").alias("amount"),
        F.max("current_date").alias("current_date"),
        F.bool_and("gone").alias("gone"),
    )


def by_view(rows: DataFrame, number: int) -> None:
    """Merge by SQL from a temporary view."""
    rows.createOrReplaceTempView("updates")
    rows.sparkSession.sql(
        f"""
        MERGE INTO {schema}.by_view t USING updates s ON t.id = s.id
        WHEN MATCHED AND s.gone THEN DELETE
        WHEN MATCHED AND s.current_date >= t.current_date THEN UPDATE SET *
        WHEN NOT MATCHED AND NOT s.gone THEN INSERT *
        """
    )


def by_writer(rows: DataFrame, number: int) -> None:
    """Merge by the DataFrame's own writer."""
    target = f"{schema}.by_writer"
    (
        rows.alias("s")
        .mergeInto(target, F.expr("by_writer.id = s.id"))
        .whenMatched(F.expr("s.gone"))
        .delete()
        .whenMatched()
        .updateAll()
        .whenNotMatched(~F.expr("s.gone"))
        .insertAll()
        .whenNotMatchedBySource(F.expr(f"by_writer.id < {number}"))
        .delete()
        .merge()
    )


def by_argument(rows: DataFrame, number: int) -> None:
    """Merge by SQL that has the DataFrame in its text."""
    spark.sql(
        f"MERGE INTO {schema}.by_argument t USING {{rows}} s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET amount = s.amount + t.amount, name = s.name "
        "WHEN NOT MATCHED THEN INSERT (id, name, amount, current_date) "
        "VALUES (s.id, s.name, s.amount, s.current_date)",
        rows=rows,
    )


def latest(rows: DataFrame, number: int) -> None:
    """Replace the rows of the batch's day."""
    day = rows.agg(F.max("current_date")).first()
    assert day is not None
    rows.write.mode("append" if number % 2 else "overwrite").saveAsTable(f"{schema}.latest")
    rows.writeTo(f"{schema}.latest").overwrite(F.col("current_date") == F.lit(day[0]))


ways: Any = (by_view, by_writer, by_argument, latest)
for number in range(BATCHES):
    rows = newest(batch(number))
    for way in ways:
        for _ in range(2 if number == 1 else 1):
            way(rows, number)
    print(f"batch {number}", flush=True)
